"""Live views: each follows a stream or one of its segments, and hands a page the newest events when it asks.

A page asks every second. A view whose page does not ask any more closes its reader, and continues where it was if the
page comes back. The number of views, the bytes that a call reads, and the events that it hands out are bounded.

While no segment store can be reached, views read what is in S3, and go on there where they were.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple, Protocol

from headrace.cli.parameters import ScopedName
from headrace.client import EventBatch, EventReader, Headrace, ReaderOptions, SegmentRange
from headrace.client.places import Place
from headrace.console.store_reach import STORE_PATIENCE_S, StoreReach
from headrace.model.errors import (
    CorruptError,
    HeadraceError,
    InvalidRequestError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.stream_cuts import END_OF_SEGMENT, Side, StreamCut

LIVE_VIEWS_MAX = 20
PARKED_VIEWS_MAX = 200
IDLE_S = 15.0
"""After this time without a call a view closes its reader."""

EVENTS_ON_PAGE_MAX = 500
EVENTS_FIRST = 100
EVENTS_PER_S = 20
"""More events are counted, and a sample of them is handed out. The first call may hand out EVENTS_FIRST."""

BYTES_PER_CALL_MAX = 4 * 1024 * 1024
SECONDS_PER_CALL_MAX = 0.5
TAIL_AGE_S = 3.0
"""How often the view of a segment asks where it ends."""
BEHIND_AGE_S = 5.0
"""How often a view that reads from S3 measures how far behind it is."""


class LiveEvent(NamedTuple):
    """An event with its place."""

    segment_id: int
    offset: int
    event: bytes


class Source(Protocol):
    """Where a view reads."""

    @property
    def is_stored(self) -> bool:
        """Whether only what is in S3 is read at the moment."""
        ...

    def read(self) -> EventBatch | None: ...
    def position(self) -> StreamCut | int: ...
    def behind(self) -> int | None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Followed:
    """What a view follows: a stream, or the segment `segment_id` of it; only events that contain `needle`."""

    stream: ScopedName
    segment_id: int | None
    needle: str
    start: Place


class Glance(NamedTuple):
    """What a call hands out. Rates are of the time since the last call; `position` is where the view is.

    `is_stored`: what came is from S3 alone. Then `behind` is how many bytes follow the position, None if not known.
    """

    events: list[LiveEvent]
    matching: int
    shown: int
    read_per_s: float
    position: StreamCut | int
    has_ended: bool
    is_stored: bool = False
    behind: int | None = None


@dataclass(slots=True)
class _View:
    followed: Followed
    source: Source | None
    asked_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_first: bool = True
    position: StreamCut | int | None = None
    behind: tuple[int | None, float] | None = None
    """How far behind a view from S3 was, and until when that counts."""


class LiveViews:
    """All live views of the console. Safe for any number of threads. `now_s` is a clock that never goes back."""

    def __init__(self, client: Headrace, reach: StoreReach, now_s: Callable[[], float]) -> None:
        self._client = client
        self._reach = reach
        self._now_s = now_s
        self._views: OrderedDict[str, _View] = OrderedDict()
        self._opening = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def open(self, followed: Followed) -> str:
        """Opens a view; returns its name.

        Raises:
            ThrottledError: LIVE_VIEWS_MAX views are open.
            HeadraceError: the stream cannot be read from there.
        """
        self.close_idle()
        name = secrets.token_hex(8)
        with self._room():
            view = _View(followed, self._source(followed), self._now_s())
            with self._lock:
                self._views[name] = view
                too_many = len(self._views) - PARKED_VIEWS_MAX
                oldest = [self._views.popitem(last=False)[1] for _ in range(too_many)]
        for gone in oldest:
            self._park(gone)
        self._park_if_gone(name, view)
        return name

    def followed(self, name: str) -> Followed:
        """Raises NotFoundError if the view is gone."""
        return self._view(name).followed

    def look(self, name: str) -> Glance:
        """Reads what came since the last call. Raises NotFoundError if the view is gone, and the errors of reading."""
        view = self._view(name)
        if view.source is None:
            self._reopen(name, view)
        with view.lock:
            if view.source is None:
                raise NotFoundError("the view was closed: open the page again")
            return self._look(view, view.source)

    def close_idle(self) -> None:
        """Closes the readers of views whose pages do not ask any more."""
        now_s = self._now_s()
        with self._lock:
            idle = [view for view in self._views.values() if view.source and now_s - view.asked_s > IDLE_S]
        for view in idle:
            self._park(view)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            views = list(self._views.values())
            self._views.clear()
        for view in views:
            self._park(view)

    @property
    def open_count(self) -> int:
        with self._lock:
            return sum(view.source is not None for view in self._views.values())

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Keeps room for a reader that is being opened. Raises ThrottledError if there is none."""
        with self._lock:
            open_now = sum(view.source is not None for view in self._views.values())
            if open_now + self._opening >= LIVE_VIEWS_MAX:
                raise ThrottledError(
                    f"{LIVE_VIEWS_MAX} live views are open: close other tabs of the console; each view is free "
                    f"{IDLE_S:g} s after its tab was closed"
                )
            self._opening += 1
        try:
            yield
        finally:
            with self._lock:
                self._opening -= 1

    def _park_if_gone(self, name: str, view: _View) -> None:
        """Closes the reader that was opened while the view was removed, or all views closed."""
        with self._lock:
            is_gone = self._is_closed or self._views.get(name) is not view
        if is_gone:
            self._park(view)

    def _view(self, name: str) -> _View:
        with self._lock:
            view = self._views.get(name)
            if view is None:
                raise NotFoundError("the view is gone: load the page again")
            self._views.move_to_end(name)
            return view

    def _reopen(self, name: str, view: _View) -> None:
        self.close_idle()
        with view.lock:
            if view.source is None:
                with self._room():
                    view.asked_s = self._now_s()
                    view.is_first = True
                    view.source = self._source(view.followed, view.position)
        self._park_if_gone(name, view)

    def _source(self, followed: Followed, position: StreamCut | int | None = None) -> Source:
        if followed.segment_id is not None:
            offset = position if isinstance(position, int) else None
            return SegmentSource(self._client, self._reach, followed, offset, self._now_s)
        start = position if isinstance(position, StreamCut) else followed.start
        return StreamSource(self._client, self._reach, followed.stream, start)

    def _park(self, view: _View) -> None:
        with view.lock:
            source, view.source = view.source, None
            if source is not None:
                with suppress(HeadraceError):
                    view.position = source.position()
                with suppress(HeadraceError):
                    source.close()

    def _look(self, view: _View, source: Source) -> Glance:
        begun_s = self._now_s()
        since_s = max(begun_s - view.asked_s, 0.05)
        needle = view.followed.needle.encode()
        matching: list[LiveEvent] = []
        events = size = 0
        has_ended = False
        while size < BYTES_PER_CALL_MAX and self._now_s() - begun_s < SECONDS_PER_CALL_MAX:
            try:
                batch = source.read()
            except HeadraceError as error:
                if isinstance(error, CorruptError) and _is_at(view.followed, source.position()):
                    raise InvalidRequestError(
                        "no event begins at an offset of the chosen stream cut: choose another start"
                    ) from error
                if not events:
                    raise
                break  # the source is past what it gave, and the next call fails if this one would
            if batch is None:
                has_ended = isinstance(source, StreamSource) and source.has_ended
                break
            events += len(batch.events)
            size += batch.end_offset - batch.offset
            offset = batch.offset
            for event in batch.events:
                if needle in event:
                    matching.append(LiveEvent(batch.segment_id, offset, event))
                offset += EVENT_HEADER_BYTES + len(event)
        room = EVENTS_FIRST if view.is_first else max(1, min(EVENTS_FIRST, round(EVENTS_PER_S * since_s)))
        view.is_first = view.is_first and not matching
        view.asked_s = begun_s
        shown = sampled(matching, room)
        is_stored = source.is_stored
        behind = self._behind(view, source) if is_stored else None
        return Glance(
            shown, len(matching), len(shown), events / since_s, source.position(), has_ended, is_stored, behind
        )

    def _behind(self, view: _View, source: Source) -> int | None:
        if view.behind is None or self._now_s() >= view.behind[1]:
            behind = None
            with suppress(HeadraceError):
                behind = source.behind()
            view.behind = behind, self._now_s() + BEHIND_AGE_S
        return view.behind[0]


def _is_at(followed: Followed, position: StreamCut | int) -> bool:
    """Whether a view has still to read the first event behind an offset of a cut that the user chose."""
    if not isinstance(followed.start, StreamCut):
        return False
    reached = position.offsets if isinstance(position, StreamCut) else {followed.segment_id: position}
    return any(reached.get(segment) == offset > 0 for segment, offset in followed.start.positions)


def sampled(events: list[LiveEvent], room: int) -> list[LiveEvent]:
    """At most `room` of the events, evenly chosen, with the last one."""
    if len(events) <= room:
        return events
    return [events[(index + 1) * len(events) // room - 1] for index in range(room)]


class StreamSource:
    """Follows a whole stream: over the stores, or what is in S3 while these cannot be reached.

    A reader that has failed is opened again where it was.
    """

    def __init__(self, client: Headrace, reach: StoreReach, stream: ScopedName, start: Place) -> None:
        self._client, self._reach, self._stream = client, reach, stream
        self._start = start
        self._reader: EventReader | None = None
        self.is_stored = False
        self._open(is_stored=not reach.to_stream(stream))

    @property
    def has_ended(self) -> bool:
        return self._reader is not None and self._reader.ended

    def read(self) -> EventBatch | None:
        is_stored = not self._reach.to_stream(self._stream)
        if self._reader is None or is_stored != self.is_stored:
            self.close()
            self._open(is_stored=is_stored)
        assert self._reader is not None, "it was opened"
        try:
            return self._reader.read_batch(timeout_s=0.15)
        except UnavailableError:
            self.close()
            if self.is_stored:
                raise
            self._reach.lost()
            return None

    def position(self) -> StreamCut:
        if self._reader is not None:
            return self._reader.position
        assert isinstance(self._start, StreamCut), "a reader that was closed left its position"
        return self._start

    def behind(self) -> int | None:
        return self._reach.behind(self._stream, self.position().offsets)

    def close(self) -> None:
        if self._reader is not None:
            self._start = self._reader.position
            reader, self._reader = self._reader, None
            reader.close()

    def _open(self, *, is_stored: bool) -> None:
        options = ReaderOptions(on_truncation="skip", give_up_after_s=STORE_PATIENCE_S, from_s3=is_stored)
        start = self._start
        if isinstance(start, datetime):
            start = self._reach.cut_at(self._stream, start)
        self._reader = self._reach.answer(lambda: self._client.reader(*self._stream, start=start, options=options))
        self.is_stored = is_stored


class SegmentSource:
    """Follows one segment: each call reads from where the last one ended up to the end of the segment.

    If the segment store cannot be reached, as from a machine outside the VPC, it reads what is in S3.
    """

    def __init__(
        self,
        client: Headrace,
        reach: StoreReach,
        followed: Followed,
        offset: int | None,
        now_s: Callable[[], float],
    ) -> None:
        assert followed.segment_id is not None
        self._client, self._reach = client, reach
        self._stream, self._segment_id = followed.stream, followed.segment_id
        self._now_s = now_s
        self._batches: deque[EventBatch] = deque()
        self.is_stored = False
        self._find_end()
        self._offset = offset if offset is not None else self._start(followed.start)

    def _start(self, start: Place) -> int:
        """The offset of a place of the stream: the end of the segment, if the segment is before the place."""
        if start == "latest":
            return self._end
        cut = self._reach.cut_at(self._stream, start)
        side = cut.side_by_epoch(self._segment_id)
        if side is Side.IN:
            offset = cut.offsets[self._segment_id]
            return self._end if offset == END_OF_SEGMENT else offset
        if side is not None:
            return 0 if side is Side.AFTER else self._end
        after = self._reach.answer(lambda: self._client.admin.segments_between(*self._stream, cut))
        found = (each.start_offset for each in after.ranges if each.segment_id == self._segment_id)
        return next(found, self._end)

    def read(self) -> EventBatch | None:
        if not self._batches:
            try:
                self._fetch()
            except HeadraceError:
                if not self._batches:  # else they come first, and the next call fails if this one would
                    raise
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._offset = batch.end_offset
        return batch

    def position(self) -> int:
        return self._offset

    def behind(self) -> int:
        return max(0, self._end - self._offset)

    def close(self) -> None:
        self._batches.clear()

    def _fetch(self) -> None:
        if self._end <= self._offset and not self._is_sealed and self._now_s() - self._asked_s >= TAIL_AGE_S:
            self._find_end()
        if self._end <= self._offset:
            return
        self.is_stored = not self._reach.to_stream(self._stream)
        if not self.is_stored:
            try:
                self._fetch_up_to(self._end)
            except UnavailableError:
                self.is_stored = True
        if self.is_stored and not self._batches:
            self._fetch_stored()

    def _find_end(self) -> None:
        self._end, self._is_sealed = self._reach.segment_end(self._stream, self._segment_id)
        self._asked_s = self._now_s()

    def _fetch_stored(self) -> None:
        """As `_fetch`, without the events that are only in the segment store."""
        chunks = partial(self._client.admin.chunks, *self._stream, self._segment_id)
        # More than one chunk: an event may begin in one and end in another.
        stored = self._reach.answer(lambda: chunks(from_offset=self._offset, to_offset=self._end))
        end = min(stored.stored_until, self._end)
        if end > self._offset:
            try:
                self._fetch_up_to(end)
            except CorruptError:
                if end == self._end:  # else S3 may end within an event
                    raise

    def _fetch_up_to(self, end: int) -> None:
        part = SegmentRange(*self._stream, self._segment_id, 0.0, 1.0, self._offset, end)
        batches: list[EventBatch] = []

        def read() -> None:
            size = 0
            with self._client.range_reader(part, give_up_after_s=STORE_PATIENCE_S) as reader:
                while size < BYTES_PER_CALL_MAX and (batch := reader.read_batch()) is not None:
                    batches.append(batch)
                    size += batch.end_offset - batch.offset

        try:
            self._reach.store_answer(read)
        finally:
            self._batches.extend(batches)  # also what came before a failure
