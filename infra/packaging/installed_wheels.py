"""Installs locked packages into a directory, for a machine other than this one: wheels only, checked against hashes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_INSTALL_TIMEOUT_S = 300


def install_wheels(target: Path, requirements: str, *, python_version: str, platform: str) -> None:
    """Fill `target` with the packages of a requirements file with hashes, and with that file.

    Raises:
        RuntimeError: uv is missing, or a package cannot be installed; the message says why.
    """
    requirements_file = target / "requirements.txt"
    requirements_file.write_text(requirements)
    # Copies, not hard links: what is reduced in the target must stay whole in uv's cache and every environment.
    command = [_uv(), "pip", "install", "--quiet", "--link-mode", "copy", "--target", str(target)]
    command += ["--no-deps", "--require-hashes"]
    command += ["--python-version", python_version, "--python-platform", platform, "--only-binary", ":all:"]
    command += ["--requirement", str(requirements_file)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"installing the locked packages failed: {finished.stderr.strip()}")
    (target / ".lock").unlink(missing_ok=True)
    shutil.rmtree(target / "bin", ignore_errors=True)


def _uv() -> str:
    """The path of uv: in the running environment if it has it, else on the PATH."""
    own = Path(sys.executable).parent / "uv"
    found = str(own) if own.exists() else shutil.which("uv")
    if found is None:
        raise RuntimeError("uv is needed to install the locked packages: run `make setup`, or put uv on PATH")
    return found
