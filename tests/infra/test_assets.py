"""Every artefact that a template names can run what the template asks of it: handlers, commands, health checks."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from cdk_assembly import OWN_PACKAGES, Assembly, plain

from infra.packaging.image_context import PACKAGES
from infra.packaging.import_closure import import_closure, imported_from_outside
from infra.packaging.locked_requirements import read_lock

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

IMPORT_FROM_ASSET = """
import importlib, sys
from importlib.machinery import PathFinder
from pathlib import Path
asset, installed, *handlers = sys.argv[1:]
sys.path.insert(0, asset)
class NativeModules:
    # The asset has them for another processor: this machine's build takes the place of each that is there.
    @staticmethod
    def find_spec(name, path=None, target=None):
        *parents, last = name.split(".")
        if list(Path(asset, *parents).glob(last + ".*.so")):
            return PathFinder.find_spec(name, [str(Path(installed, *parents))])
sys.meta_path.insert(0, NativeModules)
for handler in handlers:
    module, _, name = handler.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name)), handler
"""


def _handlers(assembly: Assembly) -> dict[tuple[Path, str], set[str]]:
    """The handlers by the folder of their code and by their runtime."""
    found: dict[tuple[Path, str], set[str]] = {}
    for function in assembly.resources("AWS::Lambda::Function"):
        files = json.loads((assembly.directory / f"{function.stack}.assets.json").read_text())["files"]
        key = function.properties["Code"]["S3Key"]
        (path,) = {
            each["source"]["path"]
            for each in files.values()
            if key in {destination["objectKey"] for destination in each["destinations"].values()}
        }
        runtime = re.sub(r"[\d.]+x?$", "", function.properties["Runtime"])
        found.setdefault((assembly.directory / path, runtime), set()).add(function.properties["Handler"])
    return found


@pytest.fixture(params=["assembly", "smallest_assembly"])
def either_assembly(request: pytest.FixtureRequest) -> Assembly:
    """The app without any choice, and with every choice made the other way, tokens among them."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Assembly)
    return found


def test_every_handler_imports_from_its_asset_alone(either_assembly: Assembly, tmp_path: Path):
    for (asset, runtime), handlers in _handlers(either_assembly).items():
        if runtime == "nodejs":  # the CDK's own
            assert handlers == {"index.handler"}
            assert "handler" in (asset / "index.js").read_text()
            continue
        assert runtime == "python"
        arguments = [str(asset), sysconfig.get_path("purelib"), *sorted(handlers)]
        command = [sys.executable, "-I", "-S", "-B", "-c", IMPORT_FROM_ASSET, *arguments]
        finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr


def test_assets_have_what_handlers_import_late(either_assembly: Assembly, project: Path):
    """An import within a function fails in the first call that comes there."""
    for (asset, runtime), handlers in _handlers(either_assembly).items():
        if runtime == "python":
            modules = [handler.rpartition(".")[0] for handler in handlers]
            needed = {file.relative_to(project) for file in import_closure(project, modules)}
            found = {file.relative_to(asset) for file in import_closure(asset, modules)}
            assert {file for file in found if file.parts[0] in OWN_PACKAGES} == needed


def test_every_image_has_what_its_commands_import(either_assembly: Assembly, project: Path):
    for task in either_assembly.resources("AWS::ECS::TaskDefinition"):
        images = json.loads((either_assembly.directory / f"{task.stack}.assets.json").read_text())["dockerImages"]
        for container in task.properties["ContainerDefinitions"]:
            tag = plain(container["Image"]).rpartition(":")[2]
            (image,) = [each["source"] for name, each in images.items() if name.endswith(tag)]
            context = either_assembly.directory / image["directory"]
            commands = [
                _entry_point(context / image["dockerFile"]),
                container["HealthCheck"]["Command"][1:],
                *(container[name] for name in ("Command", "EntryPoint") if name in container),
            ]
            modules = [command[command.index("-m") + 1] for command in commands]
            files = import_closure(context, modules)
            assert {file.relative_to(context) for file in files} == {
                file.relative_to(project) for file in import_closure(project, modules)
            }
            installed = {
                package.name.replace("-", "_") for package in read_lock((context / "requirements.txt").read_text())
            }
            imported = {PACKAGES.get(name, name) for name in imported_from_outside(context, files)}
            assert imported <= installed


def _entry_point(dockerfile: Path) -> list[str]:
    (line,) = [line for line in dockerfile.read_text().splitlines() if line.startswith("ENTRYPOINT")]
    return list(ast.literal_eval(line.removeprefix("ENTRYPOINT ")))
