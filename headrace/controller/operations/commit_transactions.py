"""Commit transactions: everything that is marked on a stream, in the order of the marks, in batches of one epoch each.

A batch begins with one write that puts the stream in COMMITTING_TXN and the run on record. Then the transactions'
segments are merged: into the active segments or, when a scale has replaced the segments they belong to, by a roll (see
`model/rolling_transactions.py`). Every step may be repeated, for what was merged is gone, and a run is resumed by
whoever comes next. Appends and reads go on meanwhile; a scale waits for the batch, as any other operation does.

A stream that is being sealed commits in the same way what was marked before, but stays in SEALING.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.controller.steps.segment_creation import create_segments
from headrace.controller.steps.segment_sealing import record_sizes, seal_segments
from headrace.controller.workflow import Tools
from headrace.metadata.history_records import create_epoch
from headrace.metadata.optimistic_retry import ATTEMPTS_PER_MESSAGE_MAX, repeat_on_conflict
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction_messages import COMMIT, parse_message
from headrace.metadata.transaction_records import (
    WRITES_PER_COMPLETION,
    StoredTransaction,
    TransactionRecords,
    complete,
    create_run,
    delete_run,
)
from headrace.metadata.writer_mark_records import WriterMarkRecords
from headrace.model.epochs import Epoch
from headrace.model.errors import SOURCE_INCOMPLETE, CorruptError, IllegalStateError, NotFoundError, SealedError
from headrace.model.names import segment_name
from headrace.model.requests import RequestKind
from headrace.model.rolling_transactions import Roll, must_roll, roll_of
from headrace.model.segments import StreamSegment
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream, commit_ended, epoch_recorded, rolled, started
from headrace.model.transactions import CommitRun, aborted, commit_group, committed, segment_of_transaction
from headrace.ports.deadlines import require_time_for_piece
from headrace.ports.metadata_store import WRITES_PER_TRANSACTION_MAX, Write, WriteConflictError

TRANSACTIONS_PER_RUN_MAX = 100
COMPLETIONS_PER_WRITE = (WRITES_PER_TRANSACTION_MAX - 3) // WRITES_PER_COMPLETION
"""With room for the current record, the run, and long tags that the current record of an older version still holds."""

_log = logging.getLogger(__name__)

_Position = tuple[tuple[int, int], ...]


class CommitProcessor:
    """Works on the messages of the commits queue; safe for any number of threads and processes."""

    def __init__(self, tools: Tools) -> None:
        self._commits = TransactionCommits(tools)

    def process(self, message_body: Mapping[str, Any]) -> None:
        """Commit everything that was marked on the stream before the message came, and perhaps more.

        A stream on which marks come all the time is not a failure: the rest goes to another message.

        Raises:
            InvalidRequestError: this is no commit message; it will never be one.
            ConflictError: another operation runs on the stream: deliver the message again.
            UnavailableError, ThrottledError: deliver the message again.
            WorkLeftError: the time is over; what was done is on record, and another call goes on from there.
            NotFoundError, CorruptError: a segment is gone, or stored records do not fit; a human must look.
        """
        message = parse_message(message_body, COMMIT)
        while self._next_run(message.scope, message.stream):
            require_time_for_piece(f"commits of {message.scope}/{message.stream}")

    def _next_run(self, scope: str, stream: str) -> bool:
        # A conflict tells that somebody else works on the same run: read again and go on from there.
        return repeat_on_conflict(lambda: self._commits.next_run(scope, stream), ATTEMPTS_PER_MESSAGE_MAX)


class TransactionCommits:
    """Runs of any streams, one after another."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._history = tools.history
        self._transactions = TransactionRecords(tools.records.store, tools.records)
        self._marks = WriterMarkRecords(tools.records.store, tools.records)

    def next_run(self, scope: str, stream: str, *, while_sealing: bool = False) -> bool:
        """Finish the run that was begun, or make one; False if nothing was left to commit.

        The last look must be behind the last run: a mark that finds another one waiting sends no message of its own,
        and relies on the message of that one to see both.

        Raises:
            ConflictError: another operation runs on the stream.
            WriteConflictError: somebody else works on the same run; read again.
        """
        stored, run = self._transactions.find_run(scope, stream)
        if stored is None or (stored.stream.state is StreamState.SEALING and not while_sealing):
            return False  # Sealing a stream commits what is left; deleting it forgets everything.
        is_running = stored.stream.state is StreamState.COMMITTING_TXN
        if is_running == (run is None) and stored.stream.state is not StreamState.SEALING:
            # A batch read is no snapshot: somebody has begun or ended a run in the middle of it.
            raise WriteConflictError(f"a commit of {stored.stream.scoped_name} has just begun or ended", {})
        if run is not None:
            self._finish(stored, run, None)
            return True
        marked = self._transactions.marked(scope, stream, TRANSACTIONS_PER_RUN_MAX)
        if not marked:
            return False
        found = self._transactions.still_open(scope, stream, marked)
        if [one.transaction.transaction_id for one in found] != marked:
            raise WriteConflictError(f"transactions of {scope}/{stream} were just committed by somebody else", {})
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
        return self._replace(stored, started(stream, stored.version, RequestKind.COMMIT_TRANSACTIONS), create), run

    def _incomplete(self, stream: Stream, epoch: int, batch: Sequence[StoredTransaction]) -> tuple[int, ...]:
        """Those of which a lost volume took bytes or whole segments, with all of their commit sets.

        A store refuses to merge a segment that lacks bytes, but the other targets may have the transaction by then. And
        only before a run begins does a segment that is gone tell that it was lost: later it may have been merged.
        """
        group_of = {one.transaction.transaction_id: commit_group(one.transaction) for one in batch}
        segments = self._segments(stream, epoch, tuple(group_of))
        found = self._tools.segment_stores.incomplete_segments([name for names in segments.values() for name in names])
        aborted_groups = {group_of[one] for one, names in segments.items() if not found.isdisjoint(names)}
        return tuple(one for one in segments if group_of[one] in aborted_groups)

    def _segments(self, stream: Stream, epoch: int, identifiers: Sequence[int]) -> dict[int, list[str]]:
        own = self._history.epoch(stream, epoch).segments
        return {
            one: [segment_of_transaction(stream.scope, stream.name, segment, one) for segment in own]
            for one in identifiers
        }

    def _finish(self, stored: StoredStream, run: CommitRun, batch: Sequence[StoredTransaction] | None) -> None:
        """Everything behind the beginning of a run; `batch` is what it commits, where that was just read."""
        with self._conflict_if_changed(stored):
            self._merge_whole(stored, run, batch)

    @contextlib.contextmanager
    def _conflict_if_changed(self, stored: StoredStream) -> Iterator[None]:
        """A processor that is late finds segments sealed or gone by what came after: then there is nothing to do."""
        try:
            yield
        except (SealedError, NotFoundError) as error:
            found = self._tools.records.find(stored.stream.scope, stored.stream.name)
            if found is None or found.version != stored.version:
                raise WriteConflictError(f"{stored.stream.scoped_name} has gone on: {error}", {}) from error
            raise

    def _merge_whole(self, stored: StoredStream, run: CommitRun, batch: Sequence[StoredTransaction] | None) -> None:
        """Merge and complete; abort those that a lost volume has left incomplete, so that the others go on.

        That a volume is lost after the run has begun is told by the stores, which refuse the merge.
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
        """It is on record as aborted before its segments go: a segment that is gone counts as merged.

        The refused one goes last. Until then no process that repeats the run merges the ones behind it.
        """
        segments = self._segments(stored.stream, run.reference_epoch, run.transactions)
        identifier = next((one for one, names in segments.items() if source in names), None)
        if identifier is None:
            raise CorruptError(
                f"a commit of {stored.stream.scoped_name} was refused for {source}, which it does not merge"
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
        for writer, timestamp in times.items():  # the last of each writer says it all
            self._marks.note_commit(stored.stream.scope, stored.stream.name, writer, timestamp, dict(position))
        self._complete(stored, left, position)

    def _roll(self, stored: StoredStream, run: CommitRun) -> StoredStream:
        """Past the transactions' epoch. Its segments are filled and sealed before they are shown as successors."""
        tools, stream = self._tools, stored.stream
        replaced = stream.epoch
        roll = roll_of(replaced, self._history.epoch(stream, run.reference_epoch), run.started_ms)
        if stream.recorded_epoch == replaced.number:
            self._fill(stored, roll, run)
            records = (*create_epoch(stream, roll.passed), *create_epoch(stream, roll.following))
            stored = self._replace(stored, epoch_recorded(stream, roll.following), *records)
        seal_segments(tools, stream, replaced.segments)
        record_sizes(tools, stored, replaced.segments, replaced_in=roll.passed.number)
        record_sizes(tools, stored, roll.passed.segments, replaced_in=roll.following.number)
        return self._replace(stored, rolled(stored.stream, roll.following))

    def _fill(self, stored: StoredStream, roll: Roll, run: CommitRun) -> None:
        stream = stored.stream
        create_segments(self._tools, stored, (*roll.passed.segments, *roll.following.segments))
        # An earlier attempt may have come as far as sealing, which begins when everything is merged.
        with contextlib.suppress(SealedError):
            self._merge(stream, roll.passed, run)
        seal_segments(self._tools, stream, roll.passed.segments)

    def _merge(self, stream: Stream, into: Epoch, run: CommitRun) -> None:
        """What each transaction holds for a segment goes to the segment with the same number."""
        own = {one.number: one for one in self._history.epoch(stream, run.reference_epoch).segments}
        for target in into.segments:
            source = own[target.number]
            name = segment_name(stream.scope, stream.name, target.segment_id)
            self._tools.segment_stores.merge_segments(name, _sources(stream, source, run))

    def _position(self, stream: Stream, run: CommitRun) -> _Position:
        """Behind the last event of the run; perhaps behind a few that others wrote meanwhile, never before it."""
        into = self._history.epoch(stream, run.active_epoch + 1) if run.rolls else stream.epoch
        names = [segment_name(stream.scope, stream.name, one.segment_id) for one in into.segments]
        infos = self._tools.segment_stores.segment_infos(names)
        return tuple((one.segment_id, info.length) for one, info in zip(into.segments, infos, strict=True))

    def _complete(self, stored: StoredStream, left: Sequence[StoredTransaction], position: _Position) -> None:
        """The transactions are committed; with the last of them the run ends."""
        stream, now_ms = stored.stream, self._tools.clock.now_ms()
        parts = [left[start : start + COMPLETIONS_PER_WRITE] for start in range(0, len(left), COMPLETIONS_PER_WRITE)]
        for part in parts[:-1]:
            self._tools.records.while_unchanged(stored, *_completions(stream, part, position, now_ms))
        last = _completions(stream, parts[-1], position, now_ms) if parts else []
        self._replace(stored, commit_ended(stream), delete_run(stream.scope, stream.name), *last)

    def _replace(self, stored: StoredStream, after: Stream, *others: Write) -> StoredStream:
        return self._tools.records.replace(stored, after, *others)


def _of_one_epoch(found: Sequence[StoredTransaction]) -> Sequence[StoredTransaction]:
    """The first of them, as many as are of one epoch."""
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
