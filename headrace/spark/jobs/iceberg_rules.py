"""Rules of the Iceberg lake: names of tables, their columns, and the batch that a table records. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.spark.jobs.json_fields import quoted_ddl

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
