"""The driver's half of a write: prepares the target streams, commits what the tasks wrote as one set, or aborts it.

Only the transactions in the reports of successful attempts are committed. Attempts that failed, or that Spark started
twice, have transactions of their own, which the commit aborts by their labels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from headrace.adapters.system_clock import SystemClock
from headrace.model.commit_sets import SET_TRANSACTIONS_MAX, in_commit_order
from headrace.model.errors import (
    CorruptError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.transactions import TransactionState, parse_transaction_id, transaction_text
from headrace.ports.clock import Clock
from headrace.spark.concurrent_calls import results_at_once
from headrace.spark.sink_access import SinkAccess
from headrace.spark.write_options import WriteOptions
from headrace.spark.written_batches import BatchName, TaskReport, WrittenBatch, transactions_of

READS_AT_ONCE: Final = 16
"""Of the states of transactions in a large batch, so that a thousand of them take seconds."""

Sleep = Callable[[float], object]


def prepare_streams(access: SinkAccess, options: WriteOptions) -> None:
    """Creates the target streams that do not exist, if the options allow it.

    Raises:
        NotFoundError: a stream or the scope does not exist, and must not be created.
        SealedError: a stream is sealed.
    """
    for stream in options.targets:
        sealed = access.sealed(stream)
        if sealed is None:
            _create(access, options, stream)
        elif sealed:
            raise SealedError(f"stream {options.scope}/{stream} is sealed: it accepts no more events")


def commit_batch(
    access: SinkAccess, options: WriteOptions, batch: BatchName, reports: Sequence[TaskReport], sleep: Sleep
) -> WrittenBatch:
    """Commits the transactions of the reports; a batch that was committed before is a success, too.

    With read-after-write consistency it returns when readers can see the events.

    Raises:
        CorruptError: a report is of another batch.
        InvalidRequestError: there are too many transactions for one commit.
        IllegalStateError: a transaction has been aborted; its lease was too short. Or a later batch was committed.
        UnavailableError: the commit was accepted, but the events are not visible after `patience_s` without progress.
    """
    for report in reports:
        if report.batch != batch:
            raise CorruptError(f"a task of batch {report.batch} reports to the commit of {batch}")
    transactions = transactions_of(reports)
    count = sum(map(len, transactions.values()))
    if any(report.repeated for report in reports):
        abort_batch(access, options, batch)  # of tasks that began before another driver committed the batch
        new = False
    elif not transactions:
        return WrittenBatch(sum(report.events for report in reports), 0, repeated=False)
    else:
        new = _commit(access, options, batch, transactions, count)
    if options.read_after_write and new:
        for stream, members in transactions.items():
            _wait_for_members(access, options, batch, stream, members, sleep)
        _check_committed(access, batch, transactions)
    elif options.read_after_write:
        _check_committed(access, batch, _wait_for_earlier_run(access, options, batch, sleep))
    return WrittenBatch(sum(report.events for report in reports) if new else 0, count if new else 0, not new)


def abort_batch(access: SinkAccess, options: WriteOptions, batch: BatchName) -> None:
    """Aborts the open transactions of a batch. If that fails, the next commit or the end of their leases does it."""
    if not options.exactly_once:
        return
    for stream in options.targets:
        with suppress(HeadraceError):
            access.abort_labelled(stream, batch.label_prefix)


def abort_unnamed_batch(access: SinkAccess, options: WriteOptions, epoch: int) -> None:
    """Aborts the open transactions of a query's batch if no task has reported, so that nothing names the query.

    Their labels end with the mark of the query's checkpoint. A task whose input breaks off writes what it has received,
    and cannot tell that the batch has failed, so it leaves its transactions open.
    """
    if options.checkpoint_mark is None or not options.exactly_once:
        return
    with suppress(HeadraceError):
        labels = (label for stream in options.targets for _, label, _ in access.labelled(stream, None))
        for batch in {BatchName.of_label(label) for label in labels if label.endswith(f"/{options.checkpoint_mark}")}:
            if batch is not None and batch.epoch == epoch:
                abort_batch(access, options, batch)


def _create(access: SinkAccess, options: WriteOptions, stream: str) -> None:
    new = options.new_streams
    if not new.allow_stream:
        raise NotFoundError(
            f"there is no stream {options.scope}/{stream}: create it, or set allow_create_stream=true",
            details={"scope": options.scope, "stream": stream},
        )
    if not access.scope_exists():
        if not new.allow_scope:
            raise NotFoundError(f"there is no scope {options.scope}: create it, or set allow_create_scope=true")
        access.create_scope()
    access.create_stream(stream, new.scaling, new.retention)


def _commit(
    access: SinkAccess, options: WriteOptions, batch: BatchName, transactions: Mapping[str, Sequence[str]], count: int
) -> bool:
    if count > SET_TRANSACTIONS_MAX:
        abort_batch(access, options, batch)
        raise InvalidRequestError(
            f"{count} transactions are too many for one commit, at most {SET_TRANSACTIONS_MAX}: each task has"
            " one for each stream that it writes to, so use coalesce() or repartition() before the write",
            code="too_many_transactions",
        )
    try:
        new = access.commit(options.stream, batch.writer, batch.epoch, transactions, abort_labels=batch.name)
    except SealedError as error:
        abort_batch(access, options, batch)
        raise SealedError(
            f"{_not_committed(batch, error)}. A sealed stream accepts no more events: set 'stream' to another one",
            details=error.details,
        ) from error
    except (IllegalStateError, NotFoundError) as error:
        abort_batch(access, options, batch)
        raise IllegalStateError(
            f"{_not_committed(batch, error)}. Write it again. If the batch took long, set a larger"
            f" transaction_timeout_ms than {options.transaction_timeout_ms}",
            details=error.details,
            code=error.specific_code,
        ) from error
    if new or _are_committed(access, transactions):
        return True
    last = access.committed_epoch(options.stream, batch.writer)
    if last is not None and last > batch.epoch:
        raise IllegalStateError(
            f"batch {last} of writer {batch.writer} was committed while batch {batch.epoch} was written, so these"
            " events are not added, unless an earlier run has added them: write one batch at a time, in order",
            code="later_batch_committed",
        )
    return False


def _are_committed(access: SinkAccess, transactions: Mapping[str, Sequence[str]]) -> bool:
    """Whether the epoch is that of these transactions. The client repeats a request whose answer is lost, and the
    answer to the second one is that the epoch was committed before."""
    stream, members = next(iter(transactions.items()))
    return access.transaction_state(stream, members[0]).is_commit


def _not_committed(batch: BatchName, error: HeadraceError) -> str:
    return f"batch {batch.epoch} of writer {batch.writer} is not committed, and none of its events is: {error.message}"


def _wait_for_members(
    access: SinkAccess,
    options: WriteOptions,
    batch: BatchName,
    stream: str,
    members: Sequence[str],
    sleep: Sleep,
) -> None:
    """Waits for the transactions of this batch in a stream.

    It asks for the one that is committed last, which costs the controller one read. Only when its patience is over, it
    has them counted.
    """
    last = transaction_text(in_commit_order(parse_transaction_id(member) for member in members)[-1])
    fewest, waited_s = len(members), 0.0
    while access.transaction_state(stream, last) is TransactionState.COMMITTING:
        if waited_s > options.patience_s:
            left = len(_committing(access, stream, batch))
            if left >= fewest:
                raise _not_visible(options, batch, stream, left)
            fewest, waited_s = left, 0.0
        waited_s += _pause(options, sleep)


def _wait_for_earlier_run(
    access: SinkAccess, options: WriteOptions, batch: BatchName, sleep: Sleep
) -> dict[str, Sequence[str]]:
    """Waits for the transactions of this batch that an earlier run committed; only their labels are known.

    Returns those that it waited for, by stream. Others were completed before, and then an aborted one may as well be
    that of an attempt that failed.
    """
    waited_for: dict[str, Sequence[str]] = {}
    for stream in options.targets:
        fewest: int | None = None
        waited_s = 0.0
        while members := _committing(access, stream, batch):
            waited_for.setdefault(stream, members)
            left = len(members)
            if fewest is None or left < fewest:
                fewest, waited_s = left, 0.0
            if waited_s > options.patience_s:
                raise _not_visible(options, batch, stream, left)
            waited_s += _pause(options, sleep)
    return waited_for


def _pause(options: WriteOptions, sleep: Sleep) -> float:
    """Waits until the next question; returns the seconds."""
    poll_s = options.status_poll_ms / 1000
    sleep(poll_s)
    return poll_s


def _not_visible(options: WriteOptions, batch: BatchName, stream: str, left: int) -> UnavailableError:
    return UnavailableError(
        f"batch {batch.epoch} is committed, but {left} of its transactions in stream {stream} are not visible to"
        f" readers after {options.patience_s} s without progress; they will be"
    )


def _committing(access: SinkAccess, stream: str, batch: BatchName) -> list[str]:
    """The transactions of the batch whose commit was accepted and is not complete."""
    labelled = access.labelled(stream, batch.label_prefix)
    return [each.id for each in labelled if each.state is TransactionState.COMMITTING]


def _check_committed(access: SinkAccess, batch: BatchName, transactions: Mapping[str, Sequence[str]]) -> None:
    """A store that lost its volume may have lost events of an accepted commit.

    Then all transactions of a stream are aborted, or those that lost events, if the first ones were visible already.
    One request lists the newest completed ones of a stream. Those that it does not list are read one by one.
    """
    for stream, members in transactions.items():
        newest = access.newest_completed(stream) if len(members) > 1 else {}
        states = [newest[member] for member in members if member in newest]
        others = [member for member in members if member not in newest]
        states += results_at_once(partial(access.transaction_state, stream), others, READS_AT_ONCE)
        if TransactionState.ABORTED in states:
            raise CorruptError(
                f"a segment store lost events of batch {batch.epoch} in stream {stream} after the commit was accepted;"
                " they are not written there, and Spark's next run will not repeat them",
                details={
                    "stream": stream,
                    "writer": batch.writer,
                    "epoch": batch.epoch,
                    "aborted": states.count(TransactionState.ABORTED),
                    "transactions": len(members),
                },
                code="transaction_aborted",
            )


# The check of the target streams before a write: at most once a minute, since a query asks for it with each batch.

CHECKED_FOR_S: Final = 60.0


class PreparedStreams:
    """Remembers when the streams of which options were checked. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._checked_s: dict[WriteOptions, float] = {}

    def prepare(self, access: SinkAccess, options: WriteOptions) -> None:
        """Check the target streams, or create them, unless that was done a moment ago. Raises as `prepare_streams`."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            recent = {checked: at_s for checked, at_s in self._checked_s.items() if now_s - at_s < CHECKED_FOR_S}
            self._checked_s = recent
            if options in recent:
                return
        prepare_streams(access, options)
        with self._lock:
            self._checked_s[options] = now_s
