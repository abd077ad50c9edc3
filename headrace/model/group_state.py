"""The state that the readers of a group share: who reads which segment, from where, and checkpoints. Pure values.

The readers agree on a sequence of updates (`group_updates.py`), and each applies them in order, so all have the same
state. The rules are those of Pravega's reader groups. A segment of the group is in one place at a time: it has one
owner, or it waits for an owner, or it waits until its predecessors were read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.names import StreamSegmentName
from headrace.model.reader_groups import (
    AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT,
    GROUP_REFRESH_MS_DEFAULT,
    OUTSTANDING_CHECKPOINTS_DEFAULT,
    RetentionMode,
)
from headrace.model.segments import KeyRange

# Checkpoints of a reader group: positions on which all its readers agree. Pure values, with Pravega's rules.
#
# A checkpoint begins with the positions of the segments without an owner. Each reader that was online then adds its
# own, and until it has done so it may neither take nor release a segment. So the positions of a complete checkpoint are
# those of all segments, each once.

Positions = Mapping[StreamSegmentName, int]
"""Offset in bytes by segment, END_OF_SEGMENT for one that was read to its end."""

_SILENT = "_SILENT_"
"""Part of the name of a checkpoint that only collects positions: it is not where readers begin after a failure."""


def silent_checkpoint_name(unique: str) -> str:
    """The name of a checkpoint that only collects positions."""
    return f"{unique}{_SILENT}"


def is_silent(name: str) -> bool:
    return _SILENT in name


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints that a group keeps. `names` are in the order in which they began.

    `waiting_for` has the readers that a checkpoint waits for; a complete one is not in it. `last` are the positions of
    the newest complete checkpoint that is not silent, and `last_published` says whether the controller knows them.
    """

    names: tuple[str, ...] = ()
    waiting_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    positions: Mapping[str, Positions] = field(default_factory=dict)
    last: Positions | None = None
    last_published: bool = True

    @property
    def is_ongoing(self) -> bool:
        return bool(self.waiting_for)

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Those that are neither silent nor complete."""
        return tuple(name for name in self.names if name in self.waiting_for and not is_silent(name))

    def next_of(self, reader: str) -> str | None:
        """The oldest checkpoint that waits for the reader."""
        return next((name for name in self.names if reader in self.waiting_for.get(name, ())), None)

    def complete_positions(self, name: str) -> Positions | None:
        """The positions of a complete checkpoint; None if it is not complete or no longer kept."""
        return None if name in self.waiting_for else self.positions.get(name)

    def check_may_begin(self, name: str, outstanding_max: int) -> None:
        """Check that a checkpoint which an application asks for may begin.

        Raises:
            InvalidRequestError: the group has a checkpoint of this name.
            IllegalStateError: code "too_many_checkpoints": `outstanding_max` are in progress.
        """
        if name in self.positions:
            raise InvalidRequestError(f"the group has a checkpoint {name!r} already: choose another name")
        if len(self.outstanding) >= outstanding_max:
            raise IllegalStateError(
                f"{outstanding_max} checkpoints of the group are in progress: wait for one, or cancel them",
                code="too_many_checkpoints",
            )

    def begun(self, name: str, readers: Collection[str], unassigned: Positions) -> Checkpoints:
        """After the begin of a checkpoint; a name that exists changes nothing.

        Without readers it is complete at once.
        """
        if name in self.positions:
            return self
        waiting = {**self.waiting_for, name: tuple(readers)} if readers else self.waiting_for
        positions = {**self.positions, name: dict(unassigned)}
        begun = replace(self, names=(*self.names, name), waiting_for=waiting, positions=positions)
        return begun if readers else begun._completed(name)

    def reached(self, name: str, reader: str, positions: Positions) -> Checkpoints:
        """After a reader has added its positions. A checkpoint that no longer waits for any reader is unchanged.

        Raises:
            IllegalStateError: the checkpoint does not wait for this reader.
        """
        readers = self.waiting_for.get(name)
        if readers is None:
            return self
        if reader not in readers:
            raise IllegalStateError(f"checkpoint {name!r} does not wait for reader {reader!r}")
        left = tuple(each for each in readers if each != reader)
        merged = {**self.positions, name: {**self.positions[name], **positions}}
        if left:
            return replace(self, waiting_for={**self.waiting_for, name: left}, positions=merged)
        waiting = {checkpoint: others for checkpoint, others in self.waiting_for.items() if checkpoint != name}
        return replace(self, waiting_for=waiting, positions=merged)._completed(name)

    def without_reader(self, reader: str, positions: Positions) -> Checkpoints:
        """After a reader has left: each checkpoint that waits for it gets these positions."""
        checkpoints = self
        for name in self.names:
            if reader in self.waiting_for.get(name, ()):
                checkpoints = checkpoints.reached(name, reader, positions)
        return checkpoints

    def cleared_before(self, name: str) -> Checkpoints:
        """Without the checkpoints that began before this one; unchanged if it is not kept."""
        if name not in self.names:
            return self
        return self._only(self.names[self.names.index(name) :])

    def without_outstanding(self) -> Checkpoints:
        """Without those that are neither silent nor complete."""
        dropped = self.outstanding
        return self._only(tuple(name for name in self.names if name not in dropped))

    def _completed(self, name: str) -> Checkpoints:
        """After the last reader has added its positions. A silent checkpoint is not where readers begin."""
        return self if is_silent(name) else replace(self, last=self.positions[name], last_published=False)

    def _only(self, kept: tuple[str, ...]) -> Checkpoints:
        return replace(
            self,
            names=kept,
            waiting_for={name: readers for name, readers in self.waiting_for.items() if name in kept},
            positions={name: positions for name, positions in self.positions.items() if name in kept},
        )


Offsets = Mapping[int, int]
"""Offset in bytes by segment id of one stream."""

LAG_MS_MIN = 30_000
"""A shorter lag counts as this one, so that small differences move no segments (Pravega's constant)."""

LAG_MS_UNKNOWN = (1 << 63) - 1
"""The lag of a reader that has not told one."""

NO_GROUP_ID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class SharedConfiguration:
    """The configuration as it is stored in the state: what readers need of it.

    `starts` and `ends` are by scoped name of the stream; None is a stream without that bound. An interval of zero or
    less means that no checkpoint is automatic.
    """

    starts: Mapping[str, Offsets | None]
    ends: Mapping[str, Offsets | None]
    group_id: str = NO_GROUP_ID
    generation: int = -1
    retention: RetentionMode = RetentionMode.NONE
    group_refresh_ms: int = GROUP_REFRESH_MS_DEFAULT
    automatic_checkpoint_interval_ms: int = AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT
    outstanding_checkpoints_max: int = OUTSTANDING_CHECKPOINTS_DEFAULT


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state after some updates. Offsets are in bytes.

    `assigned` has, by reader that is online, its segments and the offsets from which another reader would begin if it
    failed. `future` has the segments that wait, each for the ids of its predecessors that were not read to their ends.
    `last_read` are newer offsets that readers have told, for information only. `lags_ms` is how far each reader is
    behind, as it told. `leases_ms` is for how long a reader stays online without an update of its own; one that is not
    in it is only declared dead by the application. `ends` are the offsets at which reading ends.
    """

    configuration: SharedConfiguration
    unassigned: Positions
    ends: Positions
    assigned: Mapping[str, Positions] = field(default_factory=dict)
    future: Mapping[StreamSegmentName, frozenset[int]] = field(default_factory=dict)
    last_read: Positions = field(default_factory=dict)
    lags_ms: Mapping[str, int] = field(default_factory=dict)
    leases_ms: Mapping[str, int] = field(default_factory=dict)
    ranges: Mapping[StreamSegmentName, KeyRange] = field(default_factory=dict)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    is_updating: bool = False

    @property
    def readers(self) -> tuple[str, ...]:
        """The readers that are online."""
        return tuple(self.assigned)

    @property
    def has_ended(self) -> bool:
        """Whether all segments were read, and none will follow."""
        return not self.future and not self.unassigned and not any(self.assigned.values())

    @property
    def segment_count(self) -> int:
        """The segments that can be read now."""
        return len(self.unassigned) + sum(map(len, self.assigned.values()))

    @property
    def positions(self) -> dict[StreamSegmentName, int]:
        """All segments that can be read now, with the offsets from which another reader would begin."""
        offsets = dict(self.unassigned)
        for positions in self.assigned.values():
            offsets.update(positions)
        return offsets

    def latest_positions(self, reader: str, own: Positions) -> dict[StreamSegmentName, int]:
        """How far the group has read, as a reader knows it.

        It has the offsets `own` of its own segments, where an owner would begin with those that wait for one, and what
        the other readers have told of theirs.
        """
        owned = self.assigned.get(reader, {})
        read = {segment: offset for segment, offset in own.items() if segment in owned}
        return {**self.positions, **self.last_read, **self.unassigned, **read}

    def owned_by(self, reader: str) -> Positions:
        """The segments of a reader, with the offsets from which another reader would begin.

        Raises:
            IllegalStateError: code "reader_offline": the reader is not in the group.
        """
        if reader not in self.assigned:
            raise IllegalStateError(
                f"reader {reader!r} is not in the group: it was declared offline, or the group was reset; open it "
                "again",
                code="reader_offline",
            )
        return self.assigned[reader]

    def may_move(self, reader: str) -> bool:
        """Whether a reader is online and may take, release or complete segments: no checkpoint waits for it."""
        return reader in self.assigned and self.checkpoints.next_of(reader) is None

    def vanished(self, silent_s: Mapping[str, float]) -> tuple[str, ...]:
        """The readers whose leases have run out. `silent_s` is for how long nothing was heard of a reader; those that
        are not in it are not judged."""
        return tuple(
            reader
            for reader, lease_ms in self.leases_ms.items()
            if reader in self.assigned and silent_s.get(reader, 0.0) > lease_ms / 1000
        )

    def owner(self, segment: StreamSegmentName) -> str | None:
        """The reader that owns a segment."""
        return next((reader for reader, owned in self.assigned.items() if segment in owned), None)


def initial_state(
    configuration: SharedConfiguration,
    starts: Positions,
    ends: Positions,
    ranges: Mapping[StreamSegmentName, KeyRange] | None = None,
    *,
    is_updating: bool = False,
) -> GroupState:
    """The state of a group without readers, at its starting positions."""
    return GroupState(
        configuration=configuration,
        unassigned=dict(starts),
        ends=dict(ends),
        last_read=dict(starts),
        ranges=dict(ranges or {}),
        is_updating=is_updating,
    )


def restored_state(state: GroupState, limits: Positions, generation: int) -> GroupState:
    """The state after its streams were restored to an earlier time: without readers, all of which have ended.

    `limits` has the ends of the segments that there are. No position is behind one, since other events will follow
    there. Segments that are not in it keep theirs. Checkpoints that are not complete would wait for readers for ever.
    `generation` is that of the controller's configuration. If the state had not got it yet, readers look for it.
    """
    checkpoints = state.checkpoints
    kept = tuple(name for name in checkpoints.names if name not in checkpoints.waiting_for)
    within = {name: _within(checkpoints.positions[name], limits) for name in kept}
    last = None if checkpoints.last is None else _within(checkpoints.last, limits)
    configuration = replace(
        state.configuration,
        starts=_offsets_within(state.configuration.starts, limits),
        ends=_offsets_within(state.configuration.ends, limits),
    )
    return GroupState(
        configuration=configuration,
        unassigned=_within(state.positions, limits),
        ends=_within(state.ends, limits),
        future=state.future,
        last_read=_within(state.last_read, limits),
        ranges=state.ranges,
        checkpoints=Checkpoints(kept, {}, within, last, checkpoints.last_published),
        is_updating=state.is_updating or generation > configuration.generation,
    )


def _within(positions: Positions, limits: Positions) -> dict[StreamSegmentName, int]:
    return {segment: min(offset, limits.get(segment, offset)) for segment, offset in positions.items()}


def _offsets_within(cuts: Mapping[str, Offsets | None], limits: Positions) -> dict[str, Offsets | None]:
    """Of cuts by the scoped names of their streams."""
    return {name: None if offsets is None else _of_stream(name, offsets, limits) for name, offsets in cuts.items()}


def _of_stream(scoped_name: str, offsets: Offsets, limits: Positions) -> Offsets:
    scope, stream = scoped_name.split("/", 1)
    return {
        identifier: min(offset, limits.get(StreamSegmentName(scope, stream, identifier), offset))
        for identifier, offset in offsets.items()
    }
