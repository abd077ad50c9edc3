"""The mark segment is truncated with its stream, as far as no reader needs its watermarks."""

from __future__ import annotations

from typing import Any

import pytest
from watermark_world import MARK_SEGMENT, WatermarkWorld

from headrace.controller.operations import truncate_stream
from headrace.model.errors import UnavailableError


@pytest.fixture
def noted(marks: WatermarkWorld) -> WatermarkWorld:
    """Ten watermarks, with cuts at 10, 20, ... 100 bytes of both segments."""
    for time in range(1, 11):
        for segment in (0, 1):
            marks.world.append(segment, 10)
        marks.note("a", time, {0: 10 * time, 1: 10 * time})
        marks.tick()
    return marks


@pytest.mark.parametrize(
    ("head", "oldest"),
    [({0: 5, 1: 5}, 1), ({0: 10, 1: 10}, 1), ({0: 45, 1: 79}, 4), ({0: 100, 1: 20}, 2), ({0: 100, 1: 100}, 10)],
)
def test_watermarks_before_the_head_go(noted: WatermarkWorld, head: dict[int, int], oldest: int):
    noted.world.truncate(head)
    assert [lower for lower, _ in noted.bounds()] == list(range(oldest, 11))


def test_the_next_watermark_follows_the_truncated_ones(noted: WatermarkWorld):
    noted.world.truncate({0: 100, 1: 100})
    noted.note("a", 11, {0: 100, 1: 101})
    noted.tick()
    assert noted.bounds() == [(10, 10), (11, 11)]
    assert noted.revision_mark() == noted.service.newest_watermark("s", "t").offset


def test_many_watermarks_go_piece_by_piece(noted: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    length = noted.world.bare_segment_stores.segment_info(MARK_SEGMENT).length
    monkeypatch.setattr(truncate_stream, "MARK_BYTES_PER_READ", length // 10 + 5)
    monkeypatch.setattr(truncate_stream, "MARK_READS_PER_TRUNCATION", 4)
    noted.world.truncate({0: 91, 1: 91})
    assert [lower for lower, _ in noted.bounds()] == list(range(4, 11))
    for more, oldest in ((92, 7), (93, 9), (94, 9)):
        noted.world.truncate({0: more, 1: 92})
        assert noted.bounds()[0][0] == oldest


@pytest.mark.parametrize("method", ["segment_info", "read", "truncate_segment_up_to"])
def test_a_store_that_is_away_does_not_hold_the_stream(
    noted: WatermarkWorld, method: str, monkeypatch: pytest.MonkeyPatch
):
    stores = noted.world.bare_segment_stores
    real = getattr(stores, method)

    def away(name: str, *others: Any) -> object:
        if name == MARK_SEGMENT:
            raise UnavailableError("away")
        return real(name, *others)

    with monkeypatch.context() as patch:
        patch.setattr(stores, method, away)
        noted.world.truncate({0: 45, 1: 45})
    assert len(noted.bounds()) == 10
    assert noted.world.segments.stream_cut("s", "t", "head").offsets == {0: 45, 1: 45}
    noted.world.truncate({0: 46, 1: 45})
    assert len(noted.bounds()) == 7


def test_foreign_bytes_in_the_mark_segment_stay(noted: WatermarkWorld):
    stores = noted.world.bare_segment_stores
    stores.truncate_segment(MARK_SEGMENT, 3)
    noted.world.truncate({0: 45, 1: 45})
    assert stores.segment_info(MARK_SEGMENT).start_offset == 3
    assert noted.world.segments.stream_cut("s", "t", "head").offsets == {0: 45, 1: 45}
