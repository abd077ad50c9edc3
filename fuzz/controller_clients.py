"""Clients of the controller: writers of transactions and of commit sets, clients that continue theirs, and readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fuzz.controller_model import (
    KEYS,
    LONG_MS,
    SCOPE,
    STREAMS,
    ModelTransaction,
    Place,
    Reading,
    event_bytes,
    parse_events,
)
from fuzz.controller_run import ATTEMPTS, ControllerRun
from headrace.api.plans import NextCutView
from headrace.api.transactions import TransactionSegmentView
from headrace.controller.services.reader_plans import NextCutService
from headrace.controller.services.transaction_service import TransactionService
from headrace.metadata.commit_records import find_commit_part
from headrace.metadata.transaction import decode_transaction, open_key
from headrace.model.errors import IllegalStateError, NotFoundError, SealedError
from headrace.model.transactions import TransactionState, WriterTime

SHORT_LEASE_MS: Final = 20_000
_ATTEMPTS_PER_SET: Final = 3
_LABELS: Final = (None, "w0/1/x", "z")
_PREFIXES: Final = ("w0/", "w1/1", "z")
_BATCHES_MAX: Final = 15
_FOLLOWER_TURNS_MAX: Final = 30
_BATCH_BYTES: Final = (None, 1, 10, 25)
_LISTED_MAX: Final = 20
_SUCCESSOR_TURNS_MAX: Final = 15
_ATTEMPTS: Final = 8
_TURNS_TO_PREPARE: Final = 400


class Clients:
    """The work of clients. Each method is what one process does."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._random = run.random
        self._plane = run.plane
        self._model = run.model

    def begin(self, stream: str, label: str | None = None, lease_ms: int = LONG_MS) -> ModelTransaction:
        """Begin a transaction, and write a few events into it."""
        on_demand = self._random.random() < 0.5
        transaction, segments = self.begin_empty(stream, label, lease_ms, on_demand=on_demand)
        for _ in range(self._random.randint(1, 3)):
            self.write_event(transaction, segments, on_demand=on_demand)
        return transaction

    def begin_empty(
        self, stream: str, label: str | None = None, lease_ms: int = LONG_MS, *, on_demand: bool
    ) -> tuple[ModelTransaction, Sequence[TransactionSegmentView]]:
        """A transaction without events, and its segments."""
        with self._run.late.call():
            view = self._run.service().create_transaction(SCOPE, stream, lease_ms, label=label, on_demand=on_demand)
        transaction = self._model.add((stream, view.transaction_id), may_expire=lease_ms < LONG_MS)
        transaction.is_begun = True
        self._run.trace.note(f"begun {stream} {view.transaction_id:x}, labelled {label}")
        return transaction, view.segments

    def write_event(
        self, transaction: ModelTransaction, segments: Sequence[TransactionSegmentView], *, on_demand: bool
    ) -> None:
        """Append an event of any key, and first create its segment if that is done on demand."""
        key = self._random.randrange(len(KEYS))
        (owner,) = [segment for segment in segments if segment.key_range.low <= KEYS[key] < segment.key_range.high]
        if on_demand:
            self._run.retry(lambda: self._create(self._run.service(), transaction, owner))
        self._run.give_turn()
        event, name = self._model.next_event(), owner.transaction_segment
        stores = self._plane.bare_segment_stores
        try:
            stores.append(name, event_bytes(key, event), stores.segment_info(name).length)
        except (NotFoundError, SealedError) as error:
            raise IllegalStateError(f"{name} is gone") from error
        transaction.events.append((key, event))

    def write_transactions(self) -> None:
        """A writer that commits or aborts its transactions one by one."""
        stream = self._random.choice(STREAMS)
        for _ in range(self._random.randint(1, 3)):
            with self._run.refusals_noted("transaction"):
                self._write_transaction(stream)

    def _write_transaction(self, stream: str) -> None:
        run, random, model = self._run, self._random, self._model
        lease_ms = random.choice((LONG_MS, LONG_MS, SHORT_LEASE_MS))
        transaction = self.begin(stream, random.choice(_LABELS), lease_ms)
        place = transaction.place
        if random.random() < 0.3:
            run.retry(lambda: run.service().ping_transaction(SCOPE, *place, SHORT_LEASE_MS))
        if random.random() < 0.2:
            run.retry(lambda: run.service().abort_transaction(SCOPE, *place))
            run.note("abort")
            return
        transaction.is_committed_alone = True
        transaction.first_commit = transaction.first_commit or model.next_moment()
        noted = WriterTime("u", transaction.first_commit) if random.random() < 0.3 else None
        run.retry(lambda: run.service().commit_transaction(SCOPE, *place, noted))
        transaction.committed = transaction.committed or model.next_moment()
        run.note("commit")

    def write_sets(self, writer: str, home: str, epochs: range, *, asks: bool) -> None:
        """A writer that commits a set for each epoch, and after an error the epoch again with other transactions.

        With `asks` it first asks which epoch was committed, as a sink does after a restart.
        """
        for epoch in epochs:
            for attempt in range(_ATTEMPTS_PER_SET):
                with self._run.refusals_noted("set"):
                    if not (asks and self._is_committed(writer, home, epoch)):
                        self._write_set(writer, home, epoch, attempt)
                    break

    def _is_committed(self, writer: str, home: str, epoch: int) -> bool:
        answer = self._run.retry(lambda: self._run.service().sets.committed_epoch(SCOPE, home, writer))
        return answer.epoch is not None and answer.epoch >= epoch

    def _write_set(self, writer: str, home: str, epoch: int, attempt: int) -> None:
        run, random = self._run, self._random
        if run.has_large_sets:
            streams = random.choices(random.sample(STREAMS, 2), k=random.randint(3, 9))
        else:
            streams = random.choices(STREAMS, k=random.randint(1, 5))
        members: dict[str, list[int]] = {}
        for stream in streams:
            place = self.begin(stream, f"{writer}/{epoch}/{attempt}").place
            members.setdefault(stream, []).append(place[1])
        known = self._model.transactions.values()
        others = [each.place for each in known if not each.may_expire and each.has_segments]
        if others and random.random() < 0.25:  # perhaps a transaction of another writer
            stream, identifier = random.choice(others)
            if identifier not in members.get(stream, ()):
                members.setdefault(stream, []).append(identifier)
        abort_labels = writer if random.random() < 0.3 else None
        self.commit_set(writer, home, epoch, members, abort_labels)

    def commit_set(
        self,
        writer: str,
        home: str,
        epoch: int,
        members: dict[str, list[int]],
        abort_labels: str | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        """Commit a set; `attempts` bounds the repetitions."""
        run = self._run
        call = self._model.call(writer, home, epoch, members)
        run.trace.note(f"{call}")

        def commit() -> bool:
            service = run.service().sets
            view = service.commit_all(SCOPE, home, call.members, writer=writer, epoch=epoch, abort_labels=abort_labels)
            return view.new

        is_new = run.retry(commit, attempts)
        self._model.answered(call, is_new=is_new)
        run.note("set" if is_new else "set of a committed epoch")

    def interfere(self) -> None:
        """A client that aborts, commits and renews transactions of others."""
        for _ in range(2):
            with self._run.refusals_noted("interference"):
                self._interfere()
                self._run.note("interference")

    def _interfere(self) -> None:
        run, random = self._run, self._random
        if random.random() < 0.5 or not self._model.transactions:
            stream, prefix = random.choice(STREAMS), random.choice(_PREFIXES)
            run.retry(lambda: run.service().abort_labelled(SCOPE, stream, prefix))
            return
        transaction = random.choice(list(self._model.transactions.values()))
        random.choice((_abort, self.commit_alone, _ping, self._create_segments))(run.service(), transaction)

    def commit_alone(self, service: TransactionService, transaction: ModelTransaction) -> None:
        """One attempt to commit a transaction by itself. Not without segments, which a commit takes for a loss."""
        if not transaction.has_segments:
            raise IllegalStateError(f"{transaction.place} may have no segment yet")
        transaction.is_committed_alone = True
        transaction.first_commit = transaction.first_commit or self._model.next_moment()
        service.commit_transaction(SCOPE, *transaction.place)
        transaction.committed = transaction.committed or self._model.next_moment()

    def _create_segments(self, service: TransactionService, transaction: ModelTransaction) -> None:
        view = service.segments_of(SCOPE, *transaction.place)
        self._create(service, transaction, self._random.choice(view.segments))

    def _create(
        self, service: TransactionService, transaction: ModelTransaction, segment: TransactionSegmentView
    ) -> None:
        with self._run.late.call():
            service.create_segments(SCOPE, *transaction.place, [segment.segment_id])


def _abort(service: TransactionService, transaction: ModelTransaction) -> None:
    service.abort_transaction(SCOPE, *transaction.place)


def _ping(service: TransactionService, transaction: ModelTransaction) -> None:
    service.ping_transaction(SCOPE, *transaction.place, 1_000 * SHORT_LEASE_MS)


class Followers:
    """Each public method is the work of one process."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._random = run.random
        self._next_cuts = NextCutService(run.plane.store, run.plane.segment_stores)

    def follow(self) -> None:
        """Read batches from the head on. What was read must be the beginning of the stream in the end."""
        run, stream = self._run, self._random.choice(STREAMS)
        reading = Reading(stream, run.model.incarnation(stream), [[] for _ in KEYS])
        offsets: Mapping[int, int] | None = None
        for _ in range(self._random.randint(2, _BATCHES_MAX)):
            with run.refusals_noted("follower"):
                offsets = self._read_batch(reading, offsets)
                run.happened["batch read"] += 1
            for _ in range(self._random.randint(0, _FOLLOWER_TURNS_MAX)):
                run.give_turn()
        run.model.readings.append(reading)

    def _read_batch(self, reading: Reading, offsets: Mapping[int, int] | None) -> Mapping[int, int]:
        view = self._run.retry(lambda: self._next_cut(reading.stream, offsets))
        if offsets is None:  # The stream may have been deleted and created again meanwhile.
            reading.incarnation = self._run.model.incarnation(reading.stream)
        found: list[tuple[int, int]] = []
        for span in view.ranges:
            length = span.end_offset - span.start_offset
            found += parse_events(self._run.plane.bare_segment_stores.read(span.name, span.start_offset, length))
        for key, event in found:
            reading.events[key].append(event)
        return view.end.offsets

    def _next_cut(self, stream: str, offsets: Mapping[int, int] | None) -> NextCutView:
        bytes_max, is_strict = self._random.choice(_BATCH_BYTES), self._random.random() < 0.5
        return self._next_cuts.next_cut(SCOPE, stream, offsets, bytes_max=bytes_max, strict_key_order=is_strict)


class Successors:
    """Each public method is the work of one process."""

    def __init__(self, run: ControllerRun, clients: Clients) -> None:
        self._run = run
        self._random = run.random
        self._clients = clients

    def continue_listed(self) -> None:
        """Find open transactions of a stream, write into them, and commit some."""
        stream = self._random.choice(STREAMS)
        for _ in range(self._random.randint(2, 6)):
            with self._run.refusals_noted("successor"):
                found = self._run.service().list_open(SCOPE, stream, _LISTED_MAX).items
                opened = [each for each in found if each.state is TransactionState.OPEN]
                if opened:
                    transaction = self._random.choice(opened)
                    is_long = transaction.lease_end_ms - transaction.created_ms >= LONG_MS
                    known = self._run.model.add((stream, transaction.transaction_id), may_expire=not is_long)
                    self._write(known)
                    if self._random.random() < 0.4:
                        self._commit(known)
            self._wait()

    def share(self, place: Place, turns: int) -> None:
        """Write into a transaction, and perhaps commit it, so many turns after the others have begun."""
        transaction = self._run.model.transactions[place]
        for _ in range(turns):
            self._run.give_turn()
        wanted, is_committed = self._random.randint(1, 3), self._random.random() < 0.4
        for _ in range(_ATTEMPTS):  # It is refused while a commit set has prepared the transaction.
            self._wait()
            with self._run.refusals_noted("successor"):
                if wanted > 0:
                    self._write(transaction)
                    wanted -= 1
                elif not is_committed:
                    self._commit(transaction)
                    is_committed = True

    def abort(self, place: Place, shared: Place) -> None:
        """Abort a transaction once a commit set of it has prepared the shared one, or after some time."""
        store = self._run.plane.bare_store
        for _ in range(_TURNS_TO_PREPARE):
            self._run.give_turn()
            record = store.get(open_key(SCOPE, *shared))
            commit_set = None if record is None else decode_transaction(record.body).commit_set
            part = None if commit_set is None else find_commit_part(store, SCOPE, place[0], commit_set)
            if part is not None and place[1] in part.part.members:
                break
        with self._run.refusals_noted("successor"):
            self._run.service().abort_transaction(SCOPE, *place)

    def _write(self, transaction: ModelTransaction) -> None:
        view = self._run.service().segments_of(SCOPE, *transaction.place)
        self._clients.write_event(transaction, view.segments, on_demand=view.on_demand)
        self._run.note("event of a successor")

    def _commit(self, transaction: ModelTransaction) -> None:
        """Only with an event: without one, the segments may not exist yet, which a commit takes for a loss."""
        if not transaction.events:
            raise IllegalStateError(f"{transaction.place} has no event")
        self._run.retry(lambda: self._clients.commit_alone(self._run.service(), transaction))
        self._run.note("commit of a successor")

    def _wait(self) -> None:
        for _ in range(self._random.randint(0, _SUCCESSOR_TURNS_MAX)):
            self._run.give_turn()
