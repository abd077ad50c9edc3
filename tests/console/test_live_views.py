"""Live views: bounded in number and in what they hand out, closed when a page goes away, continued when it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from headrace.cli.parameters import ScopedName
from headrace.client import EventBatch, ReaderOptions, SegmentRange, StreamCut
from headrace.client.places import Place
from headrace.console import live_views
from headrace.console.live_views import (
    BEHIND_AGE_S,
    EVENTS_FIRST,
    EVENTS_PER_S,
    IDLE_S,
    LIVE_VIEWS_MAX,
    TAIL_AGE_S,
    Followed,
    LiveEvent,
    LiveViews,
    sampled,
)
from headrace.console.store_reach import STORE_PATIENCE_S, StoreReach
from headrace.model.errors import CorruptError, InvalidRequestError, NotFoundError, ThrottledError, UnavailableError

T = TypeVar("T")
ORDERS = Followed(ScopedName("s", "t"), None, "", "latest")


class Reader:
    """Reads ten events at a time, as long as there are some; each has ten bytes with its header."""

    ended = False

    def __init__(self, start: object, waiting: int) -> None:
        self.offset = start.offsets[0] if isinstance(start, StreamCut) else 0
        self.waiting, self.is_open = waiting, True

    def read_batch(self, timeout_s: float) -> EventBatch | None:
        if self.waiting == 0:
            return None
        count = min(10, self.waiting)
        self.waiting -= count
        first, self.offset = self.offset, self.offset + 10 * count
        return EventBatch(0, first, self.offset, [b"%02d" % (index % 100) for index in range(count)])

    @property
    def position(self) -> StreamCut:
        return StreamCut.of("s", "t", {0: self.offset})

    def close(self) -> None:
        self.is_open = False


class Client:
    """Opens readers with `waiting` events each."""

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.options: list[ReaderOptions] = []
        self.waiting = 0
        self.admin = self

    def reader(self, scope: str, stream: str, *, start: object, options: ReaderOptions) -> Reader:
        self.readers.append(Reader(start, self.waiting))
        self.options.append(options)
        return self.readers[-1]


class Reach(StoreReach):
    """What the console knows of the stores, if it is known. All streams are `distance` behind."""

    def __init__(self, client: Any) -> None:
        super().__init__(client, lambda: 0.0)
        self.is_reached, self.distance = True, 0

    def to_stream(self, stream: ScopedName) -> bool:
        return self.is_reached

    def lost(self) -> None:
        self.is_reached = False

    def cut_at(self, stream: ScopedName, place: object) -> StreamCut:
        return place if isinstance(place, StreamCut) else StreamCut.of(*stream, {0: 0})

    def answer(self, ask: Callable[[], T]) -> T:
        return ask()

    def store_answer(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except UnavailableError:
            self.lost()
            raise

    def behind(self, stream: ScopedName, position: Mapping[int, int], *_: object, **__: object) -> int:
        return self.distance


def views_of(world: World, client: Any) -> LiveViews:
    world.reach = Reach(client)
    return LiveViews(client, world.reach, lambda: world.now_s)


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.client = Client()
        self.reach: Reach
        self.views = views_of(self, self.client)


@pytest.fixture
def world() -> World:
    return World()


def test_the_number_of_open_views_is_bounded(world: World):
    for _ in range(LIVE_VIEWS_MAX):
        world.views.open(ORDERS)
    with pytest.raises(ThrottledError, match="live views are open"):
        world.views.open(ORDERS)
    world.now_s += IDLE_S + 1
    world.views.open(ORDERS)
    assert world.views.open_count == 1


def test_a_view_whose_page_went_away_continues_where_it_was(world: World):
    world.client.waiting = 30
    view = world.views.open(ORDERS)
    assert world.views.look(view).matching == 30
    world.now_s += IDLE_S + 1
    world.views.close_idle()
    assert not world.client.readers[0].is_open
    world.client.waiting = 10
    glance = world.views.look(view)
    assert glance.matching == 10
    assert glance.events[0].offset == 300


def test_more_events_are_sampled(world: World):
    world.client.waiting = 2_000
    view = world.views.open(ORDERS)
    first = world.views.look(view)
    assert (first.matching, first.shown) == (2_000, EVENTS_FIRST)
    world.client.readers[0].waiting = 2_000
    world.now_s += 1
    second = world.views.look(view)
    assert (second.matching, second.shown, second.read_per_s) == (2_000, EVENTS_PER_S, 2_000)


def test_only_matching_events_are_handed_out(world: World):
    world.client.waiting = 100
    view = world.views.open(Followed(ORDERS.stream, None, "07", "earliest"))
    glance = world.views.look(view)
    assert [event.event for event in glance.events] == [b"07"] * 10
    assert glance.events[1].offset == 170


def test_a_call_reads_a_bounded_number_of_bytes(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_views, "BYTES_PER_CALL_MAX", 150)
    world.client.waiting = 1_000
    view = world.views.open(ORDERS)
    assert world.views.look(view).matching == 20


def test_unknown_and_closed_views_are_refused(world: World):
    view = world.views.open(ORDERS)
    world.views.close()
    assert not world.client.readers[0].is_open
    for name in (view, "none"):
        with pytest.raises(NotFoundError):
            world.views.look(name)


def test_a_sample_is_even_and_has_the_last():
    events = [LiveEvent(0, index, b"") for index in range(100)]
    assert [event.offset for event in sampled(events, 4)] == [24, 49, 74, 99]
    assert sampled(events[:3], 4) == events[:3]


def test_the_number_holds_when_many_open_at_once(world: World):
    is_full = threading.Event()
    opened = world.client.reader

    def slow_reader(*arguments: Any, **options: Any) -> Reader:
        is_full.wait(10)
        return opened(*arguments, **options)

    world.client.reader = slow_reader
    refused: list[ThrottledError] = []

    def open_one() -> None:
        try:
            world.views.open(ORDERS)
        except ThrottledError as error:
            refused.append(error)
            is_full.set()

    threads = [threading.Thread(target=open_one) for _ in range(LIVE_VIEWS_MAX + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(world.client.readers), len(refused)) == (LIVE_VIEWS_MAX, 1)
    world.views.close()
    assert not any(reader.is_open for reader in world.client.readers)


def test_a_reader_that_opens_while_all_are_closed_is_closed(world: World):
    opened = world.client.reader

    def reader_at_the_end(*arguments: Any, **options: Any) -> Reader:
        world.views.close()
        return opened(*arguments, **options)

    world.client.reader = reader_at_the_end
    world.views.open(ORDERS)
    assert [reader.is_open for reader in world.client.readers] == [False]


def test_a_forgotten_view_leaves_no_reader(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live_views, "PARKED_VIEWS_MAX", 2)
    for _ in range(3):
        world.views.open(ORDERS)
    assert [reader.is_open for reader in world.client.readers] == [False, True, True]


class FarStore:
    """The client of a machine that reaches the API and S3. Segment 0 has events of ten bytes, `stored` bytes in S3."""

    def __init__(self, stored: int, end: int) -> None:
        self.stored, self.end = stored, end
        self.reaches_stores = False
        self.chunk_bytes = 1000
        self.damaged_from: int | None = None
        self.tried: list[int] = []
        self.admin = self

    def stream_cut(self, scope: str, stream: str, *, at: str) -> StreamCut:
        return StreamCut.of(scope, stream, {0: self.end})

    def chunks(
        self, scope: str, stream: str, segment_id: int, *, from_offset: int, to_offset: int, limit: int = 100
    ) -> SimpleNamespace:
        """Each chunk ends at a multiple of `chunk_bytes`."""
        listed = (from_offset // self.chunk_bytes + limit) * self.chunk_bytes
        return SimpleNamespace(chunks=(), stored_until=max(min(self.stored, listed, to_offset), from_offset))

    @contextmanager
    def range_reader(self, part: SegmentRange, *, give_up_after_s: float) -> Iterator[Any]:
        assert give_up_after_s == STORE_PATIENCE_S
        self.tried.append(part.end)
        yield SimpleNamespace(read_batch=chain(self._batches(part), [None]).__next__)

    def _batches(self, part: SegmentRange) -> Iterator[EventBatch]:
        last = part.end if self.reaches_stores else min(part.end, self.stored)
        if part.start % 10:
            raise CorruptError("no event begins there")
        for offset in range(part.start, last - 9, 10):
            if offset == self.damaged_from:
                raise CorruptError("the event is damaged")
            yield EventBatch(0, offset, offset + 10, [b"%02d" % (offset // 10 % 100)])
        if part.end > self.stored and not self.reaches_stores:
            raise UnavailableError("segment store 10.0.0.1:12345 cannot be reached: time-out")
        if last % 10:
            raise CorruptError("the range ends within an event")


def follow_segment(store: FarStore, start: Place = "earliest") -> tuple[World, str]:
    world = World()
    world.views = views_of(world, store)
    return world, world.views.open(Followed(ORDERS.stream, 0, "", start))


def test_a_segment_is_read_from_s3_without_its_store():
    world, view = follow_segment(store := FarStore(stored=55, end=100))
    glance = world.views.look(view)
    assert [event.offset for event in glance.events] == [0, 10, 20, 30, 40]
    assert (glance.position, glance.is_stored, glance.behind) == (50, True, 50)
    assert world.views.look(view).matching == 0
    store.stored = 85
    world.now_s += TAIL_AGE_S
    glance = world.views.look(view)
    assert ([event.offset for event in glance.events], glance.is_stored) == ([50, 60, 70], True)
    assert store.tried.count(100) == 1  # the store is not tried at each call


def test_an_event_that_goes_on_in_the_next_chunk_is_read():
    store = FarStore(stored=100, end=200)
    store.chunk_bytes = 25
    world, view = follow_segment(store)
    world.reach.lost()
    offsets = [event.offset for _ in range(5) for event in world.views.look(view).events]
    assert offsets == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]


@pytest.mark.parametrize("reaches_stores", [True, False])
def test_a_cut_inside_an_event_is_refused(*, reaches_stores: bool):
    """As soon as S3 has all of the segment: before, it may end within the event."""
    world, view = follow_segment(store := FarStore(stored=55, end=100), StreamCut.of("s", "t", {0: 15}))
    store.reaches_stores = reaches_stores
    if not reaches_stores:
        world.reach.lost()
        assert world.views.look(view).events == []
        store.stored = 100
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="choose another start"):
            world.views.look(view)


@pytest.mark.parametrize("reaches_stores", [True, False])
def test_events_before_a_damaged_one_are_handed_out(*, reaches_stores: bool):
    """The cut that was chosen is not to blame for it."""
    world, view = follow_segment(store := FarStore(stored=100, end=100), StreamCut.of("s", "t", {0: 10}))
    store.reaches_stores, store.damaged_from = reaches_stores, 40
    assert [event.offset for event in world.views.look(view).events] == [10, 20, 30]
    with pytest.raises(CorruptError, match="damaged"):
        world.views.look(view)


def test_the_start_of_a_segment_is_not_inside_an_event():
    world, view = follow_segment(store := FarStore(stored=100, end=100), StreamCut.of("s", "t", {0: 0}))
    store.damaged_from = 0
    with pytest.raises(CorruptError, match="damaged"):
        world.views.look(view)


E5, E6, E7 = (epoch << 32 | 9 for epoch in (5, 6, 7))


@pytest.mark.parametrize(
    ("cut", "offset"),
    [({E6: 30}, 30), ({E6: -1}, 100), ({E5: 7}, 0), ({E7: 7}, 100), ({E5: 7, E7: 7}, 50)],
    ids=["in it", "at its end", "before it", "behind it", "among others"],
)
def test_a_segment_is_read_from_the_place_of_a_cut(cut: dict[int, int], offset: int):
    """Only for a cut of older and newer segments the ranges behind it are listed."""
    store = FarStore(stored=100, end=100)
    listed: list[StreamCut] = []

    def segments_between(scope: str, stream: str, start: StreamCut) -> Any:
        listed.append(start)
        return SimpleNamespace(ranges=[SimpleNamespace(segment_id=E6, start_offset=50)])

    client: Any = store
    client.segments_between = segments_between
    client.sealed_length = lambda scope, stream, segment_id: {E6: 100}[segment_id]
    world = World()
    world.views = views_of(world, store)
    view = world.views.open(Followed(ORDERS.stream, E6, "", StreamCut.of("s", "t", cut)))
    store.reaches_stores = True
    glance = world.views.look(view)
    assert min([event.offset for event in glance.events], default=100) == offset
    assert len(listed) == (len(cut) > 1)


def test_a_store_that_is_reached_again_is_read():
    world, view = follow_segment(store := FarStore(stored=55, end=100))
    assert world.views.look(view).is_stored
    store.reaches_stores = True
    assert world.views.look(view).position == 50
    world.reach.is_reached = True
    glance = world.views.look(view)
    assert (glance.position, glance.is_stored) == (100, False)


def test_a_stream_is_read_from_s3_while_stores_are_away(world: World):
    world.reach.lost()
    world.client.waiting, world.reach.distance = 5, 70
    view = world.views.open(ORDERS)
    glance = world.views.look(view)
    assert [options.from_s3 for options in world.client.options] == [True]
    assert (glance.matching, glance.is_stored, glance.behind) == (5, True, 70)
    world.client.waiting = 3
    world.reach.is_reached = True
    world.now_s += 1
    glance = world.views.look(view)
    assert [options.from_s3 for options in world.client.options] == [True, False]
    assert ([event.offset for event in glance.events], glance.is_stored, glance.behind) == ([50, 60, 70], False, None)
    assert [reader.is_open for reader in world.client.readers] == [False, True]


def test_how_far_behind_is_not_asked_at_each_call(world: World):
    world.reach.lost()
    world.reach.distance = 70
    view = world.views.open(ORDERS)
    assert world.views.look(view).behind == 70
    world.reach.distance = 40
    assert world.views.look(view).behind == 70
    world.now_s += BEHIND_AGE_S
    assert world.views.look(view).behind == 40


def test_a_store_that_fails_a_reader_is_left_for_s3(world: World, monkeypatch: pytest.MonkeyPatch):
    view = world.views.open(ORDERS)
    read_batch = Reader.read_batch

    def unreachable(self: Reader, timeout_s: float) -> None:
        raise UnavailableError("segment store 10.0.0.1:12345 cannot be reached: time-out")

    monkeypatch.setattr(Reader, "read_batch", unreachable)
    assert world.views.look(view).matching == 0
    monkeypatch.setattr(Reader, "read_batch", read_batch)
    world.client.waiting = 2
    glance = world.views.look(view)
    assert (glance.matching, glance.is_stored) == (2, True)
    assert [options.from_s3 for options in world.client.options] == [False, True]


def test_a_reader_that_failed_is_opened_again(world: World, monkeypatch: pytest.MonkeyPatch):
    world.reach.lost()
    view = world.views.open(ORDERS)
    read_batch = Reader.read_batch

    def unreachable(self: Reader, timeout_s: float) -> None:
        raise UnavailableError("S3 does not answer")

    monkeypatch.setattr(Reader, "read_batch", unreachable)
    with pytest.raises(UnavailableError, match="S3 does not answer"):
        world.views.look(view)
    monkeypatch.setattr(Reader, "read_batch", read_batch)
    world.client.waiting = 2
    assert world.views.look(view).matching == 2
    assert [reader.is_open for reader in world.client.readers] == [False, True]


@pytest.mark.parametrize("stored", [True, False])
def test_what_was_read_before_a_failure_is_handed_out(
    world: World, monkeypatch: pytest.MonkeyPatch, *, stored: bool
) -> None:
    """The reader is past these events, so that no later call has them."""
    if stored:
        world.reach.lost()
    world.client.waiting = 5
    view = world.views.open(ORDERS)
    read_batch = Reader.read_batch

    def fail_at_the_second(self: Reader, timeout_s: float) -> EventBatch:
        batch = read_batch(self, timeout_s)
        if batch is None:
            raise ThrottledError("too many requests") if not stored else UnavailableError("S3 does not answer")
        return batch

    monkeypatch.setattr(Reader, "read_batch", fail_at_the_second)
    assert [event.offset for event in world.views.look(view).events] == [0, 10, 20, 30, 40]
    world.client.waiting = 0
    with pytest.raises((ThrottledError, UnavailableError)):
        world.views.look(view)
