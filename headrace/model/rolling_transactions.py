"""Rolling transactions: the commit of a transaction whose epoch is no longer the active one.

The transaction's segments belong to segments that a scale has sealed. So the commit makes a duplicate of the
transaction's epoch and fills its segments with the transaction's events. It seals the active segments with the
duplicate as their successor, and then makes a duplicate of the epoch that was active. A duplicate has the numbers and
key ranges of the original epoch, and segment ids with its own epoch. For readers these are two ordinary changes of the
epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.epochs import Epoch
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


def _duplicate(original: Epoch, number: int, creation_time_ms: int, before: Epoch) -> Epoch:
    segments = tuple(StreamSegment(segment_id(number, one.number), one.key_range) for one in original.segments)
    return Epoch(number, creation_time_ms, segments, before.segments, original.reference_epoch)
