"""One Spark session per test process, and a stream with its stores for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark_store_double import StoreDouble


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, on loopback, that leaves nothing in the working directory."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    directory = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory} -Djava.io.tmpdir={directory}",
    }
    builder = SparkSession.builder.master("local[2]").appName("headrace-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def store() -> Iterator[StoreDouble]:
    """A stream of two segments, all of it in tier 2 unless the test says otherwise."""
    from spark_store_double import StoreDouble, serving
    from spark_stream_double import StreamDouble

    with serving(StoreDouble(StreamDouble([(0.0, 0.5), (0.5, 1.0)]))) as double:
        yield double
