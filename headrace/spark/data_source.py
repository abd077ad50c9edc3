"""`spark.read.format("headrace")` and `spark.readStream.format("headrace")` for Spark 4.0 and later.

Thin: options in, readers out. Reading only; `df.write` and `df.writeStream` are refused with a clear error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from headrace.model.errors import InvalidRequestError
from headrace.spark.batch import HeadraceBatchReader
from headrace.spark.micro_batch import HeadraceStreamReader
from headrace.spark.options import ReadOptions, read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HeadraceDataSource(DataSource):
    """A stream as a table of events, ordered by (segment_id, offset) per routing key."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        return self._checked().ddl()

    def reader(self, schema: StructType) -> HeadraceBatchReader:
        return HeadraceBatchReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> HeadraceStreamReader:
        return HeadraceStreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise _no_writing()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise _no_writing()

    def _checked(self, schema: StructType | None = None) -> ReadOptions:
        options = read_options(self.options)
        if schema is not None and _columns(schema) != options.column_types():
            raise InvalidRequestError(
                f"the schema {schema.simpleString()} is not what the options give, {options.ddl()}: choose columns with"
                " the options 'columns' and 'event_format', and convert with select()",
                code="invalid_option",
            )
        return options


def register(spark: SparkSession) -> None:
    """Makes `format("headrace")` known to a session. Doing it again does no harm."""
    spark.dataSource.register(HeadraceDataSource)


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _no_writing() -> InvalidRequestError:
    return InvalidRequestError(
        "this connector reads only: write events with headrace.client, for example in foreachPartition",
        code="writing_unsupported",
    )
