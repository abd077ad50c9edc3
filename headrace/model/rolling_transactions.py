"""Rolling transactions: the commit of a transaction whose epoch is no longer the active one.

The transaction's segments belong to segments that a scale has sealed. So the commit makes a duplicate of the
transaction's epoch and fills its segments with the transaction's events. It seals the active segments with the
duplicate as their successor, and then makes a duplicate of the epoch that was active. A duplicate has the numbers and
key ranges of the original epoch, and segment ids with its own epoch. For readers these are two ordinary changes of the
epoch.

A commit into the active epoch rolls in the same way if a client has sealed a segment of it. Both duplicates are then of
the active epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.segments import StreamSegment, segment_id


@dataclass(frozen=True, slots=True)
class Roll:
    """`passed` duplicates the epoch of the transactions. `following` duplicates the active epoch and succeeds it."""

    passed: Epoch
    following: Epoch


def must_roll(active: Epoch, reference_epoch: int) -> bool:
    """Whether transactions of that reference epoch cannot be merged into the active segments."""
    return active.reference_epoch != reference_epoch


def roll_of(active: Epoch, of_transactions: Epoch, now_ms: int) -> Roll:
    """The two epochs that follow `active`; the same arguments give the same epochs."""
    passed_ms = max(now_ms, active.creation_time_ms + 1)
    passed = _duplicate(of_transactions, active.number + 1, passed_ms, active)
    return Roll(passed, _duplicate(active, active.number + 2, passed_ms + 1, passed))


def scale_after_roll(planned: Epoch, roll: Roll) -> Epoch:
    """The epoch of a scale that was planned for the active epoch, planned for the one that follows the roll instead."""
    numbers = {one.number for one in planned.replaced}
    sealed = [one.segment_id for one in roll.following.segments if one.number in numbers]
    ranges = [one.key_range for one in planned.created]
    return scaled_epoch(roll.following, sealed, ranges, planned.creation_time_ms)


def _duplicate(original: Epoch, number: int, creation_time_ms: int, before: Epoch) -> Epoch:
    segments = tuple(StreamSegment(segment_id(number, one.number), one.key_range) for one in original.segments)
    return Epoch(number, creation_time_ms, segments, before.segments, original.reference_epoch)
