"""The handlers and the store process come with the wheel, but not as packages of the user's environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace.local.command import CARRIED

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("functions", "segmentstore_fargate")
START = """
import subprocess, sys
from pathlib import Path
from headrace.local.command import make_importable
make_importable(Path(sys.argv[1]))
ask = f"import {sys.argv[2]} as found; print(found.__file__)"
exec(ask)
subprocess.run([sys.executable, "-c", ask], check=True)
"""


def _wheel() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel: dict[str, Any] = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    return wheel


def test_the_wheel_installs_no_package_but_the_library() -> None:
    wheel = _wheel()
    assert wheel["packages"] == ["headrace"]
    carried = {name: str((CARRIED / name).relative_to(ROOT)) for name in PACKAGES}
    assert wheel["force-include"] == carried
    assert all((ROOT / name / "__init__.py").is_file() for name in PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_carried_code_is_found_before_a_package_of_the_users(tmp_path: Path, name: str) -> None:
    """By `headrace up` and the processes that it starts, in a directory and with a path that have one of the name."""
    decoys = [tmp_path / "working", tmp_path / "on_the_path"]
    for decoy in decoys:
        (decoy / name).mkdir(parents=True)
        (decoy / name / "__init__.py").write_text("raise SystemExit('not this one')")
    carried = tmp_path / "deployment"
    (carried / name).mkdir(parents=True)
    (carried / name / "__init__.py").touch()
    finished = subprocess.run(
        [sys.executable, "-P", "-c", START, str(carried), name],
        cwd=decoys[0],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [decoys[1], ROOT]))},
        check=True,
        capture_output=True,
        text=True,
    )
    assert finished.stdout.splitlines() == [str(carried / name / "__init__.py")] * 2
