"""Stories of users on a local stack, which all tests of the run share (`headrace.testing`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Shell = Callable[[str], tuple[int, str, str]]
"""Runs a line of bash with the command `headrace`, in a folder of its own: exit code, output, errors."""


@pytest.fixture
def shell(headrace_url: str, tmp_path: Path) -> Shell:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "HEADRACE_URL": headrace_url, "PATH": path}

    def shell(line: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return shell
