"""`spark.read.format("headrace")` and `spark.readStream.format("headrace")` for Spark 4.0 and later.

Thin: options in, readers and writers out.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from headrace.model.errors import InvalidRequestError
from headrace.spark.engines.batch_reader import HeadraceBatchReader, HeadraceMetadataReader
from headrace.spark.engines.data_writers import (
    HeadraceBatchWriter,
    HeadraceRowStreamWriter,
    open_batch_writer,
    open_stream_writer,
)
from headrace.spark.engines.stream_reader import HeadraceStreamReader
from headrace.spark.metadata_tables import asks_for_metadata, metadata_options
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.python_workers import exempt_imports
from headrace.spark.write_options import write_options


class HeadraceDataSource(DataSource):
    """A stream as a table of events, ordered by (segment_id, offset) per routing key."""

    parallelism: int | None = None
    """The cores of the session that the class was registered with."""

    filter_pushdown: bool = False
    """Whether that session hands filters to Python data sources."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> str:
        if asks_for_metadata(self.options):
            return metadata_options(self.options).ddl()
        return self._checked().ddl()

    def reader(self, schema: StructType) -> HeadraceBatchReader | HeadraceMetadataReader:
        if asks_for_metadata(self.options):
            table = metadata_options(self.options)
            _check_schema(schema, table.column_types(), table.ddl())
            return HeadraceMetadataReader(table)
        options = self._checked(schema)
        pushdown = self.filter_pushdown if options.filter_pushdown is None else options.filter_pushdown
        return _filtering_reader(options) if pushdown else HeadraceBatchReader(options)

    def streamReader(self, schema: StructType) -> HeadraceStreamReader:
        return HeadraceStreamReader(self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> HeadraceBatchWriter:
        options = write_options(self.options, streaming=False)
        return open_batch_writer(options, _columns(schema), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeadraceRowStreamWriter:
        options = write_options(self.options, streaming=True)
        return open_stream_writer(options, _columns(schema), overwrite=overwrite)

    def _checked(self, schema: StructType | None = None) -> ReadOptions:
        exempt_imports()  # the processes that plan collect after each query, too
        options = read_options(self.options)
        if schema is not None:
            _check_schema(schema, options.column_types(), options.ddl())
        return replace(options, parallelism=options.parallelism or self.parallelism)


def _filtering_reader(options: ReadOptions) -> HeadraceBatchReader:
    try:
        from headrace.spark.engines.filtering_reader import HeadraceFilteringReader
    except ImportError as error:
        raise InvalidRequestError(
            "option 'filter_pushdown': Spark 4.1 is the first version with filters for Python data sources",
            code="engine_too_old",
        ) from error
    return HeadraceFilteringReader(options)


def _check_schema(schema: StructType, types: list[tuple[str, str]], ddl: str) -> None:
    if _columns(schema) != types:
        raise InvalidRequestError(
            f"the schema {schema.simpleString()} is not what the options give, {ddl}: choose columns of events with"
            " the options 'columns' and 'event_format', and convert with select()",
            code="invalid_option",
        )


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
