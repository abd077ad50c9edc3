"""Commit sets: transactions of several streams that are committed together, once for each epoch of a writer.

`steps/commit_sets.py` has the decision. This service reads the members first, so that a set that cannot be committed is
refused before anything is written, and with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from headrace.api.transactions import CommitSetView, CommittedEpochView
from headrace.controller.services.transaction_marks import TransactionMarks, check_accepts_transactions
from headrace.controller.steps.commit_set_steps import CommitSets, prepared_by_set
from headrace.metadata.commit_records import StoredWriter, commit_writer_key, find_commit_writer, stored_writer
from headrace.metadata.optimistic_retry import ConflictBackoff, repeat_on_conflict
from headrace.metadata.stream import no_such_stream
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.metadata.transaction import StoredTransaction
from headrace.metadata.transaction_messages import TransactionQueues
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.commit_sets import (
    Members,
    PendingSet,
    check_set_epoch,
    check_set_members,
    check_set_note,
    check_set_writer,
    is_committed,
    member_chunks,
)
from headrace.model.errors import IllegalStateError, NotFoundError
from headrace.model.streams import Stream
from headrace.model.transactions import (
    TransactionState,
    already_aborted,
    already_committed,
    check_label,
    is_of_former_incarnation,
    labelled_epoch,
    no_such_transaction,
)
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError
from headrace.ports.workers import InTurn, Workers

_SET_ID_BITS = 128
_OPEN_PER_READ = 1_000

_Found = dict[tuple[str, int], StoredTransaction]
_Marks = list[tuple[str, int]]
"""Transactions that were marked for abort, by stream and id."""


@dataclass(slots=True)
class _Reads:
    """What is read of a set before it is begun; `home` is None if there is no such stream.

    `streams` are those of the other members. The members existed before the call, which was given their ids. So the
    seal of a stream that is not closed when it is read finds its members.
    """

    home: StoredStream | None = None
    streams: Mapping[tuple[str, str], Stream | None] = field(default_factory=dict)
    writer: StoredWriter | None = None
    members: _Found = field(default_factory=dict)

    def stream(self, scope: str, name: str) -> Stream | None:
        """None if it does not exist, or cannot be decoded."""
        if self.home is not None and self.home.stream.name == name:
            return self.home.stream
        return self.streams.get((scope, name))


class CommitSetService:
    """Called by the commit set routes of the API; safe for any number of threads.

    `random_bits(n)` returns n random bits.
    """

    def __init__(
        self,
        store: MetadataStore,
        queues: TransactionQueues,
        clock: Clock,
        random_bits: Callable[[int], int],
        backoff: ConflictBackoff | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._store = store
        self._streams = StreamRecords(store)
        self._transactions = TransactionRecords(store, self._streams)
        self._marks = TransactionMarks(self._transactions, queues, clock, workers or InTurn(), backoff)
        self._sets = CommitSets(self._transactions, clock, self._marks.request_set_commit, workers, backoff)
        self._random_bits = random_bits
        self._backoff = backoff

    def commit_all(
        self,
        scope: str,
        home: str,
        members: Members,
        *,
        writer: str,
        epoch: int,
        abort_labels: str | None = None,
        note: str | None = None,
    ) -> CommitSetView:
        """Commit these transactions, by stream, or none of them, as an epoch of a writer. Keeps the `note` with it.

        If this epoch or a later one was committed, the transactions that are open are marked for abort. In both cases,
        with `abort_labels`, so are the open ones with a label of this prefix and an epoch up to this one.

        Raises:
            InvalidRequestError: code "invalid_commit_set" or "invalid_label".
            IllegalStateError: code "transaction_committed" or "transaction_aborted": another request has done so.
            NotFoundError: code "transaction_not_found"; or there is no such stream.
            SealedError: the home stream or that of a member is sealed, or is being sealed.
        """
        wanted = check_set_members(members)
        check_set_writer(writer)
        check_set_epoch(epoch)
        check_set_note(note)
        if abort_labels is not None:
            check_label(abort_labels, "beginning of the label")
        begun: set[str] = set()
        view = repeat_on_conflict(
            lambda: self._try_to_commit(scope, home, wanted, writer, epoch, note, begun), backoff=self._backoff
        )
        if not view.new:
            # The process that committed the epoch may have stopped before it sent the messages.
            self._sets.each(lambda stream: self._marks.request_commit(scope, stream, wanted[stream][0]), iter(wanted))
            self._abort(scope, [self._member_marks(scope, *chunk) for chunk in member_chunks(wanted)])
        if abort_labels is not None:
            streams = dict.fromkeys((home, *wanted))
            self._abort(scope, [self._labelled_marks(scope, stream, abort_labels, epoch) for stream in streams])
        return view

    def committed_epoch(self, scope: str, home: str, writer: str) -> CommittedEpochView:
        """The last epoch of a writer that was committed. A set that is not decided is finished before.

        Raises NotFoundError if there is no such stream.
        """
        check_set_writer(writer)
        stored = repeat_on_conflict(lambda: self._sets.finish(scope, home, writer), backoff=self._backoff)
        if stored is None:
            self._streams.get(scope, home)
            return CommittedEpochView(writer, None, None)
        return CommittedEpochView(writer, stored.writer.epoch, stored.writer.time_ms, stored.writer.note)

    def _try_to_commit(
        self,
        scope: str,
        home: str,
        members: Mapping[str, Sequence[int]],
        writer: str,
        epoch: int,
        note: str | None,
        begun: set[str],
    ) -> CommitSetView:
        """Finish what is pending, then commit this set. `begun` has the ids of the sets that this call has begun.

        A conflict after the set was begun, and also its refusal, lead here again: the members tell what is the case.
        """
        reads = self._read(scope, home, members, writer)
        if reads.writer is not None and reads.writer.writer.pending is not None:
            self._sets.finish(scope, home, writer)
            reads = self._read(scope, home, members, writer)
        stored = reads.writer
        if stored is not None and stored.writer.pending is not None:
            raise WriteConflictError(f"writer {writer} has just begun another set", {})
        if stored is not None and is_committed(stored.writer, epoch):
            return _view(stored, new=stored.writer.set_id in begun)
        try:
            self._check_open(scope, members, reads)
            home_stream = self._check_streams(scope, home, members, reads)
        except (IllegalStateError, NotFoundError) as error:
            # Another process may have committed this very set between the two reads.
            if find_commit_writer(self._store, scope, home, writer) != stored:
                raise WriteConflictError(f"writer {writer} has just committed a set", {}) from error
            raise
        pending = PendingSet(f"{self._random_bits(_SET_ID_BITS):032x}", epoch, tuple(members), note=note)
        begun.add(pending.set_id)
        finished = self._sets.commit(home_stream, stored, writer, pending, members, reads.members)
        if finished.writer.set_id != pending.set_id:
            raise WriteConflictError(f"members of a set of writer {writer} have just changed", {})
        return _view(finished, new=True)

    def _read(self, scope: str, home: str, members: Mapping[str, Sequence[int]], writer: str) -> _Reads:
        """Everything that the commit of a set rests on, in requests that do not wait for each other.

        They are no snapshot: each write checks the versions of what it rests on. A member that is not open is
        looked at again, since its set may have released it before the writer was read.
        """
        reads = _Reads()
        others = [(scope, stream) for stream in members if stream != home]

        def read_home() -> None:
            reads.home, (record,) = self._streams.find_with(scope, home, commit_writer_key(scope, home, writer))
            reads.writer = stored_writer(record)

        def read_members(stream: str, ids: Sequence[int]) -> None:
            for stored in self._transactions.still_open(scope, stream, ids):
                reads.members[stream, stored.transaction.transaction_id] = stored

        def read_others() -> None:
            reads.streams = self._transactions.streams_of(others)

        requests: list[Callable[[], None]] = [read_home]
        requests += [read_others] if others else []
        requests += [partial(read_members, *chunk) for chunk in member_chunks(members)]
        self._sets.each(lambda request: request(), iter(requests))
        return reads

    def _check_open(self, scope: str, members: Mapping[str, Sequence[int]], reads: _Reads) -> None:
        """Raises the error of a member that is not open, or is left of a former incarnation of its stream."""
        stored_members = reads.members
        for (stream, identifier), stored in stored_members.items():
            present = reads.stream(scope, stream) or self._streams.get(scope, stream).stream
            if is_of_former_incarnation(stored.transaction.first_segment_number, present.first_segment_number):
                raise no_such_transaction(scope, stream, identifier)
        self._settle_others(scope, members, stored_members)
        for stream, ids in members.items():
            for identifier in ids:
                self._check_open_member(scope, stream, identifier, stored_members.get((stream, identifier)))

    def _check_streams(self, scope: str, home: str, members: Iterable[str], reads: _Reads) -> StoredStream:
        """The home stream. Raises the error of a stream that accepts no transactions."""
        if reads.home is None:
            raise no_such_stream(scope, home)
        check_accepts_transactions(reads.home.stream)
        for member in members:  # perhaps a member was begun after the seal, and is to be removed
            check_accepts_transactions(reads.stream(scope, member) or self._streams.get(scope, member).stream)
        return reads.home

    def _settle_others(self, scope: str, members: Mapping[str, Sequence[int]], stored: _Found) -> None:
        """Finish the commit sets that have prepared members.

        Raises WriteConflictError if one has released its members: then they are read again.
        """
        for stream, ids in members.items():
            for other, its in prepared_by_set(stored[stream, each] for each in ids if (stream, each) in stored).items():
                if not self._sets.settle(scope, stream, other, its):
                    raise WriteConflictError(f"commit set {other} has just released {len(its)} transactions", {})

    def _check_open_member(self, scope: str, stream: str, identifier: int, stored: StoredTransaction | None) -> None:
        if stored is not None and stored.transaction.state is TransactionState.OPEN:
            return
        if stored is None:
            stored = self._transactions.find(scope, stream, identifier)
            if stored is None:
                self._streams.get(scope, stream)
                raise no_such_transaction(scope, stream, identifier)
            if stored.transaction.completed_ms is None:
                raise WriteConflictError(f"transaction {identifier:032x} was just begun", {})
        transaction = stored.transaction
        error = already_committed(transaction) if transaction.state.is_commit else already_aborted(transaction)
        raise type(error)(error.message, details={**error.details, "stream": stream}, code=error.specific_code)

    def _abort(self, scope: str, searches: Sequence[Iterator[_Marks]]) -> None:
        """Do searches at the same time that mark transactions for abort, and then request the aborts.

        The messages are sent afterwards, since workers that called for others would be a thousand threads.
        """
        marked: list[tuple[str, int]] = []

        def mark(search: Iterator[_Marks]) -> None:
            for marks in search:
                marked.extend(marks)

        try:
            self._sets.each(mark, iter(searches))
        finally:
            self._marks.request_aborts(scope, marked)

    def _member_marks(self, scope: str, stream: str, ids: Sequence[int]) -> Iterator[_Marks]:
        """Mark those that are open. A prepared member of another set is left to that set."""
        still_open = self._transactions.still_open(scope, stream, ids)
        yield [(stream, each) for each in self._marks.mark_open(scope, stream, still_open)]

    def _labelled_marks(self, scope: str, stream: str, prefix: str, epoch: int) -> Iterator[_Marks]:
        """Mark those that are open and have a label of this prefix and an epoch up to this one, page by page."""
        after: int | None = None
        while True:
            page, has_more = self._transactions.open_transactions(scope, stream, _OPEN_PER_READ, after)
            former = [
                stored
                for stored in page
                if (labelled := labelled_epoch(stored.transaction.label, prefix)) is not None and labelled <= epoch
            ]
            yield [(stream, each) for each in self._marks.mark_open(scope, stream, former)]
            if not has_more:
                return
            after = page[-1].transaction.transaction_id


def _view(stored: StoredWriter, *, new: bool) -> CommitSetView:
    writer = stored.writer
    assert writer.epoch is not None, "an epoch of the writer is committed"
    assert writer.time_ms is not None, "it was committed at some time"
    return CommitSetView(writer.name, writer.epoch, writer.time_ms, new)
