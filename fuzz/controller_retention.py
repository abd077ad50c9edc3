"""Retention of the controller's streams: no truncation by it loses what a subscriber has not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.control_plane import ControlPlane
from fuzz.controller_model import SCOPE, STREAMS, Event
from fuzz.controller_segments import WatchedMerges
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.metadata.subscriber import SubscriberRecords
from headrace.metadata.truncation import find_running_truncation
from headrace.model.segments import segment_epoch, segment_id, segment_number
from headrace.model.stream_configuration import RetentionPolicy
from headrace.model.stream_cuts import CutOrder, PlacedCut, Side, compare_cuts, side_of
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream
from headrace.model.subscribers import upper_bound
from headrace.model.truncation import RunningTruncation
from headrace.ports.metadata_store import Check

_PERIOD_MS: Final = 1_000

_Cut = tuple[tuple[int, int], ...]


class WatchedRetention:
    """The ticks of retention, and a check of each truncation that they request.

    Policies by size have no maximum, so a truncation by retention may only drop what all subscribers have read. All
    policies by time are the same `by_time`.
    """

    def __init__(self, plane: ControlPlane, merges: WatchedMerges, by_time: RetentionPolicy | None) -> None:
        self.ticks = RetentionTicks(plane.store, plane.segment_stores, plane.clock, self._truncate, _PERIOD_MS)
        self._plane = plane
        self._merges = merges
        self._by_time = by_time
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
        if self._by_time is not None:
            self._check_by_time(stream, running, self._by_time)
            return
        for each in self._subscribers.all(stream):
            cuts = [each.position] if running.before is None else [each.position, running.before.head]
            if compare_cuts(upper_bound(cuts), running.target) is not CutOrder.EQUAL_OR_AFTER:
                raise WrongStateError(
                    f"retention truncates {stream.scoped_name} at {running.target}, and {each} is before"
                )

    def _check_by_time(self, stream: Stream, running: RunningTruncation, policy: RetentionPolicy) -> None:
        """What goes is older than the minimum. Unread events only go while one of them is older than the maximum."""
        ages = {event: self._plane.clock.now_ms() - at_ms for event, at_ms in self._merges.times_ms.items()}
        kept = self._behind(stream, None if running.before is None else running.before.head)
        gone = kept - self._behind(stream, running.target)
        young = {event: ages[event] for event in gone if ages[event] < policy.minimum}
        where = f"retention truncates {stream.scoped_name} at {running.target}"
        if young:
            raise WrongStateError(f"{where}, and the ages of {young} are less than the minimum")
        unread: set[Event] = set()
        for subscriber in self._subscribers.all(stream):
            unread |= kept & self._behind(stream, subscriber.position)
        is_old = policy.maximum is not None and any(ages[event] > policy.maximum for event in unread)
        if gone & unread and not is_old:
            raise WrongStateError(f"{where}, and {gone & unread} are unread: {[ages[each] for each in unread]}")

    def _behind(self, stream: Stream, place: PlacedCut | None) -> set[Event]:
        """The events of the stream at or after a place, or all of them."""
        found: set[Event] = set()
        for event, positions in self._merges.positions.items():
            for name, offset in positions:
                _, owner, segment = name.split("/")
                number, _, epoch = segment.partition(".#epoch.")
                identifier = segment_id(int(epoch), int(number))
                if owner == stream.name and self._is_behind(stream, identifier, offset, place):
                    found.add(event)
        return found

    def _is_behind(self, stream: Stream, identifier: int, offset: int, place: PlacedCut | None) -> bool:
        if segment_number(identifier) < stream.first_segment_number:
            return False  # of a former incarnation
        if place is None:
            return True
        if identifier in place.cut.offsets:
            return offset >= place.cut.offsets[identifier]
        segment = self._plane.records.history.epoch(stream, segment_epoch(identifier)).by_id[identifier]
        return side_of(segment, place) is Side.AFTER

    def check_old_events(self, stream: Stream, head: PlacedCut | None, slack_ms: int) -> None:
        """What retention by time must have truncated is gone: ticks have run for longer than `slack_ms`."""
        policy = self._by_time
        if policy is None or stream.configuration.retention is None or stream.state is not StreamState.ACTIVE:
            return
        limit_ms = policy.maximum if self._subscribers.all(stream) else policy.minimum
        if limit_ms is None:
            return
        last_ms = self._plane.clock.now_ms() - limit_ms - slack_ms
        left = {each: at_ms for each in self._behind(stream, head) if (at_ms := self._merges.times_ms[each]) < last_ms}
        if left:
            raise WrongStateError(f"retention has left {left} in {stream.scoped_name}, from before {last_ms}")


def _cut(offsets: Mapping[int, int]) -> _Cut:
    return tuple(sorted(offsets.items()))
