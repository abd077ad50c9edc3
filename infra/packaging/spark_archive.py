"""The library for Spark jobs, in the forms that the engines take.

Glue 5.1 and 6.0: a zip on the Python path of driver and executors, and the pins of its dependencies.
EMR Serverless: one archive with the library and its dependencies, which Spark unpacks next to driver and executors. A
zip for `--py-files` would not do, because the dependencies have compiled modules.

The same sources always give the same bytes (no times, fixed order), so that the hash of an archive is its version.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from infra.packaging.installed_wheels import install_wheels
from infra.packaging.locked_requirements import closure, declared_requirements, read_lock, requirements_text
from infra.packaging.project import LOCK_FILE, PYPROJECT_FILE, source_files

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_READABLE_FILE = 0o100644 << 16

EMR_PYTHON_VERSION = "3.11"
EMR_PLATFORM = "x86_64-manylinux_2_28"
"""Amazon Linux 2023 has glibc 2.34. EMR Serverless applications use x86_64 unless they ask for ARM."""

_NOT_FOR_JOBS = ("headrace/bridge/", "headrace/console/", "headrace/local/")
"""Processes of their own, whose requirements a job does not have."""


def write_spark_archive(target: Path) -> None:
    """Zip the package `headrace`, without the processes in it, into the file `target`."""
    with zipfile.ZipFile(target, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for relative, file in _library_files():
            entry = zipfile.ZipInfo(relative, date_time=_LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _READABLE_FILE
            archive.writestr(entry, file.read_bytes())


def write_spark_requirements(target: Path) -> None:
    """Write the requirements that Glue installs: exact versions with hashes, so that pip refuses other packages.

    They are those of the library without extras: Glue itself provides Spark, Arrow, numpy and boto3.
    """
    target.write_text(_requirements())


def write_emr_archive(target: Path, *, python_version: str = EMR_PYTHON_VERSION, platform: str = EMR_PLATFORM) -> None:
    """Write a tar.gz with the library and all that it needs except Spark, for the Python path of an EMR application.

    Arrow, numpy and botocore are in it, because EMR does not promise them. The interpreter is EMR's own.

    Raises:
        RuntimeError: uv is missing, or a package cannot be installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        install_wheels(
            Path(folder), _requirements("arrow", "aws-auth"), python_version=python_version, platform=platform
        )
        installed = [(file.relative_to(folder).as_posix(), file) for file in sorted(Path(folder).rglob("*"))]
        files = [(name, file) for name, file in installed if file.is_file() and "/tests/" not in name]
        with (
            target.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w") as archive,
        ):
            for name, file in [*files, *_library_files()]:
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = file.stat().st_size, 0o644
                archive.addfile(entry, io.BytesIO(file.read_bytes()))


def _library_files() -> Iterator[tuple[str, Path]]:
    return ((name, file) for name, file in source_files("headrace") if not name.startswith(_NOT_FOR_JOBS))


def _requirements(*extras: str) -> str:
    packages = closure(read_lock(LOCK_FILE.read_text()), declared_requirements(PYPROJECT_FILE.read_text(), *extras))
    return requirements_text(packages)
