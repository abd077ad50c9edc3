"""A task's half of a write: events go to outputs that the task opens itself, and its report names what to commit.

Each attempt begins transactions of its own, one for each stream, at the first row for that stream. So attempts that are
repeated or run twice do not disturb one another, and a task without rows begins none.

The commit of a batch aborts the transactions of its other attempts. One of them may begin a transaction afterwards: a
copy that speculation started, a slow attempt that has a copy, or one on an executor that was lost. So these ask again
after their begin. A transaction that is missed nevertheless is aborted by the next commit of the query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_BYTES_MAX_LARGE
from headrace.spark.sink_access import EventOutput, OpenTransaction, OpenWriter, SinkAccess
from headrace.spark.write_columns import split_by_stream
from headrace.spark.write_options import WriteOptions
from headrace.spark.written_batches import BatchName, TaskReport, is_repetition

SLOW_S: Final = 5.0
"""From the start of an attempt to its begin of a transaction: then it may have a copy that was faster."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt at one partition of a batch. `number` counts the attempts at the partition from 0."""

    batch: BatchName
    partition: int
    attempt: int
    number: int = 0


def write_task(
    access: SinkAccess,
    options: WriteOptions,
    attempt: TaskAttempt,
    batches: Iterable[pa.RecordBatch],
    is_repeated: Callable[[], bool],
    *,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> TaskReport:
    """Writes the rows, waits until they are durable, and leaves the transactions open for the driver's commit.

    `is_repeated` tells whether the batch was committed before; it is asked once, before the first row is written. All
    rows are then taken from Spark nevertheless, which not all versions of Spark survive otherwise.

    Raises:
        InvalidRequestError: a row cannot be written.
        HeadraceError: an error of the client. The transactions are aborted if that is possible.
    """
    outputs = _Outputs(access, options, attempt, monotonic_s)
    events, repeated = 0, None
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if repeated is None:
                repeated = is_repeated()
            if repeated:
                continue
            for stream, rows in split_by_stream(batch, options):
                output = outputs.of(stream)
                if output is None:
                    repeated = True
                    outputs.abort()
                    break
                _write(output, rows, options, attempt)
                events += rows.num_rows
        if repeated:
            return TaskReport(attempt.batch, (), 0, repeated=True)
        return TaskReport(attempt.batch, outputs.finish(), events, repeated=False)
    except BaseException:
        outputs.abort()
        raise


class _Outputs:
    """The outputs of one attempt, by stream."""

    def __init__(
        self, access: SinkAccess, options: WriteOptions, attempt: TaskAttempt, monotonic_s: Callable[[], float]
    ) -> None:
        self._access = access
        self._options = options
        self._attempt = attempt
        self._monotonic_s = monotonic_s
        self._started_s = monotonic_s()
        self._label = attempt.batch.label(attempt.partition, attempt.attempt, options.checkpoint_mark)
        self._transactions: dict[str, OpenTransaction] = {}
        self._writers: dict[str, OpenWriter] = {}

    def of(self, stream: str) -> EventOutput | None:
        """The output for a stream; None: the batch is committed, so that this attempt is too late."""
        output = self._transactions.get(stream) or self._writers.get(stream)
        if output is not None:
            return output
        if not self._options.exactly_once:
            writer = self._writers[stream] = self._access.open_writer(stream)
            return writer
        lease_ms = self._options.transaction_timeout_ms
        begun = self._transactions[stream] = self._access.begin(stream, lease_ms=lease_ms, label=self._label)
        return None if self._is_too_late() else begun

    def _is_too_late(self) -> bool:
        """An attempt that is late asks; a commit after the answer finds its transaction."""
        if self._attempt.number == 0 and self._monotonic_s() - self._started_s < SLOW_S:
            return False
        batch = self._attempt.batch
        return is_repetition(batch.epoch, self._access.committed_epoch(self._options.stream, batch.writer))

    def finish(self) -> tuple[tuple[str, str], ...]:
        """Waits for all events, and returns the streams and ids of the transactions."""
        outputs: list[EventOutput] = [*self._transactions.values(), *self._writers.values()]
        for output in outputs:
            output.flush()
        for writer in self._writers.values():
            writer.close()
        for transaction in self._transactions.values():
            transaction.detach()
        return tuple((stream, transaction.id) for stream, transaction in self._transactions.items())

    def abort(self) -> None:
        for transaction in self._transactions.values():
            with suppress(HeadraceError):
                transaction.abort()
        for writer in self._writers.values():
            with suppress(HeadraceError):
                writer.close()


def _write(output: EventOutput, rows: pa.RecordBatch, options: WriteOptions, attempt: TaskAttempt) -> None:
    try:
        output.write_many(rows)
    except InvalidRequestError as error:
        if error.specific_code != "event_too_large" or not options.exactly_once:
            raise
        raise InvalidRequestError(
            f"partition {attempt.partition} has an event of {error.details['bytes']} bytes, and a transaction takes at"
            f" most {EVENT_BYTES_MAX}: split it, or write with exactly_once=false, which takes {EVENT_BYTES_MAX_LARGE}",
            details=error.details,
            code=error.specific_code,
        ) from error
