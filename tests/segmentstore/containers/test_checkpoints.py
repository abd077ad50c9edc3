"""When a checkpoint is due, and which one the log is truncated to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.codec.container_snapshots import PART_BYTES, ContainerSnapshot, SegmentSnapshot
from headrace.model.errors import UnavailableError
from headrace.segmentstore.containers.checkpoints import CHECKPOINTS_KEPT_MAX, Checkpoints

EVERY_BYTES = 1000


class ScriptedLog:
    """Each part of a checkpoint is durable at once, in the entry that `next_entry` names, unless the log `holds` it."""

    def __init__(self) -> None:
        self.ledger = SimpleNamespace(held_bytes=0, wants_truncation=False)
        self.next_entry = 0
        self.truncated: list[int] = []
        self.holds = False
        self.held: list[Any] = []
        self.freed_bytes = 0

    def flush(self) -> int:
        return self.next_entry

    def append(self, _operation: object, reached: Any) -> None:
        if self.holds:
            self.held.append(reached)
        else:
            reached(None)

    def truncate(self, before_entry: int) -> None:
        self.truncated.append(before_entry)
        self.ledger.held_bytes -= self.freed_bytes


def new_checkpoints(
    *, oldest_untiered: int | None = None, share_bytes: int = 1 << 40, parts: int = 1
) -> tuple[Checkpoints, ScriptedLog]:
    """Checkpoints of a container whose oldest entry that tier 2 lacks, and whose share of the log, are given."""
    log = ScriptedLog()
    entries = (None, oldest_untiered, None if oldest_untiered is None else oldest_untiered + 100)
    dirty = {n: SimpleNamespace(oldest_untiered_entry=lambda entry=entry: entry) for n, entry in enumerate(entries)}
    large = [SegmentSnapshot(n, "s" * PART_BYTES, 0, 0, False, 0, {}) for n in range(parts)]
    snapshot = ContainerSnapshot(0, {}, large if parts > 1 else ())
    container: Any = SimpleNamespace(
        log=log,
        dirty=dirty,
        metadata=SimpleNamespace(snapshot=lambda: snapshot),
        log_room=SimpleNamespace(container_bytes_max=share_bytes),
    )
    return Checkpoints(container, EVERY_BYTES), log


def checkpoints_at(*entries: int, oldest_untiered: int | None) -> tuple[Checkpoints, ScriptedLog]:
    """Checkpoints in these entries."""
    checkpoints, log = new_checkpoints(oldest_untiered=oldest_untiered)
    for log.next_entry in entries:
        checkpoints.write()
    return checkpoints, log


@pytest.mark.parametrize(
    ("oldest_untiered", "truncated"),
    [(2, []), (3, [3]), (4, [3]), (5, [5]), (8, [5]), (None, [9])],
)
def test_log_keeps_the_oldest_entry_that_tier_2_lacks(oldest_untiered: int | None, truncated: list[int]):
    checkpoints, log = checkpoints_at(3, 5, 9, oldest_untiered=oldest_untiered)
    assert checkpoints.truncate_log() is bool(truncated)
    assert log.truncated == truncated
    assert checkpoints.truncate_log() is False, "the same checkpoint is no reason to truncate again"


def test_log_starts_only_with_a_whole_durable_checkpoint():
    checkpoints, log = new_checkpoints(oldest_untiered=9, parts=3)
    log.holds, log.next_entry = True, 4
    checkpoints.write()
    assert len(log.held) == 3
    for reached in log.held[:-1]:
        reached(None)
        assert not checkpoints.truncate_log()
    log.held[-1](None)
    assert checkpoints.truncate_log()
    assert log.truncated == [4]


def test_log_never_starts_with_a_failed_checkpoint():
    checkpoints, log = new_checkpoints()
    log.holds = True
    checkpoints.write()
    log.held[0](UnavailableError("the log failed"))
    assert not checkpoints.truncate_log()
    assert log.truncated == []


@pytest.mark.parametrize(
    ("oldest_untiered", "truncated"),
    [
        (0, [0]),
        (CHECKPOINTS_KEPT_MAX + 1, [0]),
        (CHECKPOINTS_KEPT_MAX + 2, [CHECKPOINTS_KEPT_MAX + 2]),
        (None, [2 * CHECKPOINTS_KEPT_MAX]),
    ],
)
def test_first_and_newest_of_many_checkpoints_stay_usable(oldest_untiered: int | None, truncated: list[int]):
    checkpoints, log = checkpoints_at(*range(2 * CHECKPOINTS_KEPT_MAX + 1), oldest_untiered=oldest_untiered)
    assert checkpoints.truncate_log()
    assert log.truncated == truncated


@pytest.mark.parametrize(
    ("share_bytes", "due_at"), [(1 << 40, EVERY_BYTES), (4 * EVERY_BYTES, EVERY_BYTES), (1200, 300)]
)
def test_checkpoint_is_due_after_so_many_bytes_of_log(share_bytes: int, due_at: int):
    checkpoints, log = new_checkpoints(share_bytes=share_bytes)
    for start in (0, due_at):
        log.ledger.held_bytes = start + due_at - 1
        assert not checkpoints.due
        log.ledger.held_bytes = start + due_at
        assert checkpoints.due
        log.next_entry += 1
        checkpoints.write()
        assert not checkpoints.due


def test_truncated_bytes_do_not_delay_the_next_checkpoint():
    checkpoints, log = new_checkpoints()
    log.ledger.held_bytes = 5000
    checkpoints.write()
    log.ledger.held_bytes, log.freed_bytes = 5400, 4900
    assert checkpoints.truncate_log()
    log.ledger.held_bytes += EVERY_BYTES - 401  # of which 400 were there before the truncation
    assert not checkpoints.due
    log.ledger.held_bytes += 1
    assert checkpoints.due


def test_volume_that_is_short_of_room_asks_for_one_checkpoint():
    checkpoints, log = new_checkpoints(oldest_untiered=0)
    log.ledger.wants_truncation = True
    assert checkpoints.due
    log.next_entry = 3
    checkpoints.write()
    assert not checkpoints.due, "the log cannot be truncated to it yet"
    checkpoints, log = checkpoints_at(3, oldest_untiered=None)
    log.ledger.wants_truncation = True
    assert checkpoints.truncate_log()
    assert checkpoints.due, "the log was truncated, but the volume still wants room"
