"""The library for Spark jobs: a zip on the Python path of driver and executors, and the pins of its dependencies.

The same sources always give the same bytes (no times, fixed order), so that the hash of the archive is its version.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from infra.packaging.locked_requirements import closure, declared_requirements, read_lock, requirements_text
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, source_files

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_READABLE_FILE = 0o100644 << 16

_NOT_FOR_JOBS = ("headrace/bridge/", "headrace/local/")
"""Processes of their own, whose requirements a job does not have."""


def write_spark_archive(target: Path) -> None:
    """Zip the package `headrace`, without the processes in it, into the file `target`."""
    with zipfile.ZipFile(target, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for relative, file in source_files("headrace"):
            if relative.startswith(_NOT_FOR_JOBS):
                continue
            entry = zipfile.ZipInfo(relative, date_time=_LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _READABLE_FILE
            archive.writestr(entry, file.read_bytes())


def write_spark_requirements(target: Path) -> None:
    """Write the requirements that Glue installs: exact versions with hashes, so that pip refuses other packages.

    They are those of the library without extras: Glue itself provides Spark, Arrow, numpy and boto3.
    """
    packages = closure(read_lock(LOCK_FILE.read_text()), declared_requirements(PYPROJECT_FILE.read_text()))
    target.write_text(requirements_text(packages))
