"""The root directory of the project, and its source files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK_FILE = ROOT / "requirements.lock"
PYPROJECT_FILE = ROOT / "pyproject.toml"

_SOURCE_SUFFIXES = frozenset({".py", ".typed", ".json"})


def source_files(*packages: str) -> Iterator[tuple[str, Path]]:
    """(path relative to the project, file) of every source file of these packages, in a stable order."""
    for package in packages:
        directory = ROOT / package
        if not directory.is_dir():
            raise FileNotFoundError(f"{directory} is not a package of the project")
        for file in sorted(directory.rglob("*")):
            if file.is_file() and file.suffix in _SOURCE_SUFFIXES:
                yield file.relative_to(ROOT).as_posix(), file
