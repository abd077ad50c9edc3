"""A stream of JSON objects as an Iceberg table: new fields become columns, bad records go to a second table.

The tables are written one after the other, rows first, and each records the batch itself. After a crash between the
two, the repeated batch finds its rows, and adds what the quarantine lacks. The rows name the schema that they were
classified by, and the quarantine uses the same one: so each event is in exactly one of the tables, even if columns were
added between the crash and the repetition.

Micro-batches are added to a table exactly once. A batch is first staged: Iceberg writes a snapshot that is not in the
table's history (write-audit-publish). One commit then makes this snapshot the current one and sets a property of the
table, `headrace.batch.<query id>`, to the number of the batch. The commit replaces exactly the metadata that was
checked, so of two runs with the same batch one fails. Properties do not expire, and compaction keeps them. Spark's own
appends would check nothing and have no property.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from headrace.adapters.system_clock import SystemClock
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError, InvalidRequestError
from headrace.spark.jobs.batch_table import query_of
from headrace.spark.jobs.json_records import QUARANTINE_COLUMNS, quarantined, quoted_ddl
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


# Rules of the Iceberg lake: names of tables, their columns, and the batch that a table records. Pure.

BATCH_PROPERTY = "headrace.batch."
"""With the query's id: the property of a table that names the last batch of the query in the table."""
QUERY_ID_SUMMARY = "headrace.query-id"
BATCH_ID_SUMMARY = "headrace.batch-id"
"""In the summary of each snapshot, for people. Snapshots expire, so the job itself does not use them."""

METADATA_COLUMNS = (
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
    "_change_type", "_change_ordinal", "_commit_snapshot_id",
)  # fmt: skip
"""Iceberg's own columns: a table with a column of such a name cannot be read."""

_SPARK_TYPES = {"boolean": "boolean", "long": "bigint", "double": "double", "string": "string"}
_TABLE_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){2,}")


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The last batch of a query in a table, and the id of the schema by which its events were classified."""

    batch: int
    schema_id: int

    def to_json(self) -> str:
        return json.dumps({"batch": self.batch, "schema": self.schema_id})

    @classmethod
    def from_json(cls, text: str) -> CommittedBatch:
        """The batch that `to_json` wrote. Raises CorruptError if the text is something else."""
        try:
            body = json.loads(text)
            batch, schema_id = body["batch"], body["schema"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"a property {BATCH_PROPERTY}* of the table cannot be read: {error!r}") from error
        if not (type(batch) is int and type(schema_id) is int and batch >= 0):
            raise CorruptError(f"a property {BATCH_PROPERTY}* of the table has other values than numbers: {text!r}")
        return cls(batch, schema_id)


def checked_table_name(text: str) -> str:
    """The name, if it has a catalog, a database and a table, of letters, digits and underscores.

    Raises:
        InvalidRequestError: code "invalid_table".
    """
    if not _TABLE_NAME.fullmatch(text):
        raise InvalidRequestError(
            f"{text!r} is not a table: give catalog.database.table, of letters, digits and underscores",
            code="invalid_table",
        )
    return text


def field_columns(table: str, columns: Mapping[str, str], job_columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of fields, in Spark's types, among all columns of a table in Iceberg's types.

    `job_columns` are names and Iceberg types of the columns that the table must have in addition.

    Raises:
        InvalidRequestError: code "other_table": the table lacks a column of the job; code "other_column_type": a
            column has a type that the job does not write.
    """
    for name, type_ in job_columns.items():
        if columns.get(name) != type_:
            raise InvalidRequestError(
                f"{table} has no column {name!r} of type {type_}: let the job create the table, or add the column",
                code="other_table",
            )
    fields = {name: type_ for name, type_ in columns.items() if name not in job_columns}
    for name, type_ in fields.items():
        if type_ not in _SPARK_TYPES:
            raise InvalidRequestError(
                f"the column {name!r} of {table} is {type_}: the job writes {', '.join(_SPARK_TYPES)}",
                code="other_column_type",
            )
    return {name: _SPARK_TYPES[type_] for name, type_ in fields.items()}


def create_statement(table: str, columns: Mapping[str, str], *, partitions: str | None = None) -> str:
    """Spark's statement for a table that snapshots can be staged in (`write.wap.enabled`), if there is none."""
    divided = f" PARTITIONED BY ({partitions})" if partitions else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {table} ({quoted_ddl(columns)}) USING iceberg{divided}"
        " TBLPROPERTIES ('format-version'='2', 'write.wap.enabled'='true')"
    )


ATTEMPTS_MAX: Final = 5
"""How often a batch is written, or its commit tried, if other writers change the table in between."""
_WAP_ENABLED = "write.wap.enabled"
_WAP_ID_SETTING = "spark.wap.id"
_WAP_ID_SUMMARY = "wap.id"
_MAIN = "main"
_COMMIT_FAILED = "org.apache.iceberg.exceptions.CommitFailedException"


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table by Iceberg's types, and the id of this schema in the table's history."""

    schema_id: int
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch that was written but not published: the id of its staging, None if there are no rows."""

    staging: str | None
    schema_id: int


class IcebergTable:
    """One table that exists; one object is for one session and thread."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = checked_table_name(name)
        self._spark = spark
        session: Any = spark
        self._session = session._jsparkSession
        self._jvm: Any = session.sparkContext._jvm
        self._iceberg: Any = self._jvm.org.apache.iceberg
        try:
            self._table = self._iceberg.spark.Spark3Util.loadIcebergTable(self._session, name)
        except TypeError as error:  # py4j takes an unknown class for a package
            raise IllegalStateError(
                "the session has no Iceberg: add iceberg-spark-runtime for this version of Spark to its jars",
                code="no_iceberg",
            ) from error
        self._operations = self._table.operations()

    def committed(self, query_id: str) -> CommittedBatch | None:
        """The last batch of a query in the table, as of now."""
        return _committed(self._operations.refresh(), query_id)

    def schema(self, schema_id: int | None = None) -> TableSchema:
        """The current schema, or a former one.

        Raises:
            IllegalStateError: the former schema is no longer in the table's metadata.
        """
        metadata = self._operations.refresh()
        wanted = metadata.currentSchemaId() if schema_id is None else schema_id
        schema = metadata.schemasById().get(wanted)
        if schema is None:
            raise IllegalStateError(
                f"{self.name} no longer has its schema {wanted}, by which the last batch was classified: it was removed"
                " between a crash and this run. Continue with a new checkpoint, which adds all events that it reads",
                code="schema_removed",
            )
        return TableSchema(wanted, {column.name(): column.type().toString() for column in schema.columns()})

    def add_columns(self, columns: Mapping[str, str]) -> None:
        """Add columns with Spark's types, in one change."""
        self._spark.sql(f"ALTER TABLE {self.name} ADD COLUMNS ({quoted_ddl(columns)})")

    def stage(self, rows: DataFrame, query_id: str, batch_id: int) -> str:
        """Write rows to a snapshot that no reader sees; the id of the staging."""
        if self._operations.refresh().properties().get(_WAP_ENABLED) != "true":
            self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_WAP_ENABLED}'='true')")
        staging = f"headrace-{secrets.token_hex(8)}"
        writer = rows.writeTo(self.name)
        for name, value in ((QUERY_ID_SUMMARY, query_id), (BATCH_ID_SUMMARY, str(batch_id))):
            writer = writer.option(f"snapshot-property.{name}", value)
        self._spark.conf.set(_WAP_ID_SETTING, staging)
        try:
            writer.append()
        finally:
            self._spark.conf.unset(_WAP_ID_SETTING)  # a later read of the session would see the staged rows
        return staging

    def add_batch(self, query_id: str, batch_id: int, write: Callable[[], StagedBatch]) -> int | None:
        """Stage a batch with `write` and publish it; the rows, or None if another run published the batch meanwhile.

        Raises:
            ConflictError: the table changed again and again between the two steps.
            IllegalStateError: a later batch of the query is in the table.
        """
        for _ in range(ATTEMPTS_MAX):
            staged = write()
            try:
                return self._publish(query_id, batch_id, staged)
            except ConflictError:
                continue  # the staged snapshot does not follow the current one; expire_snapshots removes its files
        raise ConflictError(f"other writers changed {self.name} during {ATTEMPTS_MAX} attempts to add a batch")

    def compact(self) -> None:
        """Combine small files into large ones (Iceberg's rewrite_data_files)."""
        self._table.refresh()  # the session's catalog may have handed out a table from its cache
        self._actions().rewriteDataFiles(self._table).execute()
        self._spark.catalog.refreshTable(self.name)

    def expire_snapshots(self, older_than_ms: int) -> None:
        """Remove snapshots from before a time in milliseconds since 1970, except the current one, and their files."""
        self._table.refresh()
        self._actions().expireSnapshots(self._table).expireOlderThan(older_than_ms).retainLast(1).execute()
        self._spark.catalog.refreshTable(self.name)

    def _publish(self, query_id: str, batch_id: int, staged: StagedBatch) -> int | None:
        """Commit a staged batch; the rows, or None if another run has published the batch.

        Raises the errors of `add_batch`: ConflictError if the batch must be staged again.
        """
        for _ in range(ATTEMPTS_MAX):
            base = self._operations.refresh()
            committed = _committed(base, query_id)
            if is_repetition(batch_id, None if committed is None else committed.batch):
                return None
            rows = 0
            changed = self._iceberg.TableMetadata.buildFrom(base)
            if staged.staging is not None:
                snapshot = self._staged_snapshot(base, staged.staging)
                if snapshot.parentId() != _current_id(base):
                    raise ConflictError(f"{self.name} changed while a batch was staged")
                changed = changed.setBranchSnapshot(snapshot.snapshotId(), _MAIN)
                rows = int(snapshot.summary().get("added-records") or 0)
            properties = self._jvm.java.util.HashMap()
            properties.put(BATCH_PROPERTY + query_id, CommittedBatch(batch_id, staged.schema_id).to_json())
            try:
                self._operations.commit(base, changed.setProperties(properties).build())
            except Py4JJavaError as error:
                if str(error.java_exception.getClass().getName()) != _COMMIT_FAILED:
                    raise  # the outcome is not known: the batch that Spark repeats finds it
                continue
            self._spark.catalog.refreshTable(self.name)
            return rows
        raise ConflictError(f"other writers changed {self.name} during {ATTEMPTS_MAX} commits")

    def _staged_snapshot(self, metadata: Any, staging: str) -> Any:
        snapshots = metadata.snapshots()
        for index in range(snapshots.size() - 1, -1, -1):  # it is one of the newest
            if snapshots.get(index).summary().get(_WAP_ID_SUMMARY) == staging:
                return snapshots.get(index)
        raise IllegalStateError(
            f"{self.name} does not have the snapshot that was staged: was {_WAP_ENABLED} switched off, or did"
            " expire_snapshots run with a time that is not over?",
            code="staged_snapshot_missing",
        )

    def _actions(self) -> Any:
        return self._iceberg.spark.actions.SparkActions.get(self._session)


def _committed(metadata: Any, query_id: str) -> CommittedBatch | None:
    text = metadata.properties().get(BATCH_PROPERTY + query_id)
    return None if text is None else CommittedBatch.from_json(text)


def _current_id(metadata: Any) -> int | None:
    current = metadata.currentSnapshot()
    return None if current is None else current.snapshotId()


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
