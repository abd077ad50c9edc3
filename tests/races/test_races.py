"""Many clients race on one stream: each call succeeds, is refused, or asks to be repeated, and nothing is corrupted.

Clients are threads that choose operations by a seed, processors are threads that work on the queues, some of which give
requests up as if they had failed for the last time, and a sweeper sends intents again. How threads take turns is
chance; what must hold in the end does not depend on it.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from soundness import assert_sound
from stream_world import StreamWorld, ranges

from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.model.dead_letters import Cause, DeadLetterStatus, Delivery
from headrace.model.errors import (
    AlreadyExistsError,
    ConflictError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    UnavailableError,
)
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.topology import BUCKET_COUNT, REQUESTS_QUEUE

CAUSE = Cause("unavailable", "no segment store answers")
LEASE_MS = 60_000
ROUNDS_OF_TICKS = 3
SOON_S = 0.0005
"""How long a client waits that is asked to repeat."""

CLIENTS = 4
OPERATIONS_PER_CLIENT = 25
PROCESSORS = 2
REFUSALS = (AlreadyExistsError, ConflictError, IllegalStateError, InvalidRequestError, NotFoundError, UnavailableError)
"""What a client may be told: it read a stream that has changed since, or the stream's state forbids it."""


class Client:
    """Operations by chance on the stream s/t; notes what it was told."""

    def __init__(self, world: StreamWorld, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.told: Counter[str] = Counter()
        self.open: list[int] = []

    def run(self, operations: list[str]) -> None:
        for _ in range(OPERATIONS_PER_CLIENT):
            name = self.random.choice(operations)
            try:
                getattr(self, name)()
                self.told[f"{name}: done"] += 1
            except REFUSALS as error:
                self.told[f"{name}: {error.specific_code}"] += 1
                if error.retry != "never":
                    threading.Event().wait(SOON_S)

    def _tail(self) -> list[Any]:
        """The active segments; none of a sealed stream."""
        segments = list(self.world.segments.segments_at_tail("s", "t").segments)
        if not segments:
            raise SealedError("the stream is sealed")
        return segments

    def create(self) -> None:
        count = self.random.randint(1, 3)
        self.world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(count), tags=("a", "b")))

    def split(self) -> None:
        chosen = self.random.choice(self._tail())
        low, high = chosen.key_range.low, chosen.key_range.high
        new = ranges(low, low + (high - low) * self.random.random() / 2 + (high - low) / 4, high)
        self.world.streams.scale_stream("s", "t", [chosen.segment_id], new)

    def merge(self) -> None:
        segments = self._tail()
        first = self.random.randrange(max(1, len(segments) - 1))
        pair = segments[first : first + 2]
        new = ranges(pair[0].key_range.low, pair[-1].key_range.high)
        self.world.streams.scale_stream("s", "t", [segment.segment_id for segment in pair], new)

    def write(self) -> None:
        chosen = self.random.choice(self._tail())
        self.world.bare_segment_stores.extend(chosen.name, self.random.randint(1, 50))

    def update(self) -> None:
        policy = ScalingPolicy.by_event_rate(self.random.randint(1, 9), 2, 1)
        tags = tuple(self.random.sample(["a", "b", "c", "d"], 2))
        self.world.streams.update_stream("s", "t", StreamConfiguration(policy, tags=tags))

    def truncate(self) -> None:
        cut = self.world.segments.stream_cut("s", "t", self.random.choice(["head", "tail"]))
        self.world.streams.truncate_stream("s", "t", cut.offsets)

    def seal(self) -> None:
        self.world.streams.seal_stream("s", "t")

    def delete(self) -> None:
        self.world.streams.delete_stream("s", "t")

    def make_scope(self) -> None:
        self.world.scopes.create_scope("s")

    def drop_scope(self) -> None:
        self.world.scope_deletions.delete_scope_recursively("s")

    def begin(self) -> None:
        created = self.world.transactions.create_transaction("s", "t", LEASE_MS)
        self.open.append(created.transaction_id)

    def commit(self) -> None:
        if self.open:
            self.world.transactions.commit_transaction("s", "t", self.open.pop())

    def abort(self) -> None:
        if self.open:
            self.world.transactions.abort_transaction("s", "t", self.open.pop())

    def ping(self) -> None:
        if self.open:
            self.world.transactions.ping_transaction("s", "t", self.open[-1], LEASE_MS)


class Processor:
    """Works on all queues until it is told that nothing more comes; gives up a share of the requests."""

    def __init__(self, world: StreamWorld, seed: int = 0, gives_up: float = 0.0) -> None:
        self._world = world
        self._random = random.Random(seed)
        self._gives_up = gives_up
        self._work = [
            (world.bare_queue, world.requests.process),
            (world.bare_commits, world.commits.process),
            (world.bare_aborts, world.aborts.process),
        ]
        self.failures: list[BaseException] = []

    def run(self, over: threading.Event) -> None:
        while not over.is_set():
            self.once()

    def once(self) -> int:
        """One round; how many messages were done."""
        done = 0
        for queue, process in self._work:
            for message in queue.receive(1):
                done += self._deliver(queue, process, message)
        return done

    def _give_up(self, message: Any) -> None:
        delivery = Delivery(REQUESTS_QUEUE.name, message.group, json.dumps(message.body), 0, 10)
        handle_dead_letter(self._world.bare_store, delivery, CAUSE, self._world.clock.now_ms())

    def _deliver(self, queue: Any, process: Callable[[Any], object], message: Any) -> int:
        try:
            if queue is self._world.bare_queue and self._random.random() < self._gives_up:
                self._give_up(message)
            else:
                process(message.body)
        except HeadraceError as error:
            if error.retry == "never":
                self.failures.append(error)
                queue.acknowledge(message.receipt)
                return 1
            queue.release(message.receipt)
            return 0
        queue.acknowledge(message.receipt)
        return 1


SWITCH_INTERVAL_S = 1e-5
"""Threads take turns five hundred times as often as usual."""


@pytest.fixture(autouse=True)
def _frequent_turns():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    yield
    sys.setswitchinterval(usual)


def _tick(world: StreamWorld) -> None:
    """Later: intents are sent again, and transactions that nobody looks after time out."""
    world.clock.advance(LEASE_MS)
    world.sweep()
    for bucket in range(BUCKET_COUNT):
        while world.expire_transactions(bucket):
            world.clock.advance(1)


def race(world: StreamWorld, operations: list[str], seed: int, gives_up: float = 0.0) -> Counter[str]:
    """All at once, then what is left over; what the clients were told."""
    clients = [Client(world, seed * 100 + number) for number in range(CLIENTS)]
    processors = [Processor(world, seed + number, gives_up) for number in range(PROCESSORS)]
    over = threading.Event()
    with ThreadPoolExecutor(CLIENTS + PROCESSORS + 1) as pool:
        working = [pool.submit(processor.run, over) for processor in processors]
        try:
            for call in [pool.submit(client.run, operations) for client in clients]:
                call.result()
            world.sweep()
        finally:
            over.set()
        for call in working:
            call.result()
    last = Processor(world)
    for _ in range(ROUNDS_OF_TICKS):
        _tick(world)
        while last.once() or len(world.bare_queue) or len(world.bare_commits) or len(world.bare_aborts):
            world.clock.advance(1)
    failures = [failure for processor in [*processors, last] for failure in processor.failures]
    assert failures == [], f"seed {seed}"
    return sum((client.told for client in clients), Counter())


KINDS: dict[str, list[str]] = {
    "scales": ["split", "merge", "write"],
    "all that keeps a stream open": ["split", "merge", "write", "update", "truncate"],
    "lives of a stream": ["create", "split", "merge", "write", "update", "truncate", "seal", "delete", "create"],
    "transactions": ["begin", "begin", "commit", "commit", "abort", "ping", "split", "merge", "write"],
    "lives of a scope": [
        "make_scope", "make_scope", "create", "create", "split", "merge", "update", "seal", "delete", "begin", "commit",
        "drop_scope",
    ],
    "everything": [
        "create", "create", "split", "merge", "write", "update", "truncate", "seal", "delete", "begin", "begin",
        "begin", "commit", "commit", "abort", "ping",
    ],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_a_race_corrupts_nothing(kind: str, seed: int):
    world = StreamWorld()
    world.create()
    told = race(world, KINDS[kind], seed)
    assert sum(count for what, count in told.items() if what.endswith(": done")) > 0
    # The deletion of a scope works on its streams beside their own processors: it may overtake one that creates.
    assert_sound(world, may_leave_empty="drop_scope" in KINDS[kind])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["all that keeps a stream open", "lives of a stream"])
def test_requests_rolled_back_during_a_race_leave_a_sound_stream(kind: str, seed: int):
    world = StreamWorld()
    world.create()
    race(world, KINDS[kind], seed, gives_up=0.3)
    assert_sound(world)
    letters = world.dead_letters.list_letters(1_000).items
    assert {letter.status for letter in letters} <= {DeadLetterStatus.UNDONE, DeadLetterStatus.DONE}


def test_clients_that_agree_to_disagree_still_get_on():
    """Whoever is refused may repeat: after any race the stream takes the next request."""
    world = StreamWorld()
    world.create()
    race(world, KINDS["all that keeps a stream open"], 99)
    first = world.segments.segments_at_tail("s", "t").segments[0]
    middle = (first.key_range.low + first.key_range.high) / 2
    world.scale([first.segment_id], [first.key_range.low, middle, first.key_range.high])
    world.seal()
    world.delete()
    assert_sound(world)
