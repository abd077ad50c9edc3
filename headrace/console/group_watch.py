"""Reader groups as the console watches them: who reads what, how far behind, and which readers have fallen silent.

A group's state is opened once and kept, since to open it reads the state from its start. A reader is silent if its
segments have unread events and its positions have not changed while the console watched.

While no segment store can be reached, a group is what S3 has of its state.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from headrace.api.reader_groups import ReaderGroupView
from headrace.cli.group import NO_STATE
from headrace.cli.parameters import ScopedName
from headrace.client import GroupLag, GroupStatus, Headrace, ReaderGroup, ReaderStatus, StreamCut, StreamSegmentName
from headrace.console.store_reach import STORE_PATIENCE_S, StoreReach
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError
from headrace.model.segments import segment_epoch

GROUPS_OPEN_MAX = 30
GROUPS_PER_PAGE = 10
"""Groups in a list, each with the bytes behind. The page opens all of them, and GROUPS_OPEN_MAX stay open."""

LISTED_REQUESTS_MAX = 12
"""About how many requests a group in a list may take to be measured: how far behind another one is, is left open."""

GROUPS_PER_STREAM_MAX = 6
"""Groups that the page of a stream shows: each costs a few requests whenever they are read again."""

CONFIGURATIONS_PER_SCOPE_MAX = 100
NAMES_AGE_S = 60.0
CONFIGURATION_AGE_S = 600.0
REQUESTS_PER_S = 0.3
"""Of all groups together, to measure how far they are behind, which takes a request for each segment with unread bytes.
Where readers are is read from the group's own state, at each look."""

SILENT_AFTER_S = 15.0
WATCHED_S = 30.0
"""The longest time between two looks at a group that is being watched."""

T = TypeVar("T")
Places = tuple[tuple[StreamSegmentName, int, int | None], ...]
"""Segments, positions in them, and unread bytes; None if these are not known."""


class ReaderFacts(NamedTuple):
    """A reader with its segments. `silent_s` is None for one that moves, has read all, or is not known well enough."""

    reader: str
    segments: Places
    seconds_behind: float | None
    silent_s: float | None


class GroupFacts(NamedTuple):
    """A group. Without a state, since no reader has joined, or if it cannot be read, `note` says so.

    `is_stored`: it is what S3 has, some seconds ago. Then there is no `lag`, but `behind`.
    """

    group: ReaderGroupView
    readers: tuple[ReaderFacts, ...] = ()
    unassigned: Places = ()
    waiting: tuple[StreamSegmentName, ...] = ()
    lag: GroupLag | None = None
    behind: Mapping[str, int | None] | None = None
    """Unread bytes by stream; None for a stream of which they are not known."""
    cuts: tuple[StreamCut, ...] = ()
    note: str = ""
    age_s: float = 0.0
    """How old `lag`, `behind` and `cuts` are."""
    is_stored: bool = False
    has_status: bool = True
    """Whether it is known which readers it has."""

    @property
    def bytes_behind(self) -> int | None:
        """Unread bytes of all streams; None if those of one are not known."""
        counts = [None] if self.behind is None else list(self.behind.values())
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def name(self) -> ScopedName:
        return ScopedName(self.group.scope, self.group.group)


class _Moved(NamedTuple):
    """Where a reader was at the last look, and since when it has been there with unread bytes."""

    positions: object | None
    """None for one that had read all."""
    since_s: float
    looked_s: float


class _Measure(NamedTuple):
    """How far a group was behind at a time. `requests` is about what it took to find out."""

    at_s: float
    requests: int
    lag: GroupLag | None
    behind: Mapping[str, int | None] | None
    cuts: tuple[StreamCut, ...]
    note: str
    is_whole: bool = True
    """Whether it has all that can be known, and not only what a list shows."""

    def unread(self, segment: StreamSegmentName, offset: int) -> int | None:
        """The bytes of the segment after the offset. The lag counts from the cuts, which readers may have passed."""
        return None if self.lag is None else self.lag.bytes_after(segment, offset)


@dataclass(slots=True)
class _Watched:
    """An open group. `lock` is held while it is used."""

    group_id: str
    group: ReaderGroup
    is_stored: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_closed: bool = False
    looked_s: float = 0.0
    measure: _Measure | None = None
    moved: dict[str, _Moved] = field(default_factory=dict)

    def close(self) -> None:
        with self.lock, suppress(HeadraceError):
            self.is_closed = True
            self.group.close()


class _Configurations(NamedTuple):
    """The names of all groups of a scope, as listed at `listed_s`, and of some the configuration with its time."""

    listed_s: float
    names: list[str]
    views: dict[str, tuple[float, ReaderGroupView]]


class GroupWatch:
    """Opens groups and remembers what their readers did. Safe for any number of threads."""

    def __init__(self, client: Headrace, reach: StoreReach, now_s: Callable[[], float]) -> None:
        self._client = client
        self._reach = reach
        self._now_s = now_s
        self._lock = threading.Lock()
        self._opened: OrderedDict[ScopedName, _Watched] = OrderedDict()
        self._configurations: dict[str, _Configurations] = {}

    def names(self, scope: str) -> list[str]:
        """The names of the groups of the scope, of at most NAMES_AGE_S ago."""
        return self._listed(scope).names

    def configurations(self, scope: str, names: Iterable[str]) -> list[ReaderGroupView]:
        """The configurations of the groups that exist, of at most CONFIGURATION_AGE_S ago."""
        views, now_s = self._listed(scope).views, self._now_s()
        found = []
        for name in names:
            known = views.get(name)
            if known is None or now_s - known[0] > CONFIGURATION_AGE_S:
                try:
                    known = views[name] = (now_s, self._client.admin.reader_groups.get(scope, name))
                except NotFoundError:
                    views.pop(name, None)
                    continue
            found.append(known[1])
        return found

    def of_stream(self, stream: ScopedName) -> list[ReaderGroupView]:
        """The groups that read the stream, of the first ones in its scope by name."""
        names = self.names(stream.scope)[:CONFIGURATIONS_PER_SCOPE_MAX]
        return [
            view
            for view in self.configurations(stream.scope, names)
            if any((read.scope, read.stream) == stream for read in view.configuration.streams)
        ]

    def _listed(self, scope: str) -> _Configurations:
        now_s = self._now_s()
        known = self._configurations.get(scope)
        if known is None or now_s - known.listed_s > NAMES_AGE_S:
            names = self._client.admin.reader_groups.list(scope)
            former = {} if known is None else known.views  # other threads change it
            kept = {name: view for name in names if (view := former.get(name)) is not None}
            known = _Configurations(now_s, names, kept)
            with self._lock:
                for other, configurations in list(self._configurations.items()):
                    if now_s - configurations.listed_s > CONFIGURATION_AGE_S:
                        del self._configurations[other]
                self._configurations[scope] = known
        return known

    def cuts_in(self, stream: ScopedName) -> list[tuple[ScopedName, StreamCut]]:
        """Where the groups that pages look at were in the stream at the last look, by name. Asks for nothing."""
        with self._lock:
            opened = sorted(self._opened.items())
        return [
            (name, cut)
            for name, watched in opened
            if self._now_s() - watched.looked_s <= WATCHED_S
            for cut in (watched.measure.cuts if watched.measure is not None else ())
            if (cut.scope, cut.stream) == stream
        ]

    def look(self, view: ReaderGroupView, *, is_listed: bool = False) -> GroupFacts:
        """The group as it is now. If it `is_listed` among others, events are not counted, so that it costs less."""
        name = ScopedName(view.scope, view.group)
        watched: _Watched | None = None
        try:
            while True:
                watched = self._open(name, view.group_id)
                with watched.lock:
                    if not watched.is_closed:  # by another thread, for other groups
                        return self._facts(view, watched, is_listed=is_listed)
        except HeadraceError as error:
            self._forget(name, watched)
            if error.specific_code == NO_STATE:
                return GroupFacts(view, note="no reader has joined yet")
            if isinstance(error, NotFoundError):
                with self._lock:
                    self._configurations.pop(name.scope, None)
            return GroupFacts(view, note=error.message, has_status=False)

    def _facts(self, view: ReaderGroupView, watched: _Watched, *, is_listed: bool) -> GroupFacts:
        status = self._answer(watched.group.status, is_stored=watched.is_stored)
        now_s = watched.looked_s = self._now_s()
        measure = watched.measure
        if (
            measure is None
            or not (measure.is_whole or is_listed)
            or now_s - measure.at_s >= measure.requests * self._watched_count() / REQUESTS_PER_S
        ):
            measure = watched.measure = self._measured(view, watched, status if is_listed else None)

        def with_unread(positions: dict[StreamSegmentName, int]) -> Iterator[tuple[StreamSegmentName, int, int | None]]:
            for segment, offset in positions.items():
                yield segment, offset, measure.unread(segment, offset)

        readers = []
        for reader in status.readers:
            segments = tuple(with_unread(dict(reader.positions)))
            behind = any(bytes_unread for _, _, bytes_unread in segments)  # not known of what S3 has
            readers.append(
                ReaderFacts(reader.reader, segments, reader.seconds_behind, self._silence(watched, reader, behind))
            )
        present = {reader.reader for reader in status.readers}
        watched.moved = {name: moved for name, moved in watched.moved.items() if name in present}
        unassigned = tuple(with_unread(dict(status.unassigned)))
        return GroupFacts(
            view,
            tuple(readers),
            unassigned,
            status.waiting,
            measure.lag,
            measure.behind,
            measure.cuts,
            measure.note,
            now_s - measure.at_s,
            watched.is_stored,
        )

    def _measured(self, view: ReaderGroupView, watched: _Watched, listed: GroupStatus | None) -> _Measure:
        """How far the group is behind. One that is `listed` is measured in bytes, if that takes few requests."""
        now_s, group = self._now_s(), watched.group
        if listed is not None and _listed_requests(listed) > LISTED_REQUESTS_MAX:
            return _Measure(now_s, 0, None, None, (), "", is_whole=False)  # for nothing: the next look tries again
        try:
            if watched.is_stored or listed is not None:
                cuts = self._answer(group.recorded_cuts, is_stored=watched.is_stored)
                behind = {f"{cut.scope}/{cut.stream}": self._unread(view, cut) for cut in cuts}
                return _Measure(now_s, 3 * len(cuts), None, behind, cuts, "", is_whole=watched.is_stored)
            lag, cuts = self._reach.store_answer(lambda: (group.lag(), group.recorded_cuts()))
        except TruncatedError as error:
            name = ScopedName(view.scope, view.group)
            note = f"{error.message}; `headrace group reset {name}` moves the group"
            return _Measure(now_s, 2, None, None, (), note)
        except NotFoundError as error:  # a stream of the group was deleted; the group itself answered a moment ago
            return _Measure(now_s, 2, None, None, (), error.message)
        epochs = {(cut.stream, segment_epoch(identifier)) for cut in cuts for identifier in cut.offsets}
        requests = len(cuts) + 2 * len(epochs) + len(lag.segments)
        return _Measure(now_s, requests, lag, lag.bytes_by_stream, cuts, "")

    def _unread(self, view: ReaderGroupView, cut: StreamCut) -> int | None:
        """The bytes between a cut of the group and the tail of its stream, or the group's end cut."""
        ends = {(each.scope, each.stream): each.end for each in view.configuration.streams}
        end = ends.get((cut.scope, cut.stream))
        return self._reach.behind(ScopedName(cut.scope, cut.stream), cut.offsets, end)

    def _watched_count(self) -> int:
        with self._lock:
            return max(1, sum(self._now_s() - watched.looked_s <= WATCHED_S for watched in self._opened.values()))

    def close(self) -> None:
        with self._lock:
            opened = list(self._opened.values())
            self._opened.clear()
        for watched in opened:
            watched.close()

    def _silence(self, watched: _Watched, reader: ReaderStatus, is_behind: bool) -> float | None:
        now_s, positions = self._now_s(), dict(reader.positions) if is_behind else None
        last = watched.moved.get(reader.reader)
        since_s = now_s
        if last is not None and is_behind and last.positions == positions and now_s - last.looked_s <= WATCHED_S:
            since_s = last.since_s
        watched.moved[reader.reader] = _Moved(positions, since_s, now_s)
        return now_s - since_s if now_s - since_s >= SILENT_AFTER_S else None

    def _open(self, name: ScopedName, group_id: str) -> _Watched:
        is_stored = not self._reach.to_group(name)
        known = self._known(name, group_id, is_stored)
        if known is not None:
            return known
        opened = _Watched(group_id, self._open_group(name, is_stored), is_stored)
        with self._lock:
            other = self._opened.get(name)
            is_first = other is None or (other.group_id, other.is_stored) != (group_id, is_stored)
            closing = [] if is_first else [opened]
            if is_first:
                closing += [other] if other is not None else []
                self._opened[name] = opened
            used = self._opened[name]
            self._opened.move_to_end(name)
            while len(self._opened) > GROUPS_OPEN_MAX:
                closing.append(self._opened.popitem(last=False)[1])
        for watched in closing:
            watched.close()
        return used

    def _open_group(self, name: ScopedName, is_stored: bool) -> ReaderGroup:
        options: dict[str, Any] = {"from_s3": True} if is_stored else {"give_up_after_s": STORE_PATIENCE_S}
        return self._answer(lambda: self._client.reader_group(*name, initialize=False, **options), is_stored=is_stored)

    def _answer(self, ask: Callable[[], T], *, is_stored: bool) -> T:
        return self._reach.answer(ask) if is_stored else self._reach.store_answer(ask)

    def _known(self, name: ScopedName, group_id: str, is_stored: bool) -> _Watched | None:
        with self._lock:
            known = self._opened.get(name)
            if known is None or (known.group_id, known.is_stored) != (group_id, is_stored):
                return None
            self._opened.move_to_end(name)
            return known

    def _forget(self, name: ScopedName, watched: _Watched | None) -> None:
        """Closes a group that failed, unless another thread has opened it again."""
        with self._lock:
            if watched is not None and self._opened.get(name) is watched:
                del self._opened[name]
        if watched is not None:
            watched.close()


def _listed_requests(status: GroupStatus) -> int:
    """About how many requests it takes to measure the bytes behind: two for each stream and one for each epoch; if
    segments wait for others, one for each segment to find those that were read."""
    held = {*status.unassigned, *(segment for reader in status.readers for segment in reader.positions)}
    streams = {(segment.scope, segment.stream) for segment in held}
    epochs = {(segment.scope, segment.stream, segment_epoch(segment.segment_id)) for segment in held}
    walked = len(held) + len(status.waiting) if status.waiting else 0
    return 2 * len(streams) + len(epochs) + walked
