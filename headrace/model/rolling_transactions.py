"""Rolling transactions: how a transaction is committed whose epoch is not the active one any more.

Its segments belong to segments that were sealed by a scale. So the commit passes through a duplicate of the
transaction's epoch: it fills the duplicate's segments with what the transaction holds, seals the active segments with
the duplicate as their successor, and goes on with a duplicate of the epoch that was active. Duplicates have the numbers
and key ranges of what they repeat, and ids with their own epoch. To readers it is two ordinary changes of epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.epochs import Epoch
from headrace.model.segments import StreamSegment, segment_id


@dataclass(frozen=True, slots=True)
class Roll:
    """`passed` repeats the transactions' epoch, `following` the one that was active and is active after it."""

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


def _duplicate(original: Epoch, number: int, creation_time_ms: int, before: Epoch) -> Epoch:
    segments = tuple(StreamSegment(segment_id(number, one.number), one.key_range) for one in original.segments)
    return Epoch(number, creation_time_ms, segments, before.segments, original.reference_epoch)
