"""The Spark connector: streams as tables of events, in batches and micro-batches, on Spark 4.0 and later.

    from headrace.spark import register
    register(spark)
    events = spark.read.format("headrace").options(controller=url, scope="s", stream="t").load()

Needs pyspark, pyarrow and numpy (the extra `headrace[spark]`; Glue and EMR bring pyspark). Reads only.
"""

from __future__ import annotations

from headrace.spark.catch_up import run_until_caught_up
from headrace.spark.data_source import HeadraceDataSource, register

__all__ = ["HeadraceDataSource", "register", "run_until_caught_up"]
