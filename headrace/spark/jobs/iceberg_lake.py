"""A stream of JSON objects as an Iceberg table: new fields become columns, bad records go to a second table.

The tables are written one after the other, rows first, and each records the batch itself (`iceberg_table.py`). After a
crash between the two, the repeated batch finds its rows, and adds what the quarantine lacks. The rows name the schema
that they were classified by, and the quarantine uses the same one: so each event is in exactly one of the tables, even
if columns were added between the crash and the repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from headrace.adapters.system_clock import SystemClock
from headrace.model.errors import InvalidRequestError
from headrace.spark.jobs.batch_table import query_of
from headrace.spark.jobs.iceberg_table import (
    METADATA_COLUMNS,
    IcebergTable,
    StagedBatch,
    checked_table_name,
    create_statement,
    field_columns,
)
from headrace.spark.jobs.json_records import QUARANTINE_COLUMNS, quarantined
from headrace.spark.jobs.lake_records import (
    DATE_COLUMN,
    PLACE_COLUMNS,
    RESERVED,
    LakeCounts,
    lake_rows,
    strictly_classified,
    write_with_new_fields,
)
from headrace.spark.written_batches import is_repetition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUARANTINE_SUFFIX: Final = "_quarantine"
_RESERVED = (*RESERVED, *METADATA_COLUMNS)
_HOUR_MS: Final = 3600 * 1000


class IcebergLake:
    """The writer of a table and its quarantine; `write` is for `foreachBatch`. Missing tables are created.

    `columns` are names and types of fields to begin with, others are added when they appear. `date_field` divides the
    rows by days of the column `_date`. Small files are combined with each `compact_every`-th batch; then snapshots that
    are older than `keep_snapshots_h` hours are removed, too.

    Raises:
        InvalidRequestError: a name or a number is wrong, or the table has other partitions or types of columns.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        *,
        quarantine_table: str | None = None,
        columns: Mapping[str, str] | None = None,
        date_field: str | None = None,
        compact_every: int | None = None,
        keep_snapshots_h: int | None = None,
    ) -> None:
        self.counts = LakeCounts()
        self.table = checked_table_name(table)
        self.quarantine_table = checked_table_name(quarantine_table or table + QUARANTINE_SUFFIX)
        if self.quarantine_table.lower() == self.table.lower():
            raise InvalidRequestError(
                "the quarantine must be another table than that of the rows", code="invalid_table"
            )
        for name, value in (("compact_every", compact_every), ("keep_snapshots_h", keep_snapshots_h)):
            if value is not None and value < 1:
                raise InvalidRequestError(f"{name} must be at least 1, not {value}", code="invalid_argument")
        if keep_snapshots_h is not None and compact_every is None:
            raise InvalidRequestError("keep_snapshots_h needs compact_every", code="invalid_argument")
        self._date_field = date_field
        self._compact_every = compact_every
        self._keep_snapshots_h = keep_snapshots_h
        self._job_columns = dict.fromkeys(PLACE_COLUMNS, "long") | ({DATE_COLUMN: "date"} if date_field else {})
        self._prepare(spark, columns or {})

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Add a micro-batch with the columns event, segment_id and offset, once.

        Raises:
            IllegalStateError: code "later_batch_committed": the checkpoint is older than the tables.
        """
        spark, query = events.sparkSession, query_of(events)
        rows, refused = IcebergTable(spark, self.table), IcebergTable(spark, self.quarantine_table)
        has_refused = True
        if not _has_batch(rows, query, batch_id):
            has_refused = self._add_rows(rows, events, query, batch_id)
        if has_refused and not _has_batch(refused, query, batch_id):
            self._add_refused(rows, refused, events, query, batch_id)
        if self._compact_every is not None and (batch_id + 1) % self._compact_every == 0:
            for table in (rows, refused):
                self._maintain(table)

    def _add_rows(self, table: IcebergTable, events: DataFrame, query: str, batch_id: int) -> bool:
        """Add the rows of a batch; whether it has events for the quarantine, or may have them."""
        has_bad = True

        def write() -> StagedBatch:
            nonlocal has_bad
            schema, staging = table.schema(), ""
            known = self._fields(table, schema.columns)

            def stage(records: DataFrame, fields: Mapping[str, str]) -> None:
                nonlocal schema, staging
                added = {name: type_ for name, type_ in fields.items() if name not in known}
                if added:
                    table.add_columns(added)
                    known.update(added)
                    schema = table.schema()
                staging = table.stage(self._rows(records, fields), query, batch_id)

            done = write_with_new_fields(events, dict(known), _RESERVED, stage)
            has_bad = done.has_bad
            return StagedBatch(staging if done.has_good else None, schema.schema_id)

        added = table.add_batch(query, batch_id, write)
        self.counts.rows += added or 0
        return has_bad or added is None

    def _add_refused(
        self, rows: IcebergTable, table: IcebergTable, events: DataFrame, query: str, batch_id: int
    ) -> None:
        """Add the bad records, by the schema that the rows of the batch record."""
        committed = rows.committed(query)
        assert committed is not None
        is_repetition(batch_id, committed.batch)  # another run may have gone on
        fields = self._fields(rows, rows.schema(committed.schema_id).columns)
        bad = quarantined(strictly_classified(events, fields, _RESERVED)).coalesce(1)
        schema_id = table.schema().schema_id
        added = table.add_batch(query, batch_id, lambda: StagedBatch(table.stage(bad, query, batch_id), schema_id))
        self.counts.quarantined += added or 0

    def _rows(self, records: DataFrame, fields: Mapping[str, str]) -> DataFrame:
        rows = lake_rows(records, fields, self._date_field)
        if self._date_field is None:
            return rows
        return rows.withColumn(DATE_COLUMN, F.expr(f"try_cast({DATE_COLUMN} AS date)"))  # 2026-02-30 has no date

    def _fields(self, table: IcebergTable, columns: Mapping[str, str]) -> dict[str, str]:
        return field_columns(table.name, columns, self._job_columns)

    def _maintain(self, table: IcebergTable) -> None:
        table.compact()
        if self._keep_snapshots_h is not None:
            table.expire_snapshots(SystemClock().now_ms() - self._keep_snapshots_h * _HOUR_MS)

    def _prepare(self, spark: SparkSession, wanted: Mapping[str, str]) -> None:
        """Create missing tables, check those that exist, and add the wanted columns."""
        created = PLACE_COLUMNS | dict(wanted) | ({DATE_COLUMN: "date"} if self._date_field else {})
        if refused := {name.lower() for name in wanted} & {name.lower() for name in _RESERVED}:
            raise InvalidRequestError(f"columns cannot be named {', '.join(sorted(refused))}", code="invalid_columns")
        partitions = f"days({DATE_COLUMN})" if self._date_field else None
        spark.sql(create_statement(self.table, created, partitions=partitions))
        spark.sql(create_statement(self.quarantine_table, QUARANTINE_COLUMNS))
        table = IcebergTable(spark, self.table)
        columns = table.schema().columns
        if (DATE_COLUMN in columns) != (self._date_field is not None):
            raise InvalidRequestError(
                f"{self.table} was begun " + ("with" if DATE_COLUMN in columns else "without") + " a division by date",
                code="other_partitions",
            )
        fields = self._fields(table, columns)
        for name, type_ in wanted.items():
            if fields.get(name, type_) != type_:
                raise InvalidRequestError(
                    f"the column {name!r} is {fields[name]} in {self.table}, not {type_}", code="other_column_type"
                )
        if missing := {name: type_ for name, type_ in wanted.items() if name not in fields}:
            table.add_columns(missing)
        refused_columns = IcebergTable(spark, self.quarantine_table).schema().columns
        types = {"bigint": "long"}
        field_columns(
            self.quarantine_table, refused_columns, {n: types.get(t, t) for n, t in QUARANTINE_COLUMNS.items()}
        )


def _has_batch(table: IcebergTable, query: str, batch_id: int) -> bool:
    committed = table.committed(query)
    return is_repetition(batch_id, None if committed is None else committed.batch)
