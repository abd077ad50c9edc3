"""Time blocks: golden bytes, any points back, and damage that is always noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.time_blocks import TIME_BLOCK_BYTES_MAX, decode_time_block, encode_time_block
from headrace.model.errors import CorruptError
from headrace.model.time_points import POINTS_MAX, TimePoint, TimePoints

GOLDEN_POINTS = [TimePoint(100, 1_700_000, 1_700_000), TimePoint(300, 1_700_130, 1_700_131)]
GOLDEN = bytes.fromhex("01 02 00 00 00 c801 8201 01") + bytes.fromhex("a14a714e")


def test_a_block_keeps_its_bytes() -> None:
    block = encode_time_block(TimePoints(GOLDEN_POINTS), 100)
    assert block.hex() == GOLDEN.hex()
    assert list(decode_time_block(block, 100, 201, 1_700_000)) == GOLDEN_POINTS


@st.composite
def runs(draw: st.DrawFn) -> tuple[TimePoints, int]:
    start = draw(st.integers(0, 2**60))
    steps = st.tuples(st.integers(1, 2**40), st.integers(1, 2**40), st.integers(0, 2**30))
    points, offset, last = TimePoints(), start, 2**50
    for length, wait, span in draw(st.lists(steps, min_size=1, max_size=20)):
        points.add(offset, last + wait, last + wait + span)
        offset, last = offset + length, last + wait + span
    return points, start


@given(runs())
def test_blocks_come_back_and_move_with_their_run(run: tuple[TimePoints, int]) -> None:
    points, start = run
    block = encode_time_block(points, start)
    last = list(points)[-1].offset
    assert list(decode_time_block(block, start, last + 1 - start, points.oldest)) == list(points)
    moved = decode_time_block(block, start + 7, last + 1 - start, points.oldest)
    assert [point.offset for point in moved] == [point.offset + 7 for point in points]


@given(runs(), st.data())
def test_damage_is_noticed(run: tuple[TimePoints, int], data: st.DataObject) -> None:
    points, start = run
    block = bytearray(encode_time_block(points, start))
    if data.draw(st.booleans()):
        block[data.draw(st.integers(0, len(block) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del block[data.draw(st.integers(0, len(block) - 1)) :]
    with pytest.raises(CorruptError):
        decode_time_block(bytes(block), start, 2**62, points.oldest)


@given(st.binary(max_size=100))
def test_garbage_is_not_a_block(raw: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_time_block(raw, 0, 100, 5)


def test_a_block_of_another_run_is_none() -> None:
    with pytest.raises(CorruptError, match="its run ends"):
        decode_time_block(GOLDEN, 100, 200, 1_700_000)


def test_the_largest_block_has_the_size_that_is_allowed() -> None:
    points = TimePoints(TimePoint(i << 40, i << 40, i << 40) for i in range(1, POINTS_MAX + 1))
    assert len(encode_time_block(points, 0)) < TIME_BLOCK_BYTES_MAX
    points.add(2**62, 2**62, 2**62)
    with pytest.raises(CorruptError, match=f"claims {POINTS_MAX + 1} points"):
        decode_time_block(encode_time_block(points, 0), 0, 2**63, 1 << 40)
