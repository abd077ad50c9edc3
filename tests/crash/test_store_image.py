"""The image of a store, built by the steps of its Dockerfile in folders instead of docker, and its compiled store."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dockerfile_steps import ImageBuild, clean_environment, nearest_python, stages

from infra.packaging.image_context import SEGMENT_STORE, stage_image_context

HAS_COMPILER = shutil.which("gcc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()
MODULES_MIN = 30
"""Of the listed modules, those that a store imports."""

IMPORT_ALL = """
import importlib, pathlib, sys, tomllib
import segmentstore_fargate.supervised, segmentstore_fargate.__main__, segmentstore_fargate.probe
groups = tomllib.load(open(sys.argv[1], "rb"))["tool"]["headrace"]["compiled"]
present = [path for paths in groups.values() for path in paths if pathlib.Path(path).is_file()]
for path in present:
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    assert not module.__file__.endswith(".py"), module
print(len(present))
"""


def test_stages_and_continued_lines_are_read() -> None:
    text = "# a\nFROM base@sha256:1 AS first\nRUN one \\\n    && two\n\nFROM first\nCOPY --from=first /opt/a ./\n"
    first, last = stages(text)
    assert (first.base, first.name, last.base, last.name) == ("base@sha256:1", "first", "first", "")
    assert first.steps == (("RUN", "one      && two"),)
    assert last.steps == (("COPY", "--from=first /opt/a ./"),)


@pytest.mark.nightly
@pytest.mark.skipif(not HAS_COMPILER, reason="gcc or Python.h is missing")
def test_the_image_runs_a_compiled_store(tmp_path: Path, make_store: Callable[..., Any]) -> None:
    """It ends as the image's build would if a step fails. It takes minutes."""
    context = tmp_path / "context"
    stage_image_context(context)
    all_stages = stages((context / SEGMENT_STORE.dockerfile).read_text())
    build = ImageBuild(context, tmp_path / "image", nearest_python("3.13"), all_stages)
    directory, environment = build.run(all_stages[-1], clean_environment())
    assert build.system_packages == ["update", "install --yes --no-install-recommends gcc libc6-dev"]
    python = directory.parents[1] / "venv" / "bin" / "python"
    imported = [python, "-c", IMPORT_ALL, context / "pyproject.toml"]
    done = subprocess.run(imported, cwd=directory, env=environment, check=True, capture_output=True, text=True)
    assert int(done.stdout) >= MODULES_MIN
    store = make_store(log_level="INFO")
    store.run_from(directory, python)
    store.start()
    assert store.stop() == 0
    assert "event=starting version=" in store.logged()
    assert "code=compiled" in store.logged()
