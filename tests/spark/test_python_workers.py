"""Spark's Python workers do not walk imported objects after each task; other processes are left alone."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.spark import python_workers
from headrace.spark.python_workers import exempt_imports, shared_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECTS_OF_IMPORTS_MIN = 20_000

AS_A_WORKER = """
import gc, json, sys, weakref
from importlib.machinery import ModuleSpec
from headrace.spark.python_workers import exempt_imports

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
gc.disable()
earlier = cycle()
exempt_imports()
exempted = gc.get_freeze_count()
later = cycle()
exempt_imports()
gc.collect()
print(json.dumps([earlier() is None, later() is None, exempted > 0, gc.get_freeze_count() <= exempted]))
"""


def test_garbage_before_and_after_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", AS_A_WORKER], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, True, True, True]


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    before = gc.get_freeze_count()
    exempt_imports()
    assert gc.get_freeze_count() == before


def test_imports_are_exempt_in_a_worker_of_spark(spark: SparkSession) -> None:
    def exempted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import pyarrow

        from headrace.spark.python_workers import shared_client

        shared_client("http://127.0.0.1:1", None, 1.0)
        for batch in batches:
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array([gc.get_freeze_count()] * batch.num_rows)], ["found"])

    rows = spark.range(0, 1, 1, 1).mapInArrow(exempted, "found long").collect()
    assert rows[0]["found"] > OBJECTS_OF_IMPORTS_MIN


def test_each_network_has_a_client_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """One that was made for the network of the stores would give addresses that a client outside does not reach."""
    monkeypatch.setattr(python_workers, "_clients", {})
    inside = shared_client("http://127.0.0.1:1", None, 1.0, "vpc")
    outside = shared_client("http://127.0.0.1:1", None, 1.0, "external")
    with inside.client, outside.client:
        assert inside is not outside
        assert shared_client("http://127.0.0.1:1", None, 1.0, "external") is outside
