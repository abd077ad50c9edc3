"""The runs that commit the marked transactions of a stream, in the order of the marks, in batches of one epoch each.

A run begins with one write that puts the stream in COMMITTING_TXN and records the run. Then the segments of the
transactions are merged into the active segments. If a scale has replaced the segments to which they belong, the run
rolls instead (see `model/rolling_transactions.py`). Each part may be repeated, because a segment that was merged no
longer exists. Any process can resume a run. Appends and reads continue meanwhile; other operations wait for the run.

A stream that is being sealed or frozen commits in the same way the transactions that were marked before, but stays in
SEALING or FREEZING.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.controller.engine import Tools
from headrace.controller.steps.stream_segments import create_segments, record_sizes, seal_segments
from headrace.metadata.commit_records import (
    StoredPart,
    commit_part_key,
    commit_run_key,
    create_run,
    delete_run,
    replace_commit_part,
    replace_run,
    set_ends,
    stored_part,
)
from headrace.metadata.history_records import create_epoch
from headrace.metadata.stream import replace_transition
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction import StoredTransaction
from headrace.metadata.transaction_records import TransactionRecords, complete, packed
from headrace.metadata.watermark_records import WriterMarkRecords
from headrace.model.commit_sets import (
    SETS_PER_RUN_MAX,
    TRANSACTIONS_PER_RUN_MAX,
    CommitPart,
    CommitRun,
    RunSet,
    WaitingMark,
    aborted_together,
    plan_run,
)
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
from headrace.model.streams import Stream, commit_ended, epoch_recorded, rolled, started
from headrace.model.transactions import (
    Roll,
    Transaction,
    aborted,
    committed,
    must_roll,
    roll_of,
    scale_after_roll,
    segment_of_transaction,
    segments_created,
    segments_with_events,
)
from headrace.ports.clock import require_time_for_piece
from headrace.ports.metadata_store import (
    READS_PER_BATCH_MAX,
    WRITES_PER_TRANSACTION_MAX,
    Check,
    Write,
    WriteConflictError,
)
from headrace.ports.workers import each_piece

# Lets a commit roll that cannot merge into the active segments, because a client has sealed one of them.


def roll_instead(tools: Tools, stored: StoredStream, run: CommitRun) -> tuple[StoredStream, CommitRun]:
    """Let a run roll that did not. What it has merged so far stays in the segments that the roll replaces.

    Raises WriteConflictError if another process has made progress with the run. A scale that waits for the run was
    planned for the active epoch, so it is planned for the one that follows the roll. Other operations that wait are
    planned when they begin, or name a position of the stream, which stays.
    """
    stream, rolling = stored.stream, replace(run, rolls=True)
    writes: list[Write] = [replace_run(stream.scope, stream.name, rolling)]
    if stream.following is not None and stream.following.kind is RequestKind.SCALE_STREAM:
        planned = tools.records.transition(stream)
        if planned is None:
            raise ConflictError(f"a scale of {stream.scoped_name} has just ended: reading again")
        roll = roll_of(stream.epoch, tools.history.epoch(stream, run.reference_epoch), run.started_ms)
        writes.append(replace_transition(stream, scale_after_roll(planned, roll)))
    stored = tools.records.replace(stored, stream, *writes)
    _log.warning("a client has sealed an active segment of %s: the commit replaces them", stream.scoped_name)
    return stored, rolling


COMPLETION_WRITES_MAX = WRITES_PER_TRANSACTION_MAX
LAST_WRITES_MAX = WRITES_PER_TRANSACTION_MAX - 2
"""With room for the current record and the run."""

SEGMENTS_CHECKED_MAX = 10_000
"""So many names of segments are in memory at once: a set can have millions, if its stream has a thousand segments."""

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
        if stored is None or (stored.stream.state.settles_transactions and not while_sealing):
            return False  # Sealing or freezing a stream commits what is left; deleting it forgets everything.
        if stored.stream.state.is_frozen and not stored.stream.state.settles_transactions:
            return False  # A transaction that was begun late waits for the end of the freeze.
        is_running = stored.stream.state.runs(RequestKind.COMMIT_TRANSACTIONS)
        if is_running == (run is None) and not stored.stream.state.settles_transactions:
            # A batch read is not a snapshot: another process began or ended a run in the middle of it.
            raise WriteConflictError(f"a commit of {stored.stream.scoped_name} has just begun or ended", {})
        if run is not None:
            self._finish(stored, run, None)
            return True
        marks = self._transactions.marks(scope, stream, TRANSACTIONS_PER_RUN_MAX)
        if not marks:
            return False
        parts = self._parts(scope, stream, marks)
        taken = plan_run(marks, {set_id: part.part for set_id, part in parts.items()})
        batch = self._still_open(scope, stream, taken.transactions)
        if tuple(stored.transaction.transaction_id for stored in batch) != taken.transactions:
            raise WriteConflictError(f"transactions of {scope}/{stream} were just committed by another process", {})
        if stored.stream.state.is_sealed and not taken.sets:
            self._abort_late(stored, batch)
        else:
            stored, run = self._begin(stored, batch, taken.sets, parts)
            self._finish(stored, run, batch)
        return True

    def _abort_late(self, stored: StoredStream, batch: Sequence[StoredTransaction]) -> None:
        """Abort marked transactions of a sealed stream. The seal did not see them, so each was begun after it.

        Another client has marked it before its creator, which reads the stream after its write, could remove it.
        """
        for transaction in [each.transaction for each in batch]:
            self._abort_whole(
                stored, transaction.reference_epoch, transaction.transaction_id, "it was begun after the seal"
            )
            require_time_for_piece(f"commits of {stored.stream.scoped_name}")

    def _parts(self, scope: str, stream: str, marks: Sequence[WaitingMark]) -> dict[str, StoredPart]:
        """The parts of the first sets among the marks; one batch read if there are sets.

        Raises WriteConflictError if the marks have changed since they were read.
        """
        sets = [mark.commit_set for mark in marks if mark.commit_set is not None][:SETS_PER_RUN_MAX]
        if not sets:
            return {}
        records = self._transactions.store.get_many([commit_part_key(scope, stream, each) for each in sets])
        parts = {set_id: part for set_id, record in zip(sets, records, strict=True) if (part := stored_part(record))}
        if len(parts) < len(sets):
            raise WriteConflictError(f"a commit set of {scope}/{stream} was just committed by another process", {})
        return parts

    def _begin(
        self,
        stored: StoredStream,
        batch: Sequence[StoredTransaction],
        sets: tuple[RunSet, ...],
        parts: Mapping[str, StoredPart],
    ) -> tuple[StoredStream, CommitRun]:
        stream = stored.stream
        epoch = batch[0].transaction.reference_epoch
        identifiers = tuple(stored.transaction.transaction_id for stored in batch)
        rolls = must_roll(stream.epoch, epoch)
        with self._conflict_if_changed(stored):
            stored, incomplete = self._incomplete(stored, batch, sets, parts)
        run = CommitRun(identifiers, epoch, stream.epoch.number, rolls, self._tools.clock.now_ms(), incomplete, sets)
        create = create_run(stream.scope, stream.name, run)
        if stream.state.settles_transactions:
            self._tools.records.while_unchanged(stored, create)
            return stored, run
        committing = started(stream, stored.version, RequestKind.COMMIT_TRANSACTIONS)
        return self._tools.records.replace(stored, committing, create), run

    def _incomplete(
        self,
        stored: StoredStream,
        batch: Sequence[StoredTransaction],
        sets: tuple[RunSet, ...],
        parts: Mapping[str, StoredPart],
    ) -> tuple[StoredStream, tuple[int, ...]]:
        """The transactions that lost bytes or whole segments with a volume, and those that are aborted with them.

        A store rejects the merge of a segment that lacks bytes, but other segments of the transaction may be merged by
        then. A missing segment shows a loss only before a run begins: later it may have been merged. So before the
        first run of a commit set, all of its members are checked; later it is too late for those of former runs.

        A loss is noted with a new version of the stream, so that no process begins a run for which it saw no loss.
        """
        stream, transactions = stored.stream, [stored.transaction for stored in batch]
        lost = self._lost(stream, transactions)
        begun = {writer.set_id for writer in sets if writer.mark.position}
        lost_sets = {set_id for set_id, part in parts.items() if part.part.lost}
        for writer in sets:
            if writer.rest is None or writer.set_id in begun | lost_sets:
                continue
            if self._lost_any(stream, parts[writer.set_id].part, transactions, lost):
                after = replace(parts[writer.set_id].part, lost=True)
                noted = replace_commit_part(stream.scope, stream.name, parts[writer.set_id], after)
                # A run of a stream that is being sealed leaves its record unchanged: what is missing may be merged.
                no_run = Check(commit_run_key(stream.scope, stream.name), None)
                stored = self._tools.records.replace(stored, stream, noted, no_run)
                lost_sets.add(writer.set_id)
        return stored, aborted_together(transactions, lost, begun, lost_sets)

    def _lost_any(self, stream: Stream, part: CommitPart, in_run: Sequence[Transaction], lost: Collection[int]) -> bool:
        """Whether a member of the set lost bytes, in the run or after it."""
        if any(member in lost for member in part.members):
            return True
        checked = {transaction.transaction_id for transaction in in_run}
        rest = [member for member in part.members if member not in checked]
        unfinished = self._still_open(stream.scope, stream.name, rest)
        return bool(self._lost(stream, [stored.transaction for stored in unfinished]))

    def _lost(self, stream: Stream, transactions: Sequence[Transaction]) -> set[int]:
        lost: set[int] = set()
        owners: dict[str, int] = {}
        for number, transaction in enumerate(transactions, 1):
            owners |= dict.fromkeys(self._segments(stream, transaction), transaction.transaction_id)
            if owners and (len(owners) >= SEGMENTS_CHECKED_MAX or number == len(transactions)):
                lost.update(owners[name] for name in self._tools.segment_stores.incomplete_segments(list(owners)))
                owners = {}
        return lost

    def _segments(self, stream: Stream, transaction: Transaction) -> list[str]:
        """The segments of the transaction that can have events."""
        own = self._history.epoch(stream, transaction.reference_epoch).segments
        written = segments_with_events(transaction, own)
        return [segment_of_transaction(stream.scope, stream.name, each, transaction.transaction_id) for each in written]

    def _all_segments(self, stream: Stream, epoch: int, identifier: int) -> list[str]:
        """The segments that the transaction can have: of a completed one it is not read which it has created."""
        own = self._history.epoch(stream, epoch).segments
        return [segment_of_transaction(stream.scope, stream.name, each, identifier) for each in own]

    def _finish(self, stored: StoredStream, run: CommitRun, batch: Sequence[StoredTransaction] | None) -> None:
        """The part of a run after its beginning; `batch` are its transactions, if they were just read."""
        with self._conflict_if_changed(stored):
            try:
                self._merge_whole(stored, run, batch)
            except SealedError:
                if run.rolls:
                    raise
            else:
                return
        stored, run = roll_instead(self._tools, stored, run)
        with self._conflict_if_changed(stored):
            self._merge_whole(stored, run, None)

    @contextlib.contextmanager
    def _conflict_if_changed(self, stored: StoredStream) -> Iterator[None]:
        """A late process finds segments sealed or deleted by later operations: its own work is complete then."""
        try:
            yield
        except (SealedError, NotFoundError) as error:
            present = self._tools.records.find(stored.stream.scope, stored.stream.name)
            if present is None or present.version != stored.version:
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
        """Of those that were aborted before, only the last may have segments: they are deleted one after another."""
        opened = self._still_open(stored.stream.scope, stored.stream.name, run.incomplete)
        first = run.incomplete.index(opened[0].transaction.transaction_id) if opened else len(run.incomplete)
        for identifier in run.incomplete[max(0, first - 1) :]:
            self._abort_whole(stored, run.reference_epoch, identifier, "bytes of it or of its commit set are lost")
            require_time_for_piece(f"commits of {stored.stream.scoped_name}")

    def _abort_refused(self, stored: StoredStream, run: CommitRun, source: str) -> None:
        """Record the transaction as aborted before its segments are deleted: a missing segment counts as merged.

        The rejected segment is deleted last. Until then no process that repeats the run merges the later ones.
        """
        segments = {
            transaction: self._all_segments(stored.stream, run.reference_epoch, transaction)
            for transaction in run.transactions
        }
        identifier = next((transaction for transaction, names in segments.items() if source in names), None)
        if identifier is None:
            raise CorruptError(
                f"a commit of {stored.stream.scoped_name} was rejected for {source}, which it does not merge"
            )
        self._abort(stored, identifier, f"{source} may lack bytes")
        self._tools.segment_stores.delete_segments([name for name in segments[identifier] if name != source])
        self._tools.segment_stores.delete_segments([source])

    def _abort_whole(self, stored: StoredStream, epoch: int, identifier: int, reason: str) -> None:
        self._abort(stored, identifier, reason)
        self._tools.segment_stores.delete_segments(self._all_segments(stored.stream, epoch, identifier))

    def _abort(self, stored: StoredStream, identifier: int, reason: str) -> None:
        stream = stored.stream
        for left in self._transactions.still_open(stream.scope, stream.name, [identifier]):
            ended = aborted(left.transaction, self._tools.clock.now_ms())
            self._tools.records.while_unchanged(stored, *complete(stream.scope, stream.name, left, ended))
            _log.error("transaction %032x of %s is aborted: %s", identifier, stream.scoped_name, reason)

    def _merge_and_complete(
        self, stored: StoredStream, run: CommitRun, batch: Sequence[StoredTransaction] | None
    ) -> None:
        """Merge the transactions of the run, and complete those that are left."""
        scope, name = stored.stream.scope, stored.stream.name
        left = self._still_open(scope, name, run.transactions) if batch is None else batch
        transactions = [stored.transaction for stored in left]
        if run.rolls and stored.stream.epoch.number == run.active_epoch:
            stored = self._roll(stored, run, transactions)
        elif not run.rolls:
            self._merge(stored.stream, stored.stream.epoch, run, transactions)
        times = {time.writer: time.timestamp for transaction in transactions if (time := transaction.writer_time)}
        position = self._position(stored.stream, run) if times else ()
        for writer, timestamp in times.items():  # the last time of each writer includes the others
            self._marks.note_commit(scope, name, writer, timestamp, dict(position))
        self._complete(stored, run, left, position)

    def _roll(self, stored: StoredStream, run: CommitRun, transactions: Sequence[Transaction]) -> StoredStream:
        """Roll through the epoch of the transactions. Its segments are filled and sealed before clients see them."""
        tools, stream = self._tools, stored.stream
        replaced = stream.epoch
        roll = roll_of(replaced, self._history.epoch(stream, run.reference_epoch), run.started_ms)
        if stream.recorded_epoch == replaced.number:
            if not must_roll(replaced, run.reference_epoch):  # a late process must not merge into them behind the roll
                seal_segments(tools, stream, replaced.segments)
            self._fill(stored, roll, run, transactions)
            records = (*create_epoch(stream, roll.passed), *create_epoch(stream, roll.following))
            stored = self._tools.records.replace(stored, epoch_recorded(stream, roll.following), *records)
        seal_segments(tools, stream, replaced.segments)
        record_sizes(tools, stored, replaced.segments, replaced_in=roll.passed.number)
        record_sizes(tools, stored, roll.passed.segments, replaced_in=roll.following.number)
        return self._tools.records.replace(stored, rolled(stored.stream, roll.following))

    def _fill(self, stored: StoredStream, roll: Roll, run: CommitRun, transactions: Sequence[Transaction]) -> None:
        stream = stored.stream
        create_segments(self._tools, stored, (*roll.passed.segments, *roll.following.segments))
        # An earlier attempt may have begun to seal, which it does when all segments are merged.
        with contextlib.suppress(SealedError):
            self._merge(stream, roll.passed, run, transactions)
        seal_segments(self._tools, stream, roll.passed.segments)

    def _merge(self, stream: Stream, into: Epoch, run: CommitRun, transactions: Sequence[Transaction]) -> None:
        """Merge the segments of each transaction into the segments of `into` with the same numbers.

        `transactions` are those of the run that are not completed. Of the others all segments are named: a segment that
        is gone counts as merged, and one that a store refused is refused again, until it is deleted.
        """
        known = {transaction.transaction_id: transaction for transaction in transactions}
        own = {segment.number: segment for segment in self._history.epoch(stream, run.reference_epoch).segments}
        for target in into.segments:
            source = own[target.number]
            sources = [
                segment_of_transaction(stream.scope, stream.name, source, transaction)
                for transaction in run.transactions
                if transaction not in run.incomplete
                and (transaction not in known or segments_created(known[transaction], [source]))
            ]
            if sources:
                name = segment_name(stream.scope, stream.name, target.segment_id)
                self._tools.segment_stores.merge_segments(name, sources)

    def _position(self, stream: Stream, run: CommitRun) -> _Position:
        """A position after the last event of the run, and perhaps after events that other writers wrote meanwhile."""
        into = self._history.epoch(stream, run.active_epoch + 1) if run.rolls else stream.epoch
        names = [segment_name(stream.scope, stream.name, segment.segment_id) for segment in into.segments]
        infos = self._tools.segment_stores.segment_infos(names)
        return tuple((segment.segment_id, info.length) for segment, info in zip(into.segments, infos, strict=True))

    def _complete(
        self, stored: StoredStream, run: CommitRun, left: Sequence[StoredTransaction], position: _Position
    ) -> None:
        """Record the transactions as committed. The write of the last ones ends the run, and what it did of sets.

        The writes of the others share no record, and run at the same time. They do not check that the stream is
        unchanged: each fails unless its transactions are as they were when the run was found, and after their merge
        nothing but their completion is left to be done with them, in whichever run.
        """
        stream, now_ms = stored.stream, self._tools.clock.now_ms()
        ends = [write for each in run.sets for write in set_ends(stream, each)]
        completions = [
            complete(stream.scope, stream.name, stored, committed(stored.transaction, position, now_ms))
            for stored in left
        ]
        *earlier, last = packed(completions, COMPLETION_WRITES_MAX, LAST_WRITES_MAX - len(ends))
        what = f"commits of {stream.scoped_name}"
        each_piece(self._tools.workers, lambda piece: self._tools.store.write(*piece), earlier, what)
        self._tools.records.replace(stored, commit_ended(stream), delete_run(stream.scope, stream.name), *ends, *last)

    def _still_open(self, scope: str, stream: str, identifiers: Sequence[int]) -> list[StoredTransaction]:
        """Those that are not completed, in the given order; batch reads that do not wait for each other."""
        by_id: dict[int, StoredTransaction] = {}

        def read(start: int) -> None:
            for stored in self._transactions.still_open(
                scope, stream, identifiers[start : start + READS_PER_BATCH_MAX]
            ):
                by_id[stored.transaction.transaction_id] = stored

        starts = range(0, len(identifiers), READS_PER_BATCH_MAX)
        each_piece(self._tools.workers, read, starts, f"commits of {scope}/{stream}")
        return [by_id[identifier] for identifier in identifiers if identifier in by_id]
