"""Reader groups as the console watches them: who reads what, how far behind, and which readers have fallen silent.

A group's state is opened once and kept, since to open it reads the state from its start. A reader is silent if its
segments have unread events and its positions have not changed while the console watched.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from headrace.api.reader_groups import ReaderGroupView
from headrace.cli.group import NO_STATE
from headrace.cli.parameters import ScopedName
from headrace.client import GroupLag, Headrace, ReaderGroup, ReaderStatus, StreamCut, StreamSegmentName
from headrace.model.errors import HeadraceError, NotFoundError, TruncatedError

GROUPS_OPEN_MAX = 30
GROUPS_PER_STREAM_MAX = 6
"""Groups that the page of a stream shows: each costs a few requests whenever they are read again."""

CONFIGURATIONS_PER_SCOPE_MAX = 100
CONFIGURATION_AGE_S = 60.0
SILENT_AFTER_S = 15.0
STORE_PATIENCE_S = 2.0


class ReaderFacts(NamedTuple):
    """A reader with its segments and their unread bytes. `silent_s` is None for one that moves or has read all."""

    reader: str
    segments: tuple[tuple[StreamSegmentName, int, int], ...]
    """Name, position and unread bytes."""
    seconds_behind: float | None
    silent_s: float | None


class GroupFacts(NamedTuple):
    """A group. Without a state, since no reader has joined, or if it cannot be read, `note` says so."""

    group: ReaderGroupView
    readers: tuple[ReaderFacts, ...] = ()
    unassigned: tuple[tuple[StreamSegmentName, int, int], ...] = ()
    waiting: tuple[StreamSegmentName, ...] = ()
    lag: GroupLag | None = None
    cuts: tuple[StreamCut, ...] = ()
    note: str = ""

    @property
    def name(self) -> ScopedName:
        return ScopedName(self.group.scope, self.group.group)


class GroupWatch:
    """Opens groups and remembers what their readers did. Safe for any number of threads."""

    def __init__(self, client: Headrace, now_s: Callable[[], float]) -> None:
        self._client = client
        self._now_s = now_s
        self._lock = threading.Lock()
        self._opened: OrderedDict[ScopedName, tuple[str, ReaderGroup, threading.Lock]] = OrderedDict()
        self._moved: dict[tuple[ScopedName, str], tuple[object, float]] = {}
        self._configurations: dict[str, tuple[float, list[ReaderGroupView]]] = {}
        self._cuts: dict[ScopedName, tuple[StreamCut, ...]] = {}

    def of_scope(self, scope: str) -> list[ReaderGroupView]:
        """The first groups of the scope by name, as they were at most CONFIGURATION_AGE_S ago."""
        known = self._configurations.get(scope)
        if known is None or self._now_s() - known[0] > CONFIGURATION_AGE_S:
            groups = self._client.admin.reader_groups
            views = []
            for name in groups.list(scope)[:CONFIGURATIONS_PER_SCOPE_MAX]:
                with suppress(NotFoundError):
                    views.append(groups.get(scope, name))
            known = self._configurations[scope] = (self._now_s(), views)
        return known[1]

    def of_stream(self, stream: ScopedName) -> list[ReaderGroupView]:
        """The groups in the stream's scope that read it."""
        return [
            view
            for view in self.of_scope(stream.scope)
            if any((read.scope, read.stream) == stream for read in view.configuration.streams)
        ]

    def cut_of(self, group: ScopedName, stream: ScopedName) -> StreamCut | None:
        """Where the group was in the stream when it was looked at last."""
        cuts = self._cuts.get(group, ())
        return next((cut for cut in cuts if (cut.scope, cut.stream) == stream), None)

    def look(self, view: ReaderGroupView) -> GroupFacts:
        """The group as it is now."""
        name = ScopedName(view.scope, view.group)
        try:
            opened, lock = self._open(name, view.group_id)
            with lock:
                status = opened.status()
                try:
                    lag, cuts, note = opened.lag(), opened.recorded_cuts(), ""
                except TruncatedError as error:
                    lag, cuts, note = None, (), f"{error.message}; `headrace group reset {name}` moves the group"
        except HeadraceError as error:
            self._forget(name)
            if error.specific_code == NO_STATE:
                return GroupFacts(view, note="no reader has joined yet")
            return GroupFacts(view, note=error.message)
        self._cuts[name] = cuts
        unread = {behind.segment: behind.bytes_unread for behind in lag.segments} if lag is not None else {}

        def with_unread(positions: dict[StreamSegmentName, int]) -> Iterator[tuple[StreamSegmentName, int, int]]:
            for segment, offset in positions.items():
                yield segment, offset, unread.get(segment, 0)

        readers = []
        for reader in status.readers:
            segments = tuple(with_unread(dict(reader.positions)))
            behind = any(bytes_unread for _, _, bytes_unread in segments)
            readers.append(
                ReaderFacts(reader.reader, segments, reader.seconds_behind, self._silence(name, reader, behind))
            )
        unassigned = tuple(with_unread(dict(status.unassigned)))
        return GroupFacts(view, tuple(readers), unassigned, status.waiting, lag, cuts, note)

    def close(self) -> None:
        with self._lock:
            opened = list(self._opened.values())
            self._opened.clear()
        for _, group, lock in opened:
            with lock, suppress(HeadraceError):
                group.close()

    def _silence(self, group: ScopedName, reader: ReaderStatus, is_behind: bool) -> float | None:
        now_s, positions = self._now_s(), dict(reader.positions)
        last = self._moved.get((group, reader.reader))
        if last is None or last[0] != positions or not is_behind:
            self._moved[(group, reader.reader)] = (positions, now_s)
            return None
        silent_s = now_s - last[1]
        return silent_s if silent_s >= SILENT_AFTER_S else None

    def _open(self, name: ScopedName, group_id: str) -> tuple[ReaderGroup, threading.Lock]:
        with self._lock:
            known = self._opened.get(name)
            if known is not None and known[0] == group_id:
                self._opened.move_to_end(name)
                return known[1], known[2]
        group = self._client.reader_group(*name, initialize=False, give_up_after_s=STORE_PATIENCE_S)
        lock = threading.Lock()
        with self._lock:
            replaced = [self._opened.pop(name)] if name in self._opened else []
            self._opened[name] = (group_id, group, lock)
            while len(self._opened) > GROUPS_OPEN_MAX:
                replaced.append(self._opened.popitem(last=False)[1])
        self._close(replaced)
        return group, lock

    def _forget(self, name: ScopedName) -> None:
        with self._lock:
            known = self._opened.pop(name, None)
            self._configurations.pop(name.scope, None)
        self._close([known] if known else [])
        for key in [key for key in self._moved if key[0] == name]:
            del self._moved[key]

    def _close(self, opened: list[tuple[str, ReaderGroup, threading.Lock]]) -> None:
        for _, group, lock in opened:
            with lock, suppress(HeadraceError):
                group.close()
