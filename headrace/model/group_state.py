"""The state that the readers of a group share: who reads which segment, and from where. Pure values.

The readers agree on a sequence of updates (`group_updates.py`), and each applies them in order, so all have the same
state. The rules are those of Pravega's reader groups. A segment of the group is in one place at a time: it has one
owner, or it waits for an owner, or it waits until its predecessors were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.model.errors import IllegalStateError
from headrace.model.group_checkpoints import Checkpoints, Positions
from headrace.model.names import StreamSegmentName
from headrace.model.reader_groups import (
    AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT,
    GROUP_REFRESH_MS_DEFAULT,
    OUTSTANDING_CHECKPOINTS_DEFAULT,
    RetentionMode,
)
from headrace.model.segments import KeyRange

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
        found = dict(self.unassigned)
        for positions in self.assigned.values():
            found.update(positions)
        return found

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
