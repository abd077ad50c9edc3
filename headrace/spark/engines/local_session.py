"""Local Spark sessions of tests and benchmarks: on loopback, with all files in one directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES: Final = 2


def local_settings(directory: Path) -> dict[str, str]:
    """The settings of a session that is reachable from this machine only and keeps its files in the directory."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory} -Djava.io.tmpdir={directory}",
    }


def local_environment() -> dict[str, str]:
    """The variables with which Spark runs this Python and binds to loopback."""
    return {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def submit_arguments(directory: Path) -> str:
    """The variable PYSPARK_SUBMIT_ARGS for a program that makes its session itself."""
    given = " ".join(f'--conf "{name}={value}"' for name, value in local_settings(directory).items())
    return f"--master local[{CORES}] {given} pyspark-shell"


def local_session(
    directory: Path,
    name: str,
    *,
    attempts_max: int = 1,
    log_level: str = "OFF",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session of this process with two cores. A task that fails is repeated until it has had `attempts_max` attempts.

    `settings` are added to those of `local_settings`. Stop the session when done.
    """
    os.environ.update(local_environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES},{attempts_max}]").appName(name)
    for setting, value in (local_settings(directory) | dict(settings or {})).items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session
