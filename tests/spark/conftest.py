"""One Spark session per test process, and a stream with its stores for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shared_stack import shared_stack
from sink_world import SinkWorld

from headrace.client import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark_store_double import StoreDouble


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores, on loopback, that leaves nothing in the working directory."""
    from iceberg_support import ICEBERG_JAR

    from headrace.spark.engines.local_session import local_session

    has_iceberg = ICEBERG_JAR is not None and ICEBERG_JAR.exists()
    settings = {"spark.jars": str(ICEBERG_JAR)} if has_iceberg else {}
    # As on a cluster, where the history server shows the plans of all queries.
    settings |= {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": tmp_path_factory.mktemp("events").as_uri(),
    }
    session = local_session(tmp_path_factory.mktemp("spark"), "headrace-tests", settings=settings)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_connections_are_left() -> Iterator[None]:
    """Closes what tasks that a test ran in its own process would keep as long as that lasts."""
    yield
    from headrace.spark import python_workers, task_reads

    for reads in task_reads._reads.values():
        reads.close()
    for shared in python_workers._clients.values():
        shared.client.close()
    task_reads._reads.clear()
    python_workers._clients.clear()


@pytest.fixture
def store() -> Iterator[StoreDouble]:
    """A stream of two segments, all of it in tier 2 unless the test says otherwise."""
    from spark_store_double import StoreDouble, serving
    from spark_stream_double import StreamDouble

    with serving(StoreDouble(StreamDouble([(0.0, 0.5), (0.5, 1.0)]))) as double:
        yield double


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """One local stack for all tests that need a real one."""
    with shared_stack(tmp_path_factory.mktemp("stack"), segment_stores=1) as state:
        yield state


@pytest.fixture
def world(stack: dict[str, Any]) -> Iterator[SinkWorld]:
    """A scope on the local stack."""
    url = stack["endpoints"]["http"]
    with connect(url) as client:
        yield SinkWorld(client, url, f"sink-{secrets.token_hex(4)}")


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session of all tests, in which `format("headrace")` is known: on Spark 4.0 and later."""
    pytest.importorskip("pyspark.sql.datasource", reason="Spark 3.5 has no data sources in Python")
    from headrace.spark import register

    register(spark)
    return spark


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"
