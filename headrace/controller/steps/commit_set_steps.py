"""The decision on a commit set: all of its transactions are committed, or none.

A set is begun (its writer and its parts note it), its members are prepared, and one write decides: it makes the epoch
the committed one of the writer, and gives each part a place in the order of its stream. If a member is not open, the
set is refused instead: its members are released, and its parts are deleted. Any process that finds an undecided set
can finish it, also together with others: each write fails if its state has changed.

A prepared member without a part was released late or prepared late, and belongs to no set: a set's parts exist from
before its first member is prepared until its last member is completed or released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from headrace.metadata.commit_records import (
    StoredPart,
    StoredWriter,
    create_commit_part,
    create_commit_writer,
    create_order,
    delete_commit_part,
    find_commit_part,
    find_commit_parts,
    find_commit_writer,
    replace_commit_part,
    replace_commit_writer,
)
from headrace.metadata.optimistic_retry import ConflictBackoff, repeat_on_conflict
from headrace.metadata.stream_records import StoredStream
from headrace.metadata.transaction import StoredTransaction, replace_open
from headrace.metadata.transaction_records import TransactionRecords
from headrace.model.commit_sets import (
    CommitPart,
    CommitWriter,
    Members,
    PendingSet,
    WaitingMark,
    begun,
    decided,
    forgotten,
    member_chunks,
    ordered,
    refused,
)
from headrace.model.transactions import Transaction, TransactionState, prepared, released
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Write
from headrace.ports.workers import Workers, each_piece

_log = logging.getLogger(__name__)

T = TypeVar("T")
Known = Mapping[tuple[str, int], StoredTransaction]
"""Transactions that were just read, by stream and id."""

RequestCommit = Callable[[str, str, int, bool], None]
_Change = Callable[[StoredTransaction | None], Transaction | None]
_Piece = Callable[[], None]


def leave_to_tick(_scope: str, _stream: str, _first: int, _none_waited: bool) -> None:
    """No commit message: the tick sends it when it checks the members."""


def prepared_by_set(transactions: Iterable[StoredTransaction]) -> dict[str, list[int]]:
    """The members of commit sets among these transactions of a stream that are not completed, by set."""
    members: dict[str, list[int]] = {}
    for transaction in (stored.transaction for stored in transactions):
        if transaction.commit_set is not None and transaction.completed_ms is None:
            members.setdefault(transaction.commit_set, []).append(transaction.transaction_id)
    return members


class MemberNotOpenError(Exception):
    """A member of a set that is prepared is not open: the set must be refused."""


class CommitSets:
    """Begins and finishes commit sets; safe for any number of threads and processes, also on one set.

    Every method raises WriteConflictError if another process works on the same set or on a member: read again.
    """

    def __init__(
        self,
        transactions: TransactionRecords,
        clock: Clock,
        request_commit: RequestCommit,
        workers: Workers | None = None,
        backoff: ConflictBackoff | None = None,
    ) -> None:
        """`request_commit(scope, stream, first member, none waited)` sends the commit message after a decision.

        The last argument is True if no mark waited in the stream when the set got its place in the order.
        """
        self._transactions = transactions
        self._store = transactions.store
        self._clock = clock
        self._request_commit = request_commit
        self._workers = workers
        self._backoff = backoff

    def commit(
        self,
        home: StoredStream,
        stored: StoredWriter | None,
        name: str,
        pending: PendingSet,
        members: Members,
        known: Known,
    ) -> StoredWriter:
        """Begin a set and decide it; the writer afterwards, whose committed set it is unless it was refused.

        `known` are the members that were just read.
        """
        begun_writer, parts = self._begin(home, stored, name, pending, members)
        return self._finish(home.stream.scope, home.stream.name, begun_writer, parts, known)

    def _begin(
        self, home: StoredStream, stored: StoredWriter | None, name: str, pending: PendingSet, members: Members
    ) -> tuple[StoredWriter, dict[str, StoredPart]]:
        """Note the set in the record of its writer, and its parts; one transaction.

        It checks the record of the home stream, so that no record is left at a stream that was deleted meanwhile.
        """
        scope, home_name = home.stream.scope, home.stream.name
        after = begun(stored.writer if stored else CommitWriter(name), pending)
        # A writer's record may be deleted and created again with its stream: later versions differ from former ones.
        version = self._clock.now_ms() if stored is None else stored.version + 1
        writer = (
            create_commit_writer(scope, home_name, after, version)
            if stored is None
            else replace_commit_writer(scope, home_name, stored, after)
        )
        parts = {stream: CommitPart(pending.set_id, home_name, name, tuple(ids)) for stream, ids in members.items()}
        created = [create_commit_part(scope, stream, part) for stream, part in parts.items()]
        self._store.write(*home.unchanged(writer, *created))
        # No other set has these parts, so they are the first ones at their keys.
        return StoredWriter(after, version), {stream: StoredPart(part, 0) for stream, part in parts.items()}

    def finish(self, scope: str, home: str, writer: str) -> StoredWriter | None:
        """Decide the pending set of a writer, if there is one; the writer without it. One read if there is none."""
        stored = find_commit_writer(self._store, scope, home, writer)
        if stored is None or (pending := stored.writer.pending) is None:
            return stored
        stored_parts = find_commit_parts(self._store, scope, pending.streams, pending.set_id)
        return self._finish(scope, home, stored, stored_parts, {})

    def _finish(
        self,
        scope: str,
        home: str,
        stored: StoredWriter,
        stored_parts: Mapping[str, StoredPart | None],
        known: Known,
    ) -> StoredWriter:
        """Decide the pending set of the writer, whose parts are `found`."""
        pending = stored.writer.pending
        assert pending is not None, "only a pending set is decided"
        parts = {stream: part for stream, part in stored_parts.items() if part is not None}
        if not pending.refused:
            try:
                numbers = self._prepare(scope, pending, stored_parts, known)
                return self._decide(scope, home, stored, parts, numbers)
            except MemberNotOpenError as error:
                name = stored.writer.name
                _log.info("epoch %d of writer %s of %s/%s is refused: %s", pending.epoch, name, scope, home, error)
            after = refused(stored.writer)
            self._store.write(replace_commit_writer(scope, home, stored, after))
            stored = StoredWriter(after, stored.version + 1)
        self._release(
            scope, pending.set_id, {stream: stored_part.part.members for stream, stored_part in parts.items()}
        )
        after = forgotten(stored.writer)
        self._store.write(
            replace_commit_writer(scope, home, stored, after),
            *(delete_commit_part(scope, stream, pending.set_id, None) for stream in pending.streams),
        )
        return StoredWriter(after, stored.version + 1)

    def settle(self, scope: str, stream: str, set_id: str, identifiers: Sequence[int]) -> bool:
        """Finish the set that has prepared these members of this stream; whether the set is decided and commits them.

        Otherwise they are released. A process that is late may have prepared hundreds of a set that is gone. So a
        caller names all that it has found, and not one after the other.
        """
        stored = find_commit_part(self._store, scope, stream, set_id)
        if stored is not None and stored.part.order is None:
            stored = self._settle_undecided(scope, stream, stored)
        if stored is None:
            self._release(scope, set_id, {stream: identifiers})
            return False
        return True

    def _settle_undecided(self, scope: str, stream: str, stored: StoredPart) -> StoredPart | None:
        part = stored.part
        stored_writer = find_commit_writer(self._store, scope, part.home, part.writer)
        if (
            stored_writer is not None
            and (pending := stored_writer.writer.pending) is not None
            and pending.set_id == part.set_id
        ):
            self.finish(scope, part.home, part.writer)
            return find_commit_part(self._store, scope, stream, part.set_id)
        again = find_commit_part(self._store, scope, stream, part.set_id)
        if again is None or again.part.order is not None:
            return again
        # The part was there before the writer was read, which does not know the set: its home stream was deleted. No
        # process can decide the set without this version of the part.
        self._store.write(delete_commit_part(scope, stream, part.set_id, again.version))
        self._release(scope, part.set_id, {stream: part.members})
        return None

    def _prepare(
        self, scope: str, pending: PendingSet, stored_parts: Mapping[str, StoredPart | None], known: Known
    ) -> dict[str, int]:
        """Prepare the members that are not yet prepared; the numbers for the set in the orders of their streams.

        The numbers are read at the same time, so after the set was begun: earlier epochs of the writer were decided
        before, and have smaller ones. A mark that is written later is concurrent, and may be before or after the set.

        Raises MemberNotOpenError.
        """
        absent = [stream for stream, part in stored_parts.items() if part is None]
        if absent:
            raise MemberNotOpenError(f"stream {absent[0]} was deleted")

        def prepare(member: StoredTransaction | None) -> Transaction | None:
            if member is None:
                raise MemberNotOpenError("a transaction is completed or unknown")
            if member.transaction.commit_set == pending.set_id:
                return None
            if member.transaction.state is not TransactionState.OPEN:
                raise MemberNotOpenError(f"transaction {member.transaction.transaction_id:032x} is not open")
            return prepared(member.transaction, pending.set_id)

        members = {stream: stored_part.part.members for stream, stored_part in stored_parts.items() if stored_part}
        numbers: dict[str, int] = {}

        def read_number(stream: str) -> None:
            numbers[stream] = self._transactions.next_number(scope, stream)

        pieces = self._changes(scope, members, prepare, known)
        pieces += [partial(read_number, stream) for stream in members]
        self.each(_call, iter(pieces))
        return numbers

    def _release(self, scope: str, set_id: str, members: Members) -> None:
        """Release those of the members that this set has prepared."""

        def release(member: StoredTransaction | None) -> Transaction | None:
            is_prepared = member is not None and member.transaction.commit_set == set_id
            return released(member.transaction) if is_prepared and member is not None else None

        self.each(_call, iter(self._changes(scope, members, release, {})))

    def _changes(self, scope: str, members: Members, change: _Change, known: Known) -> list[_Piece]:
        """Replace the records of the members for which `change` returns another transaction: a piece for each chunk."""

        def process(stream: str, ids: Sequence[int]) -> None:
            just_read = [known.get((stream, each)) for each in ids]

            def attempt() -> None:
                nonlocal just_read
                stored, just_read = just_read, []
                if not stored or None in stored:
                    stored = self._read(scope, stream, ids)
                writes = [
                    replace_open(scope, stream, each, after)
                    for each in stored
                    if (after := change(each)) is not None and each is not None
                ]
                if writes:
                    self._store.write(*writes)

            repeat_on_conflict(attempt, backoff=self._backoff)

        return [partial(process, *chunk) for chunk in member_chunks(members)]

    def each(self, work: Callable[[T], None], items: Iterator[T]) -> None:
        """Call `work` for all items, with workers several at once. Raises OutOfTimeError if the time is over before.

        Without workers the requests themselves end at the deadline. So a tick, whose entries have little time, does a
        part of a large set, and the next one continues.
        """
        pieces = list(items)
        if self._workers is None:
            for item in pieces:
                work(item)
        else:
            each_piece(self._workers, work, pieces, "a commit set")

    def _read(self, scope: str, stream: str, ids: Sequence[int]) -> list[StoredTransaction | None]:
        by_id = {
            stored.transaction.transaction_id: stored for stored in self._transactions.still_open(scope, stream, ids)
        }
        return [by_id.get(each) for each in ids]

    def _decide(
        self, scope: str, home: str, stored: StoredWriter, parts: Mapping[str, StoredPart], numbers: Mapping[str, int]
    ) -> StoredWriter:
        """The write that commits the set. All its members are prepared, and only its refusal releases them."""
        now_ms = self._clock.now_ms()
        after = decided(stored.writer, now_ms)
        writes: list[Write] = [replace_commit_writer(scope, home, stored, after)]
        for stream, part in parts.items():
            waiting = ordered(part.part, numbers[stream])
            assert waiting.order is not None, "it was just ordered"
            mark = WaitingMark(waiting.members[0], now_ms, waiting.order, waiting.set_id)
            writes += [replace_commit_part(scope, stream, part, waiting), create_order(scope, stream, mark)]
        self._store.write(*writes)
        self.each(
            lambda stream: self._request_commit(scope, stream, parts[stream].part.members[0], numbers[stream] == 0),
            iter(parts),
        )
        return StoredWriter(after, stored.version + 1)


def _call(piece: _Piece) -> None:
    piece()
