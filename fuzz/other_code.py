"""The code of another release with its libraries, for processes that run it next to those of this tree."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = "requirements.lock"
FORMER_RELEASE: Final = "05e5dcc447ede0a5e22542cc9e7eb042c206184c"
"""The commit of the release before this one. Its tag is missing in many clones."""
FORMER_NAME: Final = "v0.2.0"
"""Of its tag."""
_LIBRARIES: Final = "libraries"


@contextmanager
def other_code(revision: str) -> Iterator[Path]:
    """A directory as `unpack` makes it, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="headrace-other-code-") as directory:
        unpack(revision, Path(directory))
        yield Path(directory)


def unpack(revision: str, directory: Path) -> None:
    """Write the tree of a revision, and the libraries of its lock file if this environment has others.

    Raises:
        ValueError: git does not know the revision, or its libraries cannot be installed.
    """
    packed = subprocess.run(["git", "archive", "--format=tar", revision], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        reason = packed.stderr.decode(errors="replace").strip()
        raise ValueError(f"the code of {revision} is not there: {reason}; name a commit or tag of this repository")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(directory, filter="data")
    if (directory / LOCK).read_bytes() == (ROOT / LOCK).read_bytes():
        return
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--require-hashes"]
    command += ["--python", sys.executable, "--target", str(directory / _LIBRARIES), "-r", str(directory / LOCK)]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode:
        raise ValueError(f"the libraries of {revision} are not there: {installed.stderr.strip()}")


def environment_of(code: Path) -> dict[str, str]:
    """What makes a Python process import this code and its libraries, and not those of its directory or environment."""
    libraries = code / _LIBRARIES
    path = [str(code), str(libraries)] if libraries.exists() else [str(code)]
    return {"PYTHONPATH": ":".join(path), "PYTHONSAFEPATH": "1"}
