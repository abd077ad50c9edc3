"""The example project of the guide runs with the plugin: one stack for all workers, a scope for each test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).parent / "example"
GUIDE = ROOT / "docs" / "using" / "testing.md"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_example_project_passes(tmp_path: Path, workers: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for source in EXAMPLE.glob("*.py"):
        (project / source.name).write_text(source.read_text())
    base = tmp_path / "base"
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(project)])
    environment["HEADRACE_NETWORK"] = "external"  # of the programs under test; the stack has no such addresses
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--basetemp", str(base), str(project)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert len(list(base.glob("headrace-stack/stack-*"))) == 1


@pytest.mark.parametrize("source", sorted(EXAMPLE.glob("*.py")), ids=lambda path: path.name)
def test_the_guide_shows_the_example(source: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert source.read_text() in blocks


def test_pytest_finds_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module = import_module(project["entry-points"]["pytest11"]["headrace"])
    assert {"headrace_url", "headrace_client", "headrace_scope"} <= set(vars(module))


def test_loading_the_plugin_is_light() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import headrace.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith("headrace")} == {
        "headrace", "headrace.testing", "headrace.testing.plugin",
    }  # fmt: skip
