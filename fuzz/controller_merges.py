"""Where each event was merged: a truncation may hide an event later, but not that it was merged, or how often."""

from __future__ import annotations

from typing import Final

from fuzz.control_plane import ControlPlane
from fuzz.controller_events import EVENT_BYTES, Event, parse_events
from fuzz.controller_model import SCOPE, STREAMS, TRANSACTION

MERGE: Final = "segment store merge_segments"
"""The kind of the call after which `follow` finds new events."""

Position = tuple[str, int]
"""A segment of a stream, and an offset in it."""


class WatchedMerges:
    """`positions` are all places of an event that ever were, also in segments that are deleted now."""

    def __init__(self, plane: ControlPlane) -> None:
        self.positions: dict[Event, list[Position]] = {}
        self.times_ms: dict[Event, int] = {}
        self._clock = plane.clock
        self._stores = plane.bare_segment_stores
        self._lengths: dict[str, int] = {}
        self._prefixes = tuple(f"{SCOPE}/{stream}/" for stream in STREAMS)

    def follow(self) -> None:
        """Learn of the events that the last call has merged. Raises WrongStateError."""
        for name in self._stores.names():
            if not name.startswith(self._prefixes) or TRANSACTION in name:
                continue
            known, length = self._lengths.get(name, 0), self._stores.segment_info(name).length
            self._lengths[name] = length
            for index, event in enumerate(parse_events(self._stores.read(name, known, length - known))):
                self.times_ms.setdefault(event, self._clock.now_ms())
                self.positions.setdefault(event, []).append((name, known + index * EVENT_BYTES))
