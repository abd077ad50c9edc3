"""Segment ids, key ranges, and which segment owns a position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidRequestError
from headrace.model.segments import (
    KeyRange,
    StreamSegment,
    segment_epoch,
    segment_id,
    segment_number,
)

HALF = st.integers(0, 2**31 - 1)


@given(epoch=HALF, number=HALF)
def test_ids_hold_epoch_and_number(epoch: int, number: int):
    identifier = segment_id(epoch, number)
    assert (segment_epoch(identifier), segment_number(identifier)) == (epoch, number)
    assert 0 <= identifier < 2**63
    segment = StreamSegment(identifier, KeyRange(0.0, 1.0))
    assert (segment.epoch, segment.number) == (epoch, number)


@pytest.mark.parametrize(("epoch", "number"), [(-1, 0), (0, -1), (2**31, 0), (0, 2**31)])
def test_ids_are_bounded(epoch: int, number: int):
    with pytest.raises(InvalidRequestError):
        segment_id(epoch, number)


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.1), (float("nan"), 1.0)])
def test_ranges_are_inside_the_key_space(low: float, high: float):
    with pytest.raises(InvalidRequestError):
        KeyRange(low, high)


def test_touching_ranges_do_not_overlap():
    assert not KeyRange(0.0, 0.5).overlaps(KeyRange(0.5, 1.0))
    assert KeyRange(0.0, 0.5).overlaps(KeyRange(0.4, 0.6))
    assert KeyRange(0.0, 1.0).overlaps(KeyRange(0.4, 0.6))
