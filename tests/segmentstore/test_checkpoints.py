"""Which checkpoint the log is truncated to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.codec.container_snapshots import ContainerSnapshot
from headrace.segmentstore.containers.checkpoints import Checkpoints


class ScriptedLog:
    """Each checkpoint is durable at once, in the entry that `next_entry` names."""

    def __init__(self) -> None:
        self.ledger = SimpleNamespace(held_bytes=0, wants_truncation=False)
        self.next_entry = 0
        self.truncated: list[int] = []

    def flush(self) -> int:
        return self.next_entry

    def append(self, _operation: object, reached: Any) -> None:
        reached(None)

    def truncate(self, before_entry: int) -> None:
        self.truncated.append(before_entry)


def checkpoints_at(*entries: int, oldest_untiered: int | None) -> tuple[Checkpoints, ScriptedLog]:
    """Checkpoints in these entries, of a container whose oldest entry that tier 2 lacks is given."""
    log = ScriptedLog()
    segment = SimpleNamespace(oldest_untiered_entry=lambda: oldest_untiered)
    metadata = SimpleNamespace(snapshot=lambda: ContainerSnapshot(0, {}, ()))
    container: Any = SimpleNamespace(log=log, dirty={1: segment}, metadata=metadata)
    checkpoints = Checkpoints(container)
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
