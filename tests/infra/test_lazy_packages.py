"""Packages whose roots import their parts late are, for the functions, the packages that they were."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aws_lambda_powertools
import pytest

from functions import openapi
from infra.packaging.lazy_packages import PACKAGES, defer_imports_of_roots
from infra.packaging.project import ROOT

INSTALLED = Path(aws_lambda_powertools.__file__).parent
MODULES = [package.replace("/", ".") for package in PACKAGES]

IMPORTED = "import functions.controller.scopes, json, sys; print(json.dumps(sorted(sys.modules)))"
DOCUMENT = "from functions import openapi; sys.stdout.write(openapi.document_text())"
NAMES = """
import importlib, json
roots = [importlib.import_module(name) for name in sys.argv[1:]]
found = {}
for root in reversed(roots):
    for name in root.__all__:
        part = getattr(root, name)
        found[f"{root.__name__}.{name}"] = [type(part).__name__, part.__module__, part.__qualname__]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    shutil.copytree(INSTALLED, folder / INSTALLED.name, ignore=shutil.ignore_patterns("__pycache__"))
    defer_imports_of_roots(folder)
    return folder


def _run(program: str, folder: Path | None, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder or "")}
    finished = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_function_imports_only_the_parts_it_uses(rewritten: Path):
    loaded = json.loads(_run(IMPORTED, rewritten))
    powertools = {name for name in loaded if name.startswith("aws_lambda_powertools.")}
    assert {"aws_lambda_powertools.event_handler.api_gateway", *MODULES} <= powertools
    assert "asyncio" not in loaded
    unused = ("appsync", "bedrock_agent_function", "http_resolver", "merge", "kafka_event", "s3_event")
    assert not [name for name in powertools if name.endswith(unused)]


def test_the_api_is_described_as_without_the_rewriting(rewritten: Path):
    assert _run(DOCUMENT, rewritten) == openapi.DOCUMENT.read_text()


def test_rewritten_roots_offer_the_same_names(rewritten: Path):
    document = json.loads(_run(NAMES, rewritten, *MODULES))
    assert len(document) > 60
    assert document == json.loads(_run(NAMES, None, *MODULES))


def test_a_name_that_is_also_a_part_means_what_it_did(rewritten: Path):
    """Importing the part sets the name to a module, which hides what the root would find later."""
    program = (
        "from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSEvent\n"
        "import aws_lambda_powertools.utilities.data_classes.event_source\n"
        "from aws_lambda_powertools.utilities.data_classes import event_source\n"
        "print(callable(event_source))"
    )
    assert _run(program, rewritten) == "True\n"


def test_an_unknown_name_is_an_attribute_error(rewritten: Path):
    program = f"import {MODULES[0]} as root; print(hasattr(root, 'NoSuchResolver'))"
    assert _run(program, rewritten) == "False\n"


@pytest.mark.parametrize("line", ["setup()", "VERSION = 1", "from os import path", "import os", "from .. import x"])
def test_a_root_that_does_more_is_refused(tmp_path: Path, line):
    for package in PACKAGES:
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").write_text(f"from .part import setup\n{line}\n")
    with pytest.raises(ValueError, match=r"root of aws_lambda_powertools\.event_handler .*: line 2"):
        defer_imports_of_roots(tmp_path)


def test_an_installed_package_stays_whole(tmp_path: Path):
    """An installer may link files: writing into one would change it in every environment of the machine."""
    shutil.copytree(INSTALLED, tmp_path / "linked", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(tmp_path / "linked", tmp_path / "bundle" / INSTALLED.name, copy_function=os.link)
    defer_imports_of_roots(tmp_path / "bundle")
    for package in PACKAGES:
        root = Path(package).relative_to(INSTALLED.name) / "__init__.py"
        assert (tmp_path / "linked" / root).read_bytes() == (INSTALLED / root).read_bytes()
        assert (tmp_path / "bundle" / INSTALLED.name / root).read_bytes() != (INSTALLED / root).read_bytes()
