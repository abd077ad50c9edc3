"""Retention of the controller's streams: no truncation by it loses what a subscriber has not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.control_plane import ControlPlane
from fuzz.controller_model import SCOPE, STREAMS
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.metadata.running_truncation import find_running_truncation
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.stream_cut_order import CutOrder, compare_cuts
from headrace.model.streams import Stream
from headrace.model.subscribers import upper_bound
from headrace.model.truncation import RunningTruncation
from headrace.ports.metadata_store import Check

_PERIOD_MS: Final = 1_000

_Cut = tuple[tuple[int, int], ...]


class WatchedRetention:
    """The ticks of retention, and a check of each truncation that they request.

    The policies have no maximum, so a truncation by retention may only drop what all subscribers have read.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.ticks = RetentionTicks(plane.store, plane.segment_stores, plane.clock, self._truncate, _PERIOD_MS)
        self._plane = plane
        self._subscribers = SubscriberRecords(plane.bare_store)
        self._requested: set[tuple[str, _Cut]] = set()
        self._of_others: set[tuple[str, _Cut]] = set()
        self._seen: dict[str, RunningTruncation | None] = {}

    def note_other(self, stream: str, offsets: Mapping[int, int]) -> None:
        """An administrator may truncate at this cut, which may drop events that are not read."""
        self._of_others.add((stream, _cut(offsets)))

    def _truncate(self, scope: str, stream: str, offsets: Mapping[int, int], planned_on: Check) -> object:
        self._requested.add((stream, _cut(offsets)))
        return self._plane.accept_truncation(scope, stream, offsets, planned_on)

    def follow(self) -> None:
        """Check the truncation that the last call has accepted. Raises WrongStateError."""
        for name in STREAMS:
            stored = self._plane.records.find(SCOPE, name)
            found = None if stored is None else find_running_truncation(self._plane.bare_store, stored.stream)
            running = None if found is None else found[0]
            if running is None or self._seen.get(name) is not None:
                self._seen[name] = running
                continue
            self._seen[name] = running
            wanted = name, _cut(running.target.cut.offsets)
            if stored is not None and wanted in self._requested - self._of_others:
                self._check(stored.stream, running)

    def _check(self, stream: Stream, running: RunningTruncation) -> None:
        for one in self._subscribers.all(stream):
            cuts = [one.position] if running.before is None else [one.position, running.before.head]
            if compare_cuts(upper_bound(cuts), running.target) is not CutOrder.EQUAL_OR_AFTER:
                raise WrongStateError(
                    f"retention truncates {stream.scoped_name} at {running.target}, and {one} is before"
                )


def _cut(offsets: Mapping[int, int]) -> _Cut:
    return tuple(sorted(offsets.items()))
