"""The segment stores in memory behave as the port says: every operation may be repeated."""

from __future__ import annotations

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.model.errors import InvalidRequestError, NotFoundError, SealedError
from headrace.ports.segment_stores import SegmentInfo, SegmentScaleRate

RATE = SegmentScaleRate(2, 100)


def test_segment_operations_may_be_repeated():
    clock = ManualClock(1_000)
    stores = MemorySegmentStores(clock)
    stores.create_segment("a", RATE, 7)
    assert stores.extend("a", 10) == 10
    stores.create_segment("a", SegmentScaleRate())
    assert stores.segment_info("a") == SegmentInfo("a", 0, 10, False, 1_000)
    assert stores.creation_settings("a") == (RATE, 7)
    clock.advance(5)
    stores.seal_segment("a")
    clock.advance(5)
    stores.seal_segment("a")
    assert stores.segment_infos(["a"]) == [SegmentInfo("a", 0, 10, True, 1_005)]
    with pytest.raises(SealedError):
        stores.extend("a", 1)
    stores.truncate_segment("a", 6)
    stores.truncate_segment("a", 4)
    assert stores.segment_info("a").start_offset == 6
    with pytest.raises(InvalidRequestError):
        stores.truncate_segment("a", 11)
    stores.delete_segment("a")
    stores.delete_segment("a")
    assert stores.names() == []


def test_missing_segment_is_not_found():
    stores = MemorySegmentStores()
    for operation in (
        lambda: stores.segment_info("a"),
        lambda: stores.segment_infos(["a"]),
        lambda: stores.seal_segment("a"),
        lambda: stores.truncate_segment("a", 0),
        lambda: stores.extend("a", 1),
        lambda: stores.creation_settings("a"),
    ):
        with pytest.raises(NotFoundError):
            operation()
