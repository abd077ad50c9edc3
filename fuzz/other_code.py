"""The code of another release, for stores that run it beside this one's."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("headrace", "segmentstore_fargate")


@contextmanager
def other_code(revision: str) -> Iterator[Path]:
    """A directory with the packages of a revision that git knows. They run with the libraries of this environment.

    Raises:
        ValueError: git does not know it, or it lacks a package.
    """
    command = ["git", "archive", "--format=tar", revision, *PACKAGES]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        reason = packed.stderr.decode(errors="replace").strip()
        raise ValueError(f"the code of {revision} is not there: {reason}; name a commit or tag of this repository")
    with tempfile.TemporaryDirectory(prefix="headrace-other-code-") as directory:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
            files.extractall(directory, filter="data")
        yield Path(directory)


def environment_of(code: Path) -> dict[str, str]:
    """What makes a Python process import these packages, and not those of its directory or its environment."""
    return {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}
