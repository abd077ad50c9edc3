"""Synthesizes the app once per session and hands the templates out as plain JSON."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.packaging.import_closure import run_time_imports

ROOT = Path(__file__).resolve().parents[2]
SYNTH_TIMEOUT_S = 300
PROJECT_FOLDERS = ("headrace", "functions", "segmentstore_fargate", "glue_jobs", "infra")
PROJECT_FILES = ("app.py", "cdk.json", "pyproject.toml", "requirements.lock")
OWN_PACKAGES = ("headrace", "functions", "segmentstore_fargate")


@dataclass(frozen=True)
class Resource:
    """One resource of a template."""

    stack: str
    logical_id: str
    type: str
    properties: dict[str, Any]
    attributes: dict[str, Any]


class Assembly:
    """The templates of a synthesized app."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.templates: dict[str, dict[str, Any]] = {
            path.name.removesuffix(".template.json"): json.loads(path.read_text())
            for path in sorted(directory.glob("*.template.json"))
        }

    def resources(self, type_: str | None = None, stack: str | None = None) -> list[Resource]:
        """All resources of a type, or of a stack, or both."""
        return [
            Resource(name, logical_id, body["Type"], body.get("Properties", {}), body)
            for name, template in self.templates.items()
            if stack in (None, name)
            for logical_id, body in template["Resources"].items()
            if type_ in (None, body["Type"])
        ]

    def only(self, type_: str, stack: str | None = None) -> Resource:
        """The one resource of that type."""
        (found,) = self.resources(type_, stack)
        return found

    def named(self, type_: str, name_property: str) -> dict[str, Resource]:
        """Resources of a type by the property that names them."""
        return {plain(resource.properties[name_property]): resource for resource in self.resources(type_)}

    def get(self, stack: str, reference: Any) -> Resource:
        """The resource that `Ref` or `Fn::GetAtt` points to."""
        match reference:
            case {"Ref": logical_id} | {"Fn::GetAtt": [logical_id, _]}:
                body = self.templates[stack]["Resources"][logical_id]
                return Resource(stack, logical_id, body["Type"], body.get("Properties", {}), body)
        raise AssertionError(f"{reference!r} is no reference within {stack}")


def plain(value: Any) -> str:
    """A CloudFormation value as text: `arn:<AWS::Partition>:s3:::name`."""
    match value:
        case str():
            return value
        case {"Fn::Join": [delimiter, items]}:
            return delimiter.join(plain(item) for item in items)
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [resource, attribute]}:
            return f"<{resource}.{attribute}>"
        case {"Fn::ImportValue": name}:
            return f"<{name}>"
        case {"Fn::Sub": text}:
            return str(text).replace("${", "<").replace("}", ">")
        case Mapping():
            return json.dumps(value, sort_keys=True)
    raise TypeError(f"{value!r} is no CloudFormation value")


def synthesize(project: Path, directory: Path, **context: str) -> Assembly:
    """Run app.py as the CDK command line does, without Node's part of it: context of cdk.json and `-c` by variable."""
    settings = json.loads((project / "cdk.json").read_text())["context"] | context
    finished = run(project, "app.py", CDK_OUTDIR=str(directory), CDK_CONTEXT_JSON=json.dumps(settings))
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    return Assembly(directory)


def run(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with the Node of the environment for jsii."""
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project),
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1",
        **variables,
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SYNTH_TIMEOUT_S,
        check=False,
    )


def walk_imports(folder: Path, start: str) -> set[str]:
    """Top-level names of third-party modules that `start`, and what it imports of ours, may import at run time."""
    outside: set[str] = set()
    waiting, seen = [start], set()
    while waiting:
        module = waiting.pop()
        source = folder / f"{module.replace('.', '/')}.py"
        if not source.is_file():
            source = folder / module.replace(".", "/") / "__init__.py"
        if module in seen or not source.is_file():
            continue
        seen.add(module)
        for imported in run_time_imports(ast.parse(source.read_text())):
            top = imported.partition(".")[0]
            if top in OWN_PACKAGES:
                waiting += [imported, imported.rpartition(".")[0]]
            elif top not in sys.stdlib_module_names:
                outside.add(top)
    return outside


@pytest.fixture(scope="session")
def imported_from_outside() -> Callable[[Path, str], set[str]]:
    """`walk_imports`, for tests that look into an artefact."""
    return walk_imports


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the app is made of, so that all that is compared in a session is the same."""
    copy = tmp_path_factory.mktemp("project")
    for name in PROJECT_FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROJECT_FILES:
        shutil.copyfile(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="session")
def assembly(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The app as deployed without any choice; cdk-nag has judged it, or the synth would have failed."""
    return synthesize(project, tmp_path_factory.mktemp("cdk.out"))


@pytest.fixture(scope="session")
def smallest_assembly(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """The app with every choice made the other way."""
    directory = tmp_path_factory.mktemp("cdk.smallest.out")
    choices = {"zones": "us-east-1a,us-east-1d", "spark_job": "false", "keep_data": "false"}
    more_choices = {"alarm_email": "a@b.example", "account_concurrency": "10", "metrics_from": "10.1.2.0/24"}
    return synthesize(project, directory, **choices, **more_choices)


@pytest.fixture(scope="session")
def run_python(project: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program text that uses the CDK in a process of its own."""
    return lambda program, **variables: run(project, "-c", program, **variables)


@pytest.fixture(scope="session")
def as_text() -> Any:
    """`plain`, for tests that compare CloudFormation values."""
    return plain
