#!/usr/bin/env python3
"""Builds what Glue and EMR Serverless need for a job into build/spark: the library, its pins, and EMR's archive.

    .venv/bin/python scripts/build_spark_archives.py [--python 3.11] [--platform aarch64-manylinux_2_28]

The options are those of the EMR archive. docs/using/jobs-on-aws.md says what to do with the files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from infra.packaging.spark_archive import (  # noqa: E402
    EMR_PLATFORM,
    EMR_PYTHON_VERSION,
    write_emr_archive,
    write_spark_archive,
    write_spark_requirements,
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=EMR_PYTHON_VERSION)
    parser.add_argument("--platform", default=EMR_PLATFORM)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "spark")
    options = parser.parse_args(argv)
    directory: Path = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    write_spark_archive(directory / "headrace.zip")
    write_spark_requirements(directory / "requirements.txt")
    write_emr_archive(directory / "emr-environment.tar.gz", python_version=options.python, platform=options.platform)
    for file in sorted(directory.iterdir()):
        print(f"{file.stat().st_size:>12,} bytes  {file}")


if __name__ == "__main__":
    main()
