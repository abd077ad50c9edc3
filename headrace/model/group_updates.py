"""The updates of a reader group's state: what each changes, and when it is not allowed. Pure.

Every reader applies the same updates in the same order. An update that its rules do not allow raises IllegalStateError:
a reader writes an update only on condition that the state is the one that it has checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headrace.model.errors import IllegalStateError
from headrace.model.group_state import LAG_MS_MIN, LAG_MS_UNKNOWN, GroupState, Positions, is_silent
from headrace.model.names import StreamSegmentName
from headrace.model.segments import KeyRange

K = TypeVar("K")
V = TypeVar("V")


class GroupUpdate(ABC):
    """A change of the state of a group."""

    @abstractmethod
    def applied_to(self, state: GroupState) -> GroupState:
        """The state after the update. Raises IllegalStateError if its rules do not allow it."""

    @property
    def sender(self) -> str | None:
        """The reader that wrote the update, and so was alive then; None if another process may have written it."""
        return None


@dataclass(frozen=True, slots=True)
class ReplaceState(GroupUpdate):
    """Begins again with a state: a new configuration, a reset, or the summary of the updates before it."""

    state: GroupState

    def applied_to(self, state: GroupState) -> GroupState:
        return self.state


@dataclass(frozen=True, slots=True)
class AddReader(GroupUpdate):
    """A reader comes online, without a segment."""

    reader: str

    @property
    def sender(self) -> str:
        return self.reader

    def applied_to(self, state: GroupState) -> GroupState:
        if self.reader in state.assigned:
            raise IllegalStateError(f"reader {self.reader!r} is in the group already", code="reader_online")
        lags = state.lags_ms if self.reader in state.lags_ms else {**state.lags_ms, self.reader: LAG_MS_UNKNOWN}
        return replace(state, assigned={**state.assigned, self.reader: {}}, lags_ms=lags)


@dataclass(frozen=True, slots=True)
class RemoveReader(GroupUpdate):
    """A reader is offline. Its segments wait for owners, at `positions` or else where a failed reader's begin."""

    reader: str
    positions: Positions = field(default_factory=dict)

    def applied_to(self, state: GroupState) -> GroupState:
        owned = {
            segment: self.positions.get(segment, offset)
            for segment, offset in state.assigned.get(self.reader, {}).items()
        }
        return replace(
            state,
            assigned=_without(state.assigned, self.reader),
            unassigned={**state.unassigned, **owned},
            lags_ms=_without(state.lags_ms, self.reader),
            leases_ms=_without(state.leases_ms, self.reader),
            checkpoints=state.checkpoints.without_reader(self.reader, owned),
        )


@dataclass(frozen=True, slots=True)
class ReleaseSegment(GroupUpdate):
    """A reader gives a segment up. The next owner begins at `offset`."""

    reader: str
    segment: StreamSegmentName
    offset: int

    @property
    def sender(self) -> str:
        return self.reader

    def applied_to(self, state: GroupState) -> GroupState:
        owned = _owned(state, self.reader, self.segment)
        return replace(
            state,
            assigned={**state.assigned, self.reader: _without(owned, self.segment)},
            unassigned={**state.unassigned, self.segment: self.offset},
            last_read=_told(state.last_read, {self.segment: self.offset}),
        )


@dataclass(frozen=True, slots=True)
class AcquireSegment(GroupUpdate):
    """A reader takes a segment that has no owner."""

    reader: str
    segment: StreamSegmentName

    @property
    def sender(self) -> str:
        return self.reader

    def applied_to(self, state: GroupState) -> GroupState:
        owned = state.owned_by(self.reader)
        if self.segment not in state.unassigned:
            raise IllegalStateError(f"segment {self.segment} does not wait for an owner")
        return replace(
            state,
            assigned={**state.assigned, self.reader: {**owned, self.segment: state.unassigned[self.segment]}},
            unassigned=_without(state.unassigned, self.segment),
        )


@dataclass(frozen=True, slots=True)
class NoteProgress(GroupUpdate):
    """A reader is alive and tells how far it is behind, and to where it has read.

    With `lease_ms` it promises to write an update within this time again, until it leaves.
    """

    reader: str
    lag_ms: int
    positions: Positions = field(default_factory=dict)
    ranges: Mapping[StreamSegmentName, KeyRange] = field(default_factory=dict)
    lease_ms: int | None = None

    @property
    def sender(self) -> str:
        return self.reader

    def applied_to(self, state: GroupState) -> GroupState:
        leases = state.leases_ms
        if self.reader in state.assigned and self.lease_ms is not None:
            leases = {**leases, self.reader: self.lease_ms}
        return replace(
            state,
            lags_ms={**state.lags_ms, self.reader: max(LAG_MS_MIN, self.lag_ms)},
            last_read=_told(state.last_read, self.positions),
            leases_ms=leases,
        )


@dataclass(frozen=True, slots=True)
class CompleteSegment(GroupUpdate):
    """A reader has read a segment to its end. A successor can be read once all its predecessors were.

    `successors` has each successor with the ids of all its predecessors.
    """

    reader: str
    segment: StreamSegmentName
    successors: Mapping[StreamSegmentName, tuple[int, ...]]
    ranges: Mapping[StreamSegmentName, KeyRange] = field(default_factory=dict)

    @property
    def sender(self) -> str:
        return self.reader

    def applied_to(self, state: GroupState) -> GroupState:
        owned = _owned(state, self.reader, self.segment)
        waiting = {segment: frozenset(before) for segment, before in self.successors.items()} | dict(state.future)
        # Ids are unique within a stream only, and a group can read several streams.
        future = {
            segment: before - {self.segment.segment_id} if _same_stream(segment, self.segment) else before
            for segment, before in waiting.items()
        }
        ready = [segment for segment, before in future.items() if not before]
        last_read = dict.fromkeys(ready, 0) | _without(state.last_read, self.segment)
        return replace(
            state,
            assigned={**state.assigned, self.reader: _without(owned, self.segment)},
            future={segment: before for segment, before in future.items() if before},
            unassigned={**state.unassigned, **dict.fromkeys(ready, 0)},
            last_read=last_read,
            ranges={**_without(state.ranges, self.segment), **_without(self.ranges, self.segment)},
        )


@dataclass(frozen=True, slots=True)
class ReachCheckpoint(GroupUpdate):
    """A reader adds its positions to a checkpoint."""

    checkpoint: str
    reader: str
    positions: Positions

    @property
    def sender(self) -> str:
        return self.reader

    def applied_to(self, state: GroupState) -> GroupState:
        checkpoints = state.checkpoints.reached(self.checkpoint, self.reader, self.positions)
        if is_silent(self.checkpoint) or self.reader not in state.assigned:
            return replace(state, checkpoints=checkpoints)
        owned = {
            segment: self.positions.get(segment, offset) for segment, offset in state.assigned[self.reader].items()
        }
        return replace(state, checkpoints=checkpoints, assigned={**state.assigned, self.reader: owned})


@dataclass(frozen=True, slots=True)
class BeginCheckpoint(GroupUpdate):
    """A checkpoint begins; it waits for all readers that are online."""

    checkpoint: str

    def applied_to(self, state: GroupState) -> GroupState:
        checkpoints = state.checkpoints.begun(self.checkpoint, state.readers, state.unassigned)
        return replace(state, checkpoints=checkpoints)


@dataclass(frozen=True, slots=True)
class ClearCheckpointsBefore(GroupUpdate):
    """The checkpoints that began before this one are forgotten."""

    checkpoint: str

    def applied_to(self, state: GroupState) -> GroupState:
        return replace(state, checkpoints=state.checkpoints.cleared_before(self.checkpoint))


@dataclass(frozen=True, slots=True)
class NotePublished(GroupUpdate):
    """Whether the controller knows the positions of the last complete checkpoint."""

    published: bool

    def applied_to(self, state: GroupState) -> GroupState:
        return replace(state, checkpoints=replace(state.checkpoints, last_published=self.published))


@dataclass(frozen=True, slots=True)
class NoteUpdating(GroupUpdate):
    """Whether another configuration is on its way: then readers ask the controller for it."""

    updating: bool

    def applied_to(self, state: GroupState) -> GroupState:
        return replace(state, is_updating=self.updating)


@dataclass(frozen=True, slots=True)
class RemoveOutstandingCheckpoints(GroupUpdate):
    """The checkpoints that are not complete are forgotten."""

    def applied_to(self, state: GroupState) -> GroupState:
        return replace(state, checkpoints=state.checkpoints.without_outstanding())


def _owned(state: GroupState, reader: str, segment: StreamSegmentName) -> Positions:
    owned = state.owned_by(reader)
    if segment not in owned:
        raise IllegalStateError(f"reader {reader!r} does not own segment {segment}")
    return owned


def _told(known: Mapping[K, int], told: Mapping[K, int]) -> Mapping[K, int]:
    """The known entries with the new values of those that are told."""
    return {**known, **{key: value for key, value in told.items() if key in known}}


def _without(values: Mapping[K, V], key: K) -> dict[K, V]:
    return {other: value for other, value in values.items() if other != key}


def _same_stream(first: StreamSegmentName, second: StreamSegmentName) -> bool:
    return (first.scope, first.stream) == (second.scope, second.stream)
