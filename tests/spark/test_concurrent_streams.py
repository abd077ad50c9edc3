"""The requests of several streams run at once, and the plan is the one that they would give one after the other."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble
from spark_stream_double import StreamDouble

from headrace.codec.stream_cut_text import parse_stream_cut_text
from headrace.model.cut_planning import BatchRules
from headrace.model.errors import HeadraceError
from headrace.spark.micro_batches import MicroBatches
from headrace.spark.options import read_options
from headrace.spark.plans import STREAMS_AT_ONCE, open_plans

FRAME_BYTES = 20
NAMES = ["ships", STREAM, "whales"]
MEET_S = 60.0
"""How long a request waits for those of the other streams; only requests in sequence wait so long."""

HANGS_S = 60.0
"""How long a request hangs that the test does not release; only a test that fails waits so long."""


@pytest.fixture
def store(store: StoreDouble) -> StoreDouble:
    for name in NAMES:
        if name != STREAM:
            store.streams[name] = StreamDouble([(0.0, 0.5), (0.5, 1.0)])
        fill(store, name, 20)
    return store


def fill(store: StoreDouble, name: str, events: int) -> None:
    for number in range(events):
        store.streams[name].append(number % 2 / 2, bytes(FRAME_BYTES - 8))


def open_batches(store: StoreDouble, names: list[str] = NAMES, **options: str) -> MicroBatches:
    where = {"controller": store.url, "scope": SCOPE, "stream": ",".join(names), "start_stream_cut": "earliest"}
    return MicroBatches(read_options(where | options), monotonic_s=iter(range(10**6)).__next__)


@pytest.fixture
def batches(store: StoreDouble) -> Iterator[MicroBatches]:
    with closing(open_batches(store)) as opened:
        yield opened


class Meeting:
    """Each request waits for those of the other streams. `alone` has the kinds of those that met no others."""

    def __init__(self, store: StoreDouble) -> None:
        self.alone: list[str] = []
        self._barrier = threading.Barrier(len(NAMES))
        store.arriving = self.arrive

    def arrive(self, kind: str, path: str) -> None:
        try:
            self._barrier.wait(MEET_S)
        except threading.BrokenBarrierError:
            self.alone.append(kind)


def planning_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace-calls")]


@pytest.mark.parametrize("budget_bytes", [None, 3 * 20 * FRAME_BYTES])
def test_streams_are_asked_at_once(store: StoreDouble, batches: MicroBatches, budget_bytes: int | None) -> None:
    meeting = Meeting(store)
    start = batches.initial()
    end = batches.latest(start, budget_bytes)
    batches.partitions(start, end)
    assert meeting.alone == []
    assert store.requests == {"stream-cut": 3, "next-cut": 3, "range-plans": 3}
    assert planning_threads() == []


def test_a_batch_is_planned_again_at_once(store: StoreDouble, batches: MicroBatches) -> None:
    start = batches.initial()
    end = batches.latest(start, None)
    meeting = Meeting(store)
    with closing(open_batches(store)) as again:
        repeated = [planned for partition in again.partitions(start, end) for planned in partition]
    assert meeting.alone == []
    assert repeated == [planned for partition in batches.partitions(start, end) for planned in partition]


def test_a_batch_read_asks_all_streams_at_once(store: StoreDouble, batches: MicroBatches) -> None:
    meeting = Meeting(store)
    with closing(open_plans(batches.options)) as plans:
        plans.batch_partitions()
    assert meeting.alone == []
    assert store.requests == {"stream-cut": 6, "next-cut": 3, "range-plans": 3}


def test_the_requests_at_once_are_bounded(store: StoreDouble) -> None:
    names = [f"stream-{number}" for number in range(3 * STREAMS_AT_ONCE)]
    for name in names:
        store.streams[name] = StreamDouble([(0.0, 1.0)])
    full = threading.Semaphore(STREAMS_AT_ONCE)
    refused: list[str] = []

    def arrive(kind: str, path: str) -> None:
        if not full.acquire(blocking=False):
            refused.append(path)
            return
        time.sleep(0.01)
        full.release()

    with closing(open_batches(store, names)) as batches:
        store.arriving = arrive
        batches.latest(batches.initial(), None)
    assert refused == []
    assert store.requests["next-cut"] == len(names)


def sequential_plan(
    store: StoreDouble, start: dict[str, dict[int, int]], budget_bytes: int
) -> dict[str, dict[int, int]]:
    """Each stream gets an equal share of the budget that those before it have left."""
    found = {}
    for number, name in enumerate(NAMES):
        share = max(1, budget_bytes // (len(NAMES) - number))
        planned = store.streams[name].next_batch(start[name], None, BatchRules(share))
        found[name] = planned.positions
        budget_bytes = max(1, budget_bytes - planned.length_bytes)
    return found


def positions(text: str) -> dict[str, dict[int, int]]:
    return {name: dict(parse_stream_cut_text(cut).offsets) for name, cut in json.loads(text).items()}


@pytest.mark.parametrize("seed", range(20))
def test_streams_at_once_get_the_plan_of_a_sequence(store: StoreDouble, batches: MicroBatches, seed: int) -> None:
    random = Random(seed)
    end = batches.initial()
    for _ in range(8):
        for name in NAMES:
            fill(store, name, random.choice([0, 0, 1, 3, 10, 40]))
            if random.random() < 0.2:
                active = store.streams[name].active
                store.streams[name].scale(active, [(0.0, 0.5), (0.5, 1.0)])
        start, budget_bytes = end, random.randrange(1, 30 * FRAME_BYTES)
        wanted = sequential_plan(store, positions(start), budget_bytes)
        end = batches.latest(start, budget_bytes)
        assert positions(end) == wanted
        batches.partitions(start, end)


def test_streams_that_stay_behind_are_asked_once(store: StoreDouble, batches: MicroBatches) -> None:
    """Their shares are known only when those before them are planned, so an answer for another share is of no use."""
    for name in NAMES[1:]:
        fill(store, name, 1000)
    end = batches.initial()
    asked = []
    for _ in range(3):
        store.requests.clear()
        end = batches.latest(end, 7 * 3 * FRAME_BYTES)
        asked.append(store.requests["next-cut"])
    assert asked == [5, 3, 3]


def test_bytes_that_are_lost_are_logged_once(store: StoreDouble, caplog: pytest.LogCaptureFixture) -> None:
    """Also those of a stream that is asked again, because its share is not the one that it was asked with."""
    with closing(open_batches(store, on_truncation="skip")) as batches:
        start = batches.initial()
        fill(store, "whales", 100)
        store.streams["whales"].truncate({0: 5 * FRAME_BYTES, 1: 5 * FRAME_BYTES})
        end = batches.latest(start, 90 * FRAME_BYTES)
    assert store.requests["next-cut"] == 4
    assert caplog.text.count("event=spark_bytes_skipped") == 1
    assert positions(end)["whales"] == {0: 30 * FRAME_BYTES, 1: 30 * FRAME_BYTES}


def refusing(store: StoreDouble, delays_s: dict[str, float]) -> Callable[[str, str], None]:
    """Deletes these streams when they are asked for a next cut, which takes so long."""

    def arrive(kind: str, path: str) -> None:
        name = path.split("/")[5]
        if kind == "next-cut" and name in delays_s:
            time.sleep(delays_s[name])
            with store.lock:
                store.streams.pop(name, None)

    return arrive


@pytest.mark.parametrize("budget_bytes", [None, 1000])
def test_the_error_of_the_first_stream_wins(
    store: StoreDouble, batches: MicroBatches, budget_bytes: int | None
) -> None:
    start = batches.initial()
    store.arriving = refusing(store, {STREAM: 0.3, "whales": 0.0})
    with pytest.raises(HeadraceError, match="there is no stream weather/stations"):
        batches.latest(start, budget_bytes)
    assert planning_threads() == []


class Hanging:
    """Requests of one stream hang until the end of the test. One for which something waits has `waited_out`."""

    def __init__(self, store: StoreDouble, name: str) -> None:
        self.arrived = threading.Event()
        self.released = threading.Event()
        self.waited_out = False
        self._then = store.arriving
        self._path = f"/streams/{name}/next-cut"
        store.arriving = self.arrive

    def arrive(self, kind: str, path: str) -> None:
        if path.endswith(self._path):
            self.arrived.set()
            self.waited_out |= not self.released.wait(HANGS_S)
        self._then(kind, path)


def test_a_stream_that_hangs_holds_no_error_up(store: StoreDouble, batches: MicroBatches) -> None:
    start = batches.initial()
    store.arriving = refusing(store, {"ships": 0.0})
    hanging = Hanging(store, "whales")
    for _ in range(2):
        with pytest.raises(HeadraceError, match="there is no stream weather/ships"):
            batches.latest(start, None)
        assert planning_threads() == []
    assert not hanging.waited_out
    hanging.released.set()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A session of Spark that another test had may have left its handler of the signal."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interruptible")
def test_a_keyboard_interrupt_ends_all_requests(store: StoreDouble, batches: MicroBatches) -> None:
    start = batches.initial()
    hanging = Hanging(store, STREAM)
    main = threading.get_ident()

    def interrupt() -> None:
        hanging.arrived.wait(HANGS_S)
        # Not before this thread waits for a result: Python drops an interrupt that a finalizer or callback gets.
        while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        batches.latest(start, None)
    interrupting.join()
    assert planning_threads() == []
    assert not hanging.waited_out
    hanging.released.set()
    store.arriving = lambda kind, path: None
    assert Counter(positions(batches.latest(start, None)).keys()) == Counter(NAMES)
