"""The synthesized app: its templates as plain JSON, and programs that use the CDK in a process of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from syntax_trees import syntax_tree

from infra.packaging.import_closure import run_time_imports

ROOT = Path(__file__).resolve().parents[2]


SYNTH_TIMEOUT_S = 300


PROJECT_FOLDERS = ("headrace", "functions", "segmentstore_fargate", "glue_jobs", "infra")


PROJECT_FILES = ("app.py", "cdk.json", "pyproject.toml", "requirements.lock", "scripts/compile_modules.py")


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
        (resource,) = self.resources(type_, stack)
        return resource

    def named(self, type_: str, name_property: str) -> dict[str, Resource]:
        """Resources of a type by the property that names them; those without a name are the CDK's own."""
        return {
            plain(resource.properties[name_property]): resource
            for resource in self.resources(type_)
            if name_property in resource.properties
        }

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
            return str(delimiter).join(plain(item) for item in items)
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


def with_zone_ids(text: str) -> str:
    """The value of a variable with ids of zones in place of the references to them: stores check these ids."""
    return re.sub(r"<[^<>]*headracenetworkstorezone(\d)[^<>]*>", r"use1-az\1", text)


def synthesize(project: Path, directory: Path, **context: str) -> Assembly:
    """Run app.py as the CDK command line does, without Node's part of it: context of cdk.json and `-c` by variable."""
    settings = json.loads((project / "cdk.json").read_text())["context"] | context
    with known_assets(project, directory):
        finished = run(project, "app.py", CDK_OUTDIR=str(directory), CDK_CONTEXT_JSON=json.dumps(settings))
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    return Assembly(directory)


@contextmanager
def known_assets(project: Path, directory: Path) -> Iterator[None]:
    """For a synth of the project into `directory`: the assets of earlier ones are there, so they are not bundled again.

    Bundling takes longer than all else. The name of an asset is a hash of all that decides what it holds.
    """
    known = project.with_name(f"{project.name}-assets")
    known.mkdir(exist_ok=True)
    directory.mkdir(exist_ok=True)
    for asset in known.iterdir():
        (directory / asset.name).symlink_to(asset)
    yield
    manifests = "".join(file.read_text() for file in directory.glob("*.assets.json"))
    for asset in directory.glob("asset.*"):
        if not asset.is_symlink():
            asset.symlink_to(asset.rename(known / asset.name))
        elif asset.name not in manifests:
            asset.unlink()


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
        for imported in run_time_imports(syntax_tree(source.read_text())):
            top = imported.partition(".")[0]
            if top in OWN_PACKAGES:
                waiting += [imported, imported.rpartition(".")[0]]
            elif top not in sys.stdlib_module_names:
                outside.add(top)
    return outside
