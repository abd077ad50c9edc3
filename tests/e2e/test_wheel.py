"""The wheel in an environment of its own, as from an index: the local stack and the commands of the quickstart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
MEGABYTES_MAX: Final = 180
"""Of the environment, without compiled bytes."""


def _ran(command: Sequence[str | Path], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.nightly
def test_the_wheel_runs_the_local_stack(tmp_path: Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    _ran([uv, "build", "--wheel", "--quiet", "--out-dir", tmp_path / "dist", ROOT], tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    environment = tmp_path / "environment"
    _ran([uv, "venv", "--quiet", "--python", sys.executable, environment], tmp_path)
    python, headrace = environment / "bin" / "python", environment / "bin" / "headrace"
    _ran([uv, "pip", "install", "--quiet", "--link-mode=copy", "-p", python, f"{wheel}[local]"], tmp_path)
    size = sum(file.stat().st_size for file in environment.rglob("*") if file.is_file() and file.suffix != ".pyc")
    assert size < MEGABYTES_MAX * 1_000_000
    folder = tmp_path / "user"
    folder.mkdir()
    ports = [part for name in ("http", "grpc", "console") for part in (f"--{name}-port", "0")]
    command: list[str | Path] = [headrace, "up", *ports, "--secure", "--data-dir", tmp_path / "data"]
    stack = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert stack.stdout is not None
        lines = []
        for line in stack.stdout:
            lines.append(line)
            if line == "ready\n":
                break
        assert lines[-1:] == ["ready\n"], lines
        state = json.loads((tmp_path / "data" / "local-stack.json").read_text())
        address = {"HEADRACE_URL": state["endpoints"]["http"]}
        for words in ("scope create shop", "stream create shop/orders --segments 2"):
            _ran([headrace, *words.split()], folder, **address)
        written = "".join(f"{number}\n" for number in range(1000))
        subprocess.run(
            [headrace, "event", "write", "shop/orders"], input=written, env=os.environ | address, text=True, check=True
        )
        assert len(_ran([headrace, "event", "read", "shop/orders"], folder, **address).splitlines()) == 1000
    finally:
        stack.send_signal(signal.SIGINT)
        stack.communicate(timeout=60)
    assert list(folder.iterdir()) == []
