"""Bad records as dead letters: events for a stream of their own, each with its place, the reason and the bytes.

A read cannot write them: it has no commit, and Spark repeats tasks and computes a DataFrame as often as it likes. So
the read keeps bad records in a column, and the sink commits them, once for each batch of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.model.errors import InvalidRequestError
from headrace.spark.engines.write_functions import write_batch
from headrace.spark.event_schemas import quoted_name
from headrace.spark.options import CORRUPT_COLUMN_DEFAULT, REASON_SUFFIX
from headrace.spark.write_options import write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LETTER_EVENT_BYTES_MAX: Final = 5 * 1024 * 1024
"""A larger event is not in its letter, which would have more bytes in base64 than a transaction takes."""

WRITER_ID: Final = "dead-letters"
_PLACE: Final = ("scope", "stream", "segment_id", "offset")

Handle = Callable[["DataFrame", int], None]


def good_records(rows: DataFrame, *, corrupt_column: str = CORRUPT_COLUMN_DEFAULT) -> DataFrame:
    """The rows without bad records, and without the columns for them.

    `rows` were read with `on_bad_record=column`, as JSON or as text.

    Raises:
        InvalidRequestError: the columns of bad records are missing.
    """
    _check(rows, corrupt_column, ())
    reason = corrupt_column + REASON_SUFFIX
    return rows.where(rows[quoted_name(reason)].isNull()).drop(corrupt_column, reason)


def dead_letters(rows: DataFrame, *, corrupt_column: str = CORRUPT_COLUMN_DEFAULT) -> DataFrame:
    """The bad records among the rows as events for the sink: the columns `event` and `routing_key`.

    A letter is a JSON object with the schema `scope string, stream string, segment_id bigint, offset bigint, reason
    string, event_bytes bigint, event binary`. Binary is base64, as `event_format=json` reads it. `event` is missing if
    it has more than 5 MiB; it is still at its place until that is truncated.

    Raises:
        InvalidRequestError: the columns of bad records, or of their places, are missing.
    """
    from pyspark.sql import functions as F

    _check(rows, corrupt_column, _PLACE)
    event, reason = rows[quoted_name(corrupt_column)], rows[quoted_name(corrupt_column + REASON_SUFFIX)]
    size = F.octet_length(event)
    fields = [
        *(rows[name] for name in _PLACE),
        reason.alias("reason"),
        size.cast("bigint").alias("event_bytes"),
        F.when(size <= LETTER_EVENT_BYTES_MAX, event).alias("event"),
    ]
    key = F.concat_ws("/", rows["scope"], rows["stream"], rows["segment_id"].cast("string"))
    letters = rows.where(reason.isNotNull())
    return letters.select(F.to_json(F.struct(*fields)).alias("event"), key.alias("routing_key"))


def with_dead_letters(
    handle: Handle, options: Mapping[str, str], *, corrupt_column: str = CORRUPT_COLUMN_DEFAULT
) -> Handle:
    """A function for `foreachBatch` which writes the bad records to a stream, and gives the others to `handle`.

    `options` are those of the sink, with the stream of the dead letters. Each letter is written exactly once, as
    `write_batch` writes, before `handle` is called. The batch is persisted meanwhile, so that it is read once.

    Raises:
        InvalidRequestError: an option is wrong. The function raises it if columns are missing.
        HeadraceError: raised by the function, see `write_batch`.
    """
    sink = {"writer_id": WRITER_ID, **{name.lower(): value for name, value in options.items()}}
    write_options(sink, streaming=True)

    def divide(rows: DataFrame, batch_id: int) -> None:
        letters = dead_letters(rows, corrupt_column=corrupt_column)
        rows.persist()
        try:
            write_batch(letters, batch_id, sink)
            handle(good_records(rows, corrupt_column=corrupt_column), batch_id)
        finally:
            rows.unpersist()

    return divide


def _check(rows: DataFrame, corrupt_column: str, place: tuple[str, ...]) -> None:
    missing = [name for name in (corrupt_column, corrupt_column + REASON_SUFFIX, *place) if name not in rows.columns]
    if missing:
        raise InvalidRequestError(
            f"the rows have no column {missing[0]!r}: read with event_format=json or text and on_bad_record=column,"
            f" and keep the columns {', '.join((corrupt_column, corrupt_column + REASON_SUFFIX, *place))}",
            code="invalid_columns",
        )
