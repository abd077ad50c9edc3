"""Commit sets in random interleavings: whatever the order of the calls and of crashes, a set is all or nothing.

Drivers, the transaction tick, the processors of commits and aborts, the ends and scales of streams, and others that
use or end single members work at the same time. They are stopped at every call of a port. A seed decides which of them
there are, who goes on, who dies, which answers are lost, and the order of the requests that a process makes at the same
time. When all have ended and the rest is worked off, the
promises about sets must hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest
from interleavings import Interleaving, Trouble
from stream_commits import all_bytes
from stream_world import StreamWorld

from fuzz.watched_ports import Crash, ShuffledWorkers
from headrace import topology
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.controller.steps import transaction_commits
from headrace.metadata.commit_records import find_commit_part, find_commit_writer
from headrace.metadata.due_index import bucket_of
from headrace.model import commit_sets
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError
from headrace.model.stream_state import StreamState
from headrace.model.transactions import CHECK_EVERY_MS, TransactionState

SEEDS = 50
LEASE_MS = 24 * 3600 * 1000
STREAMS = "htu"
Place = tuple[str, int]
"""A transaction: its stream and its id."""

Members = Mapping[str, tuple[int, ...]]
Work = Callable[[], object]


@dataclass(frozen=True)
class Decision:
    """What the record of the writer says of the last set that was committed."""

    incarnation: int
    epoch: int | None
    set_id: str


@dataclass
class Commit:
    """A call of a driver. `answer` is whether this call committed the set; None if it failed or died."""

    members: Members
    epoch: int
    answer: bool | None = None

    @property
    def places(self) -> set[Place]:
        return {(stream, transaction) for stream, ids in self.members.items() for transaction in ids}


@dataclass
class Case:
    """A world with transactions, each of which has written one byte of its own, and what became of them."""

    seed: int
    world: StreamWorld = field(init=False)
    choices: random.Random = field(init=False)
    home: str = field(init=False)
    bytes_of: dict[Place, bytes] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    marked_alone: set[Place] = field(default_factory=set)
    """Transactions that others may commit by themselves."""

    ended: dict[str, str] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    decided: set[Place] = field(default_factory=set)
    """The members of the sets that were committed."""

    def __post_init__(self) -> None:
        self.world = StreamWorld(self.seed, ShuffledWorkers(self.seed))
        self.choices = random.Random(self.seed)
        self.home = self.choices.choice("ht")
        for name in STREAMS:
            self.world.create(name, segments=1)
        for stream in "ttttuuu":
            self._begin(stream)

    def _begin(self, stream: str) -> None:
        service, on_demand = self.world.transactions, self.choices.random() < 0.5
        begun = service.create_transaction("s", stream, LEASE_MS, on_demand=on_demand)
        if on_demand:
            service.create_segments("s", stream, begun.transaction_id, [begun.segments[0].segment_id])
        place = stream, begun.transaction_id
        self.bytes_of[place] = b"%d" % len(self.bytes_of)
        self.world.write_in(begun.transaction_id, 0.0, self.bytes_of[place], stream)

    def ids(self, stream: str) -> list[int]:
        return [transaction for name, transaction in self.bytes_of if name == stream]

    def state(self, place: Place) -> TransactionState | None:
        """None for a transaction that is gone with its stream."""
        try:
            return self.world.transactions.get_transaction("s", *place).state
        except NotFoundError:
            return None

    # Processes

    def processes(self) -> Iterator[Work]:
        chance = self.choices
        (a, b, c, _), (d, e, _) = self.ids("t"), self.ids("u")
        first: Members = {"t": (a, b), "u": (d,)}
        overlapping: Members = {"t": (b, c), "u": (d, e)}
        others: Members = {"t": (c,), "u": (e,)}
        yield self._driver(first, 1)
        if chance.random() < 0.5:  # few, so that each comes far before the next one is done
            yield self._end(chance.choice((self.home, *STREAMS)), chance.choice(("seal", "delete", "recreate")))
            more = self._tick, self._process_messages, self._driver(others, 2)
            yield from chance.sample(more, chance.randint(0, 2))
            return
        for _ in range(chance.randint(0, 2)):
            yield self._driver(chance.choice((first, overlapping, others)), chance.choice((1, 1, 2)))
        for some in (self._tick, self._process_messages):
            yield from [some] * chance.randint(0, 2)
        if chance.random() < 0.3:
            yield self._end(chance.choice(STREAMS), chance.choice(("seal", "delete", "recreate")))
        if chance.random() < 0.3:
            yield partial(self.world.scale, [0], [0.0, 0.5, 1.0], chance.choice("tu"))
        for _ in range(chance.randint(0, 2)):
            what = chance.choice(("abort", "commit", "ping", "segments"))
            yield self._single(what, chance.choice(list(self.bytes_of)))
        if chance.random() < 0.3:
            yield partial(self.world.commit_sets.committed_epoch, "s", self.home, "w")

    def _driver(self, members: Members, epoch: int) -> Work:
        def work() -> None:
            commit = Commit(members, epoch)
            self.commits.append(commit)
            commit.answer = self.world.commit_set(members, self.home, epoch=epoch).new

        return work

    def _tick(self) -> None:
        self.world.clock.advance(CHECK_EVERY_MS + 1)
        for bucket in sorted({bucket_of("s", name) for name in STREAMS}):
            self.world.expire_transactions(bucket)

    def _process_messages(self) -> None:
        for _ in range(4):
            self.world.drain_transactions()
            self.world.calls("turn", lambda: None)  # others may send more now

    def _end(self, stream: str, how: str) -> Work:
        self.ended[stream] = how

        def work() -> None:
            self.world.seal(stream)
            if how != "seal":
                self.world.delete(stream)
            if how == "recreate":
                self.world.create(stream, segments=1)

        return work

    def _single(self, what: str, place: Place) -> Work:
        service = self.world.another_transaction_service()
        if what == "commit":
            self.marked_alone.add(place)
            return partial(service.commit_transaction, "s", *place)
        if what == "abort":
            return partial(service.abort_transaction, "s", *place)
        if what == "ping":
            return partial(service.ping_transaction, "s", *place, LEASE_MS // 2)
        return partial(service.create_segments, "s", *place, [0])

    # What must hold

    def watch(self) -> None:
        """Note each set that is decided. The committed epoch of the writer grows with each."""
        store = self.world.bare_store
        stored = find_commit_writer(store, "s", self.home, "w")
        if stored is None or stored.writer.set_id is None:
            return
        current = self.world.records.find("s", self.home)
        incarnation = 0 if current is None else current.stream.first_segment_number
        found = Decision(incarnation, stored.writer.epoch, stored.writer.set_id)
        last = self.decisions[-1] if self.decisions else None
        if found == last:
            return
        assert last is None or last.incarnation < incarnation or _epoch(last) < _epoch(found), f"{found} after {last}"
        self.decisions.append(found)
        for stream in STREAMS:
            if (part := find_commit_part(store, "s", stream, found.set_id)) is not None:
                assert part.part.order is not None, "a part of a decided set has no order"
                places = {(stream, member) for member in part.part.members}
                assert not places & self.decided, "a transaction is a member of two sets that are committed"
                self.decided |= places

    def work_off(self) -> None:
        """What comes after the processes: messages come again, and ticks run, for some minutes."""
        world = self.world
        world.calls.calm()
        world.calls.after = lambda _kind: self.watch()
        for queue in (world.bare_queue, world.bare_commits, world.bare_aborts):
            for message in [queued for queued in queue._messages if queued.receipt is not None]:
                queue.release(str(message.receipt))
        for _ in range(4):
            world.clock.advance(200_000)  # past the leases on the buckets
            world.sweep()
            world.drain()
            for bucket in range(topology.BUCKET_COUNT):
                while world.expire_transactions(bucket):
                    continue
            world.drain_transactions()
        world.calls.calm()

    def check(self) -> None:
        self._check_outcomes()
        self._check_records()
        self._check_events()

    def _check_outcomes(self) -> None:
        """Exactly the members of the decided sets are committed, and what a driver was told is true."""
        for place in self.bytes_of:
            state = self.state(place)
            if state is not None and place not in self.marked_alone:
                assert state is not TransactionState.COMMITTING, f"{place} waits for ever"
                assert state.is_commit == (place in self.decided), f"{place} is {state}"
        for commit in self.commits:
            if commit.answer is not None:
                assert any(commit.epoch <= _epoch(decision) for decision in self.decisions), (
                    "it was told to be committed"
                )
            if commit.answer:
                assert commit.places <= self.decided, "what was told to be committed is not"

    def _check_records(self) -> None:
        """A set whose process stopped before it prepared a member may be pending; else nothing of any set is left."""
        stored = find_commit_writer(self.world.bare_store, "s", self.home, "w")
        pending = stored.writer.pending if stored else None
        opened: set[str] = set()
        for (partition, sort), (_, body) in self.world.everything().items():
            what, _, name = sort.partition("/")
            if not partition.startswith("transactions/") or (pending is not None and name == pending.set_id):
                continue
            assert what not in ("commit-part", "order", "run"), f"{partition} {sort} is left"
            if what == "open":
                opened.add(name)
                assert body["state"] == "OPEN", f"{body} is left"
                found = self.world.records.find("s", partition.split("/")[-1])
                assert found is not None, f"{body} is left of a deleted stream"
                assert found.stream.state is not StreamState.SEALED, f"{body} is left of a sealed stream"
        segments = {name.partition("#transaction.")[2] for name in self.world.bare_segment_stores.names()} - {""}
        assert segments <= opened, "segments of transactions that have ended are left"

    def _check_events(self) -> None:
        """The events of each committed transaction are in its stream once."""
        for stream in "tu":
            if self.world.records.find("s", stream) is None or self.ended.get(stream) == "recreate":
                continue
            committed = [place for place in self.bytes_of if (state := self.state(place)) and state.is_commit]
            expected = b"".join(self.bytes_of[place] for place in committed if place[0] == stream)
            assert sorted(all_bytes(self.world, stream)) == sorted(expected), f"events of {stream}"


def _epoch(decision: Decision) -> int:
    assert decision.epoch is not None, "a set was committed"
    return decision.epoch


def run_case(seed: int) -> Case:
    """Run the processes of a seed, and then everything that follows on them; the case for other opinions."""
    case = Case(seed)
    trouble = case.choices.choice(
        (Trouble(), Trouble(deaths=0.5), Trouble(lost_answers=3), Trouble(deaths=0.4, lost_answers=2))
    )
    works = list(case.processes())
    case.choices.shuffle(works)
    for error in Interleaving(case.world, seed, trouble, case.watch).run(*works):
        if error is not None and (isinstance(error, CorruptError) or not isinstance(error, HeadraceError | Crash)):
            raise error
    case.work_off()
    case.check()
    if case.world.records.find("s", case.home) is not None:
        case.world.commit_sets.committed_epoch("s", case.home, "w")
        stored = find_commit_writer(case.world.bare_store, "s", case.home, "w")
        assert stored is None or stored.writer.pending is None
    case.work_off()
    case.check()
    return case


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are prepared one by one, committed two by two and completed one by one: others come between them."""
    monkeypatch.setattr(commit_sets, "MEMBERS_PER_WRITE", 1)
    for module in (commit_sets, transaction_commits):
        monkeypatch.setattr(module, "TRANSACTIONS_PER_RUN_MAX", 2)
    for name in ("COMPLETION_WRITES_MAX", "LAST_WRITES_MAX"):
        monkeypatch.setattr(transaction_commits, name, 5)


def test_sets_are_all_or_nothing_in_any_order():
    answers: Counter[bool | None] = Counter()
    for seed in range(SEEDS):
        try:
            answers.update(commit.answer for commit in run_case(seed).commits)
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
    assert min(answers[True], answers[False], answers[None]) >= 10, "each outcome has been there"


def _announced(seed: int) -> None:
    """Sets and single marks in one stream while messages are worked off; then only the messages that are left."""
    chance, world = random.Random(seed), StreamWorld(seed, ShuffledWorkers(seed))
    world.bare_commits = world.commit_queue._inner = MemoryRequestQueue(world.clock)  # it drops repeated messages
    world.create(segments=1)
    ids = [world.begin() for _ in range(8)]
    chance.shuffle(ids)
    works: list[Work] = []
    for number in range(chance.randint(2, 4)):
        if chance.random() < 0.5:
            works.append(partial(world.commit_set, [ids.pop(), ids.pop()], writer=f"w{number}"))
        else:
            works.append(partial(world.another_transaction_service().commit_transaction, "s", "t", ids.pop()))

    def process() -> None:
        for _ in range(4):
            world.drain_transactions()
            world.calls("turn", lambda: None)

    works += [process] * chance.randint(1, 2)
    assert Interleaving(world, seed, Trouble()).run(*works) == [None] * len(works)
    world.drain_transactions()
    assert [sort for _, sort in world.everything() if sort.startswith("order/")] == []


def test_messages_announce_every_mark_and_set():
    """No tick is needed unless a process dies: a set that saw no mark sends its own message."""
    for seed in range(SEEDS):
        try:
            _announced(seed)
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
