"""Compiles a bundle with the interpreter version that runs it, so that a cold start does not.

Byte code is specific to a minor version of Python, but not to a processor. It is marked "unchecked": the runtime
neither compares the times of the sources, which a zip file stores inexactly, nor reads the sources again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_TIMEOUT_S = 300


@cache
def find_interpreter(version: str) -> Path | None:
    """An interpreter of that minor version ("3.13"): the running one, one on PATH, or one of pyenv or uv."""
    return next((found for found in _candidates(version) if _runs(found, version)), None)


def compile_sources(folder: Path, interpreter: Path, deployed_to: str) -> None:
    """Put byte code next to every source; tracebacks name the sources below `deployed_to`.

    Raises:
        RuntimeError: a source cannot be compiled; the message holds what the compiler said.
    """
    # Isolated, or PYTHONPYCACHEPREFIX would lead the byte code elsewhere.
    command = [str(interpreter), "-I", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(folder), "-p", deployed_to, str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"compiling {folder} failed: {finished.stdout.strip()} {finished.stderr.strip()}")


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)
    home = Path.home()
    for folder in (home / ".pyenv" / "versions", home / ".local" / "share" / "uv" / "python"):
        yield from sorted(folder.glob(f"*{version}*/bin/python{version}"))


def _runs(interpreter: Path, version: str) -> bool:
    """A shim of pyenv exists for versions that are not chosen, and does not run."""
    program = "import sys; print('%d.%d' % sys.version_info[:2], sys.implementation.name)"
    try:
        finished = subprocess.run(
            [str(interpreter), "-I", "-c", program], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except OSError:
        return False
    return finished.stdout.split() == [version, "cpython"]
