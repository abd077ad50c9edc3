"""The runs that commit the marked transactions of a stream, in the order of the marks, in batches of one epoch each.

A run begins with one write that puts the stream in COMMITTING_TXN and records the run. Then the segments of the
transactions are merged into the active segments. If a scale has replaced the segments to which they belong, the run
rolls instead (see `model/rolling_transactions.py`). Each part may be repeated, because a segment that was merged no
longer exists. Any process can resume a run. Appends and reads continue meanwhile; other operations wait for the run.

A stream that is being sealed commits in the same way the transactions that were marked before, but stays in SEALING.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from headrace.controller.engine import Tools
from headrace.controller.steps.segment_creation import create_segments
from headrace.controller.steps.segment_sealing import record_sizes, seal_segments
from headrace.metadata.commit_run import create_run, delete_run, find_commit_run
from headrace.metadata.history_records import create_epoch
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction import StoredTransaction
from headrace.metadata.transaction_records import WRITES_PER_COMPLETION, TransactionRecords, complete
from headrace.metadata.writer_mark import WriterMarkRecords
from headrace.model.epochs import Epoch
from headrace.model.errors import (
    SOURCE_INCOMPLETE,
    ConflictError,
    CorruptError,
    IllegalStateError,
    NotFoundError,
    SealedError,
)
from headrace.model.names import segment_name
from headrace.model.requests import RequestKind
from headrace.model.rolling_transactions import Roll, must_roll, roll_of
from headrace.model.segments import StreamSegment
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream, commit_ended, epoch_recorded, rolled, started
from headrace.model.transactions import CommitRun, aborted, committed, segment_of_transaction, with_commit_sets
from headrace.ports.deadlines import require_time_for_piece
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX, MetadataStore, Write, WriteConflictError

TRANSACTIONS_PER_RUN_MAX = 100
COMPLETIONS_PER_WRITE = (WRITES_PER_TRANSACTION_MAX - 3) // WRITES_PER_COMPLETION
"""With room for the current record, the run, and long tags that the current record of an older version still holds."""

_log = logging.getLogger(__name__)

_Position = tuple[tuple[int, int], ...]


class TransactionCommits:
    """Runs of any streams, one after another. Safe for any number of threads and processes, also on one run."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._history = tools.history
        self._transactions = TransactionRecords(tools.records.store, tools.records)
        self._marks = WriterMarkRecords(tools.records.store, tools.records)

    def next_run(self, scope: str, stream: str, *, while_sealing: bool = False) -> bool:
        """Finish the run that has begun, or begin and finish one; False if no transaction is left to commit.

        A process must call this until it returns False. A mark that finds an older mark sends no message, and relies on
        the message of the older one to see both.

        Raises:
            ConflictError: another operation runs on the stream.
            WriteConflictError: another process works on the same run; read again.
        """
        stored, run = self._transactions.find_run(scope, stream)
        if stored is None or (stored.stream.state is StreamState.SEALING and not while_sealing):
            return False  # Sealing a stream commits what is left; deleting it forgets everything.
        is_running = stored.stream.state is StreamState.COMMITTING_TXN
        if is_running == (run is None) and stored.stream.state is not StreamState.SEALING:
            # A batch read is not a snapshot: another process began or ended a run in the middle of it.
            raise WriteConflictError(f"a commit of {stored.stream.scoped_name} has just begun or ended", {})
        if run is not None:
            self._finish(stored, run, None)
            return True
        marked = self._transactions.marked(scope, stream, TRANSACTIONS_PER_RUN_MAX)
        if not marked:
            return False
        found = self._transactions.still_open(scope, stream, marked)
        if [one.transaction.transaction_id for one in found] != marked:
            raise WriteConflictError(f"transactions of {scope}/{stream} were just committed by another process", {})
        batch = _of_one_epoch(found)
        stored, run = self._begin(stored, batch)
        self._finish(stored, run, batch)
        return True

    def _begin(self, stored: StoredStream, batch: Sequence[StoredTransaction]) -> tuple[StoredStream, CommitRun]:
        stream = stored.stream
        epoch = batch[0].transaction.reference_epoch
        identifiers = tuple(one.transaction.transaction_id for one in batch)
        rolls = must_roll(stream.epoch, epoch)
        with self._conflict_if_changed(stored):
            incomplete = self._incomplete(stream, epoch, batch)
        run = CommitRun(identifiers, epoch, stream.epoch.number, rolls, self._tools.clock.now_ms(), incomplete)
        create = create_run(stream.scope, stream.name, run)
        if stream.state is StreamState.SEALING:
            self._tools.records.while_unchanged(stored, create)
            return stored, run
        committing = started(stream, stored.version, RequestKind.COMMIT_TRANSACTIONS)
        return self._tools.records.replace(stored, committing, create), run

    def _incomplete(self, stream: Stream, epoch: int, batch: Sequence[StoredTransaction]) -> tuple[int, ...]:
        """The transactions that lost bytes or whole segments with a volume, and all of their commit sets.

        A store rejects the merge of a segment that lacks bytes, but other segments of the transaction may be merged by
        then. A missing segment shows a loss only before a run begins: later it may have been merged.
        """
        transactions = [one.transaction for one in batch]
        segments = self._segments(stream, epoch, [one.transaction_id for one in transactions])
        found = self._tools.segment_stores.incomplete_segments([name for names in segments.values() for name in names])
        lost = {one for one, names in segments.items() if not found.isdisjoint(names)}
        return with_commit_sets(transactions, lost)

    def _segments(self, stream: Stream, epoch: int, identifiers: Sequence[int]) -> dict[int, list[str]]:
        own = self._history.epoch(stream, epoch).segments
        return {
            one: [segment_of_transaction(stream.scope, stream.name, segment, one) for segment in own]
            for one in identifiers
        }

    def _finish(self, stored: StoredStream, run: CommitRun, batch: Sequence[StoredTransaction] | None) -> None:
        """The part of a run after its beginning; `batch` are its transactions, if they were just read."""
        with self._conflict_if_changed(stored):
            self._merge_whole(stored, run, batch)

    @contextlib.contextmanager
    def _conflict_if_changed(self, stored: StoredStream) -> Iterator[None]:
        """A late process finds segments sealed or deleted by later operations: its own work is complete then."""
        try:
            yield
        except (SealedError, NotFoundError) as error:
            found = self._tools.records.find(stored.stream.scope, stored.stream.name)
            if found is None or found.version != stored.version:
                raise WriteConflictError(f"{stored.stream.scoped_name} has changed: {error}", {}) from error
            raise

    def _merge_whole(self, stored: StoredStream, run: CommitRun, batch: Sequence[StoredTransaction] | None) -> None:
        """Merge and complete. Abort the transactions that lost bytes with a volume, so that the others are committed.

        If a volume is lost after the run has begun, the stores reject the merge.
        """
        if run.incomplete:
            self._abort_known(stored, run)
            batch = None
        for _ in run.transactions:
            try:
                self._merge_and_complete(stored, run, batch)
            except IllegalStateError as error:
                if error.specific_code != SOURCE_INCOMPLETE:
                    raise
                self._abort_refused(stored, run, error.details["segment"])
                batch = None
            else:
                return
            require_time_for_piece(f"commits of {stored.stream.scoped_name}")
        self._merge_and_complete(stored, run, batch)

    def _abort_known(self, stored: StoredStream, run: CommitRun) -> None:
        for identifier, names in self._segments(stored.stream, run.reference_epoch, run.incomplete).items():
            self._abort(stored, identifier, "bytes of it or of its commit set are lost")
            self._tools.segment_stores.delete_segments(names)
            require_time_for_piece(f"commits of {stored.stream.scoped_name}")

    def _abort_refused(self, stored: StoredStream, run: CommitRun, source: str) -> None:
        """Record the transaction as aborted before its segments are deleted: a missing segment counts as merged.

        The rejected segment is deleted last. Until then no process that repeats the run merges the later ones.
        """
        segments = self._segments(stored.stream, run.reference_epoch, run.transactions)
        identifier = next((one for one, names in segments.items() if source in names), None)
        if identifier is None:
            raise CorruptError(
                f"a commit of {stored.stream.scoped_name} was rejected for {source}, which it does not merge"
            )
        self._abort(stored, identifier, f"{source} may lack bytes")
        self._tools.segment_stores.delete_segments([name for name in segments[identifier] if name != source])
        self._tools.segment_stores.delete_segments([source])

    def _abort(self, stored: StoredStream, identifier: int, reason: str) -> None:
        stream = stored.stream
        for left in self._transactions.still_open(stream.scope, stream.name, [identifier]):
            ended = aborted(left.transaction, self._tools.clock.now_ms())
            self._tools.records.while_unchanged(stored, *complete(stream.scope, stream.name, left, ended))
            _log.error("transaction %032x of %s is aborted: %s", identifier, stream.scoped_name, reason)

    def _merge_and_complete(
        self, stored: StoredStream, run: CommitRun, batch: Sequence[StoredTransaction] | None
    ) -> None:
        if run.rolls and stored.stream.epoch.number == run.active_epoch:
            stored = self._roll(stored, run)
        elif not run.rolls:
            self._merge(stored.stream, stored.stream.epoch, run)
        left = batch
        if left is None:
            left = self._transactions.still_open(stored.stream.scope, stored.stream.name, run.transactions)
        times = {one.writer: one.timestamp for stored_one in left if (one := stored_one.transaction.writer_time)}
        position = self._position(stored.stream, run) if times else ()
        for writer, timestamp in times.items():  # the last time of each writer includes the others
            self._marks.note_commit(stored.stream.scope, stored.stream.name, writer, timestamp, dict(position))
        self._complete(stored, left, position)

    def _roll(self, stored: StoredStream, run: CommitRun) -> StoredStream:
        """Roll through the epoch of the transactions. Its segments are filled and sealed before clients see them."""
        tools, stream = self._tools, stored.stream
        replaced = stream.epoch
        roll = roll_of(replaced, self._history.epoch(stream, run.reference_epoch), run.started_ms)
        if stream.recorded_epoch == replaced.number:
            self._fill(stored, roll, run)
            records = (*create_epoch(stream, roll.passed), *create_epoch(stream, roll.following))
            stored = self._tools.records.replace(stored, epoch_recorded(stream, roll.following), *records)
        seal_segments(tools, stream, replaced.segments)
        record_sizes(tools, stored, replaced.segments, replaced_in=roll.passed.number)
        record_sizes(tools, stored, roll.passed.segments, replaced_in=roll.following.number)
        return self._tools.records.replace(stored, rolled(stored.stream, roll.following))

    def _fill(self, stored: StoredStream, roll: Roll, run: CommitRun) -> None:
        stream = stored.stream
        create_segments(self._tools, stored, (*roll.passed.segments, *roll.following.segments))
        # An earlier attempt may have begun to seal, which it does when all segments are merged.
        with contextlib.suppress(SealedError):
            self._merge(stream, roll.passed, run)
        seal_segments(self._tools, stream, roll.passed.segments)

    def _merge(self, stream: Stream, into: Epoch, run: CommitRun) -> None:
        """Merge the segments of each transaction into the segments of `into` with the same numbers."""
        own = {one.number: one for one in self._history.epoch(stream, run.reference_epoch).segments}
        for target in into.segments:
            source = own[target.number]
            name = segment_name(stream.scope, stream.name, target.segment_id)
            self._tools.segment_stores.merge_segments(name, _sources(stream, source, run))

    def _position(self, stream: Stream, run: CommitRun) -> _Position:
        """A position after the last event of the run, and perhaps after events that other writers wrote meanwhile."""
        into = self._history.epoch(stream, run.active_epoch + 1) if run.rolls else stream.epoch
        names = [segment_name(stream.scope, stream.name, one.segment_id) for one in into.segments]
        infos = self._tools.segment_stores.segment_infos(names)
        return tuple((one.segment_id, info.length) for one, info in zip(into.segments, infos, strict=True))

    def _complete(self, stored: StoredStream, left: Sequence[StoredTransaction], position: _Position) -> None:
        """Record the transactions as committed. The write of the last ones ends the run."""
        stream, now_ms = stored.stream, self._tools.clock.now_ms()
        parts = [left[start : start + COMPLETIONS_PER_WRITE] for start in range(0, len(left), COMPLETIONS_PER_WRITE)]
        for part in parts[:-1]:
            self._tools.records.while_unchanged(stored, *_completions(stream, part, position, now_ms))
        last = _completions(stream, parts[-1], position, now_ms) if parts else []
        self._tools.records.replace(stored, commit_ended(stream), delete_run(stream.scope, stream.name), *last)


def check_commit_does_not_roll(store: MetadataStore, stream: Stream) -> None:
    """Check that an operation on active segments may wait for the batch of commits that runs, if one runs.

    Raises:
        ConflictError: the batch replaces the segments; repeat when it is complete.
        WriteConflictError: the batch has just ended; read the stream again.
    """
    if stream.state is not StreamState.COMMITTING_TXN:
        return
    run = find_commit_run(store, stream.scope, stream.name)
    if run is None:
        raise WriteConflictError(f"a commit of {stream.scoped_name} has just ended", {})
    if run.rolls:
        raise ConflictError(f"the segments of {stream.scoped_name} are just being replaced: repeat soon")


def _of_one_epoch(found: Sequence[StoredTransaction]) -> Sequence[StoredTransaction]:
    """The longest beginning of the list in which all transactions have the same epoch."""
    epochs = [one.transaction.reference_epoch for one in found]
    count = next((index for index, epoch in enumerate(epochs) if epoch != epochs[0]), len(found))
    return found[:count]


def _sources(stream: Stream, source: StreamSegment, run: CommitRun) -> list[str]:
    whole = (one for one in run.transactions if one not in run.incomplete)
    return [segment_of_transaction(stream.scope, stream.name, source, one) for one in whole]


def _completions(stream: Stream, part: Sequence[StoredTransaction], position: _Position, now_ms: int) -> list[Write]:
    return [
        write
        for one in part
        for write in complete(stream.scope, stream.name, one, committed(one.transaction, position, now_ms))
    ]
