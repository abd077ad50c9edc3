"""The Spark connector: streams as tables of events, read and written exactly once, on Spark 3.5 and later.

    from headrace.spark import register
    register(spark)
    events = spark.read.format("headrace").options(controller=url, scope="s", stream="t").load()
    events.select("event").write.format("headrace").mode("append").options(controller=url, scope="s", stream="u").save()

Spark 3.5 has no data sources in Python: there, and in programs for both, use `read_batch`, `read_stream`, `write_batch`
and `write_events`.

Needs pyspark, pyarrow and numpy (the extra `headrace[spark]`; Glue and EMR bring pyspark).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.engines.catch_up import run_until_caught_up
from headrace.spark.engines.dead_letters import dead_letters, good_records, with_dead_letters
from headrace.spark.engines.functions import read_batch, read_stream
from headrace.spark.engines.session import has_data_source, register
from headrace.spark.engines.write_functions import write_batch, write_events
from headrace.spark.written_batches import WrittenBatch

if TYPE_CHECKING:
    from headrace.spark.engines.data_source import HeadraceDataSource

__all__ = [
    "HeadraceDataSource",
    "WrittenBatch",
    "dead_letters",
    "good_records",
    "has_data_source",
    "read_batch",
    "read_stream",
    "register",
    "run_until_caught_up",
    "with_dead_letters",
    "write_batch",
    "write_events",
]


def __getattr__(name: str) -> object:
    """The data source is a class of Spark 4's interface, which 3.5 does not have."""
    if name == "HeadraceDataSource":
        from headrace.spark.engines.data_source import HeadraceDataSource

        return HeadraceDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
