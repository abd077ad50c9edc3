"""What the connector takes from a Spark session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.model.errors import InvalidRequestError
from headrace.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTER_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""The setting with which Spark 4.1 and later hand filters to Python data sources."""


def has_data_source(spark: SparkSession) -> bool:
    """Whether this Spark takes data sources written in Python: 4.0 and later."""
    return hasattr(spark, "dataSource")


def with_session_defaults(spark: SparkSession, options: ReadOptions) -> ReadOptions:
    """The options, where those that were not given follow the session."""
    return replace(options, parallelism=options.parallelism or spark.sparkContext.defaultParallelism)


def register(spark: SparkSession) -> None:
    """Makes `format("headrace")` known to a session of Spark 4.0 or later. Doing it again does no harm.

    Raises:
        InvalidRequestError: code "engine_too_old": this is an older Spark.
    """
    if not has_data_source(spark):
        raise InvalidRequestError(
            f"Spark {spark.version} has no data sources in Python: read with headrace.spark.read_batch and read_stream",
            code="engine_too_old",
        )
    from headrace.spark.engines.data_source import HeadraceDataSource

    # The data source works in processes that do not know the session, so what they need of it travels with the class.

    class Registered(HeadraceDataSource):
        parallelism = spark.sparkContext.defaultParallelism
        filter_pushdown = spark.conf.get(FILTER_PUSHDOWN, "false") == "true"

    spark.dataSource.register(Registered)
