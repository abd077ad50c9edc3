"""Random lives of a stream with transactions, against a model that says what a reader must see at every moment.

The model keeps the events of each key in the order in which they came into the stream: an event when it is written, a
transaction's events when its commit is worked on. Scales, rolls, crashes and time-outs must not show in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import stream_world
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace import topology
from headrace.model.errors import InvalidRequestError, TruncatedError
from headrace.model.names import segment_name
from headrace.model.segments import KeyRange
from headrace.model.stream_state import StreamState
from headrace.model.transactions import LEASE_GRACE_MS, LEASE_MS_MIN, TransactionState, reference_epoch_of

KEYS = (0.1, 0.4, 0.8)
EVENT_BYTES = 5
SEGMENTS_MAX = 5
KEY = st.integers(0, len(KEYS) - 1)
CHOICE = st.integers(0, 10**6)
CRASH_POSITIONS = st.integers(0, 40)


@dataclass
class Open:
    """What the model knows of a transaction that is neither committed nor aborted."""

    lease_end_ms: int
    events: list[tuple[int, bytes]] = field(default_factory=list)


class TransactionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world: Any = stream_world.StreamWorld()
        self.seen: list[list[bytes]] = [[] for _ in KEYS]
        self.gone = [0 for _ in KEYS]
        self.open: dict[int, Open] = {}
        self.marked: list[Open] = []
        self.outcomes: dict[int, TransactionState] = {}
        self.cuts: list[tuple[dict[int, int], list[int]]] = []
        self.events = 0
        self.epoch = 0
        self.is_sealed = False

    @initialize(segments=st.integers(1, 2))
    def create(self, segments: int) -> None:
        self.world.create(segments=segments)
        self.world.update(segments=1)  # A merge needs a smaller minimum.

    @precondition(lambda self: not self.is_sealed)
    @rule(key=KEY)
    def write(self, key: int) -> None:
        event = self._event(key)
        owner = _owning(self.world.records.get("s", "t").stream.epoch.segments, KEYS[key])
        name = segment_name("s", "t", owner.segment_id)
        stores = self.world.bare_segment_stores
        stores.append(name, event, stores.segment_info(name).length)
        self.seen[key].append(event)

    @precondition(lambda self: not self.is_sealed and len(self.open) < 6)
    @rule(keys=st.lists(KEY, max_size=3))
    def begin(self, keys: list[int]) -> None:
        identifier = self.world.begin(lease_ms=LEASE_MS_MIN)
        self.open[identifier] = Open(self.world.clock.now_ms() + LEASE_MS_MIN)
        for key in keys:
            self._write_in(identifier, key)

    @precondition(lambda self: not self.is_sealed and len(self.open) < 6)
    @rule(
        keys=st.lists(KEY, min_size=1, max_size=3),
        order=st.permutations(range(3)),
        scales=st.lists(st.tuples(CHOICE, st.booleans()), max_size=2),
        work=st.booleans(),
    )
    def transact(self, keys: list[int], order: list[int], scales: list[tuple[int, bool]], work: bool) -> None:
        """Some at once, marked in any order; often of one epoch with others that still wait, or of a former one."""
        begun = []
        for _ in order:
            self.begin(keys)
            begun.append(next(reversed(self.open)))
        for scale in scales:
            self.scale(*scale)
        for place in order:
            self.world.transactions.commit_transaction("s", "t", begun[place])
            self._mark(begun[place])
        if work:
            self.work()

    @precondition(lambda self: self.open)
    @rule(choice=CHOICE, key=KEY)
    def write_in_transaction(self, choice: int, key: int) -> None:
        self._write_in(self._chosen(choice), key)

    @precondition(lambda self: self.open)
    @rule(choice=CHOICE)
    def ping(self, choice: int) -> None:
        identifier = self._chosen(choice)
        self.world.transactions.ping_transaction("s", "t", identifier, LEASE_MS_MIN)
        self.open[identifier].lease_end_ms = self.world.clock.now_ms() + LEASE_MS_MIN

    @precondition(lambda self: self.open)
    @rule(choice=CHOICE)
    def mark_for_commit(self, choice: int) -> None:
        identifier = self._chosen(choice)
        self.world.transactions.commit_transaction("s", "t", identifier)
        self._mark(identifier)

    @precondition(lambda self: self.open)
    @rule(choice=CHOICE, count=st.integers(1, 3))
    def mark_a_set(self, choice: int, count: int) -> None:
        members = sorted(self.open, key=lambda identifier: (identifier ^ choice) & 7)[:count]
        self.epoch += 1
        assert self.world.commit_set(members, epoch=self.epoch).new
        for identifier in sorted(members, key=reference_epoch_of):  # within an epoch as they were given
            self._mark(identifier)

    @precondition(lambda self: self.open)
    @rule(choice=CHOICE)
    def abort(self, choice: int) -> None:
        identifier = self._chosen(choice)
        self.world.transactions.abort_transaction("s", "t", identifier)
        del self.open[identifier]
        self.outcomes[identifier] = TransactionState.ABORTED

    @precondition(lambda self: self.marked)
    @rule()
    def work(self) -> None:
        self.world.drain_transactions()
        self._commit_marked()

    @precondition(lambda self: self.marked)
    @rule(position=CRASH_POSITIONS, done=st.booleans())
    def die_at_work(self, position: int, done: bool) -> None:
        """The processor dies; its message comes again."""
        if self.world.calls.dies(self.world.drain_transactions, position, done=done):
            for queue in (self.world.bare_commits, self.world.bare_aborts):
                for message in list(queue._messages):
                    if message.receipt is not None:
                        queue.release(message.receipt)
        self.world.drain_transactions()
        self._commit_marked()

    @rule(later_ms=st.sampled_from([1_000, LEASE_MS_MIN, LEASE_GRACE_MS, 61_000]))
    def let_time_pass(self, later_ms: int) -> None:
        """Ticks find what has timed out; what is marked is sent again, and may be committed by that."""
        self.world.clock.advance(later_ms)
        for bucket in range(topology.BUCKET_COUNT):
            while self.world.expire_transactions(bucket):
                continue
        now_ms = self.world.clock.now_ms()
        for identifier in [
            transaction for transaction in self.open if now_ms > self.open[transaction].lease_end_ms + LEASE_GRACE_MS
        ]:
            del self.open[identifier]
            self.outcomes[identifier] = TransactionState.ABORTED

    @precondition(lambda self: not self.is_sealed)
    @rule(choice=CHOICE, split=st.booleans())
    def scale(self, choice: int, split: bool) -> None:
        segments = self.world.records.get("s", "t").stream.epoch.segments
        place = choice % len(segments)
        low, high = segments[place].key_range.low, segments[place].key_range.high
        if split and len(segments) < SEGMENTS_MAX:
            self.world.scale([segments[place].segment_id], [low, (low + high) / 2, high])
        elif place + 1 < len(segments):
            following = segments[place + 1]
            self.world.scale([segments[place].segment_id, following.segment_id], [low, following.key_range.high])

    @rule()
    def remember_the_tail(self) -> None:
        cut = self.world.segments.stream_cut("s", "t", "tail")
        self.cuts.append((dict(cut.offsets), [len(events) for events in self.seen]))

    @precondition(lambda self: self.cuts and not self.is_sealed)
    @rule(choice=CHOICE)
    def truncate(self, choice: int) -> None:
        offsets, counts = self.cuts[choice % len(self.cuts)]
        try:
            self.world.truncate(offsets)
        except (InvalidRequestError, TruncatedError):
            assert any(count <= gone for count, gone in zip(counts, self.gone, strict=True)), "it was strictly ahead"
            return
        self.gone = [max(pair) for pair in zip(counts, self.gone, strict=True)]

    @precondition(lambda self: not self.is_sealed and self.events > 20)
    @rule()
    def seal(self) -> None:
        self.world.seal()
        self.is_sealed = True
        self.outcomes |= dict.fromkeys(self.open, TransactionState.ABORTED)
        self.open.clear()
        self._commit_marked()

    @invariant()
    def a_reader_sees_what_the_model_says(self) -> None:
        if self.world.records.find("s", "t") is None:
            return
        read: list[list[bytes]] = [[] for _ in KEYS]
        for segment_range in self.world.segments.between("s", "t", None, None).ranges:
            length = segment_range.end_offset - segment_range.start_offset
            data = self.world.bare_segment_stores.read(segment_range.name, segment_range.start_offset, length)
            for start in range(0, len(data), EVENT_BYTES):
                read[data[start]].append(data[start : start + EVENT_BYTES])
        assert read == [events[gone:] for events, gone in zip(self.seen, self.gone, strict=True)]

    @invariant()
    def transactions_are_what_the_model_says(self) -> None:
        for identifier in self.open:
            state = self.world.transactions.get_transaction("s", "t", identifier).state
            assert state is TransactionState.OPEN
        for identifier, outcome in self.outcomes.items():
            state = self.world.transactions.get_transaction("s", "t", identifier).state
            assert state.is_commit == (outcome is TransactionState.COMMITTED)
            assert state.is_abort == (outcome is TransactionState.ABORTED)

    def teardown(self) -> None:
        """When everything is worked on, nothing is left of a transaction but the record of its outcome."""
        if self.world.records.find("s", "t") is None:
            return
        self.world.drain_transactions()
        self._commit_marked()
        self.a_reader_sees_what_the_model_says()
        assert self.world.streams.get_stream("s", "t").state in (StreamState.ACTIVE, StreamState.SEALED)
        left = {name.partition("#transaction.")[2] for name in self.world.bare_segment_stores.names()} - {""}
        assert left <= {f"{identifier:032x}" for identifier in self.open}

    def _write_in(self, identifier: int, key: int) -> None:
        event = self._event(key)
        self.world.write_in(identifier, KEYS[key], event)
        self.open[identifier].events.append((key, event))

    def _event(self, key: int) -> bytes:
        self.events += 1
        return bytes([key]) + self.events.to_bytes(EVENT_BYTES - 1, "big")

    def _chosen(self, choice: int) -> int:
        return sorted(self.open)[choice % len(self.open)]

    def _mark(self, identifier: int) -> None:
        self.marked.append(self.open.pop(identifier))
        self.outcomes[identifier] = TransactionState.COMMITTED

    def _commit_marked(self) -> None:
        for transaction in self.marked:
            for key, event in transaction.events:
                self.seen[key].append(event)
        self.marked.clear()


def _owning(segments: Any, position: float) -> Any:
    (owner,) = [
        segment
        for segment in segments
        if KeyRange(position, 1.0).low < segment.key_range.high and segment.key_range.low <= position
    ]
    return owner


TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
