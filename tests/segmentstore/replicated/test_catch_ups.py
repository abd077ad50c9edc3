"""What catching up may take of a process."""

from __future__ import annotations

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.replication.bounds import CATCH_UP_BYTES_PER_S
from headrace.segmentstore.log.catch_ups import CatchUps

pytestmark = pytest.mark.anyio


async def test_all_members_share_one_rate():
    clock = ManualClock()
    catch_ups = CatchUps(clock)
    assert [catch_ups.delay_s(CATCH_UP_BYTES_PER_S // 2) for _ in range(3)] == [0.5, 1.0, 1.5]
    clock.advance(10_000)
    assert catch_ups.delay_s(CATCH_UP_BYTES_PER_S // 4) == 0.25, "what was not used is no credit"
