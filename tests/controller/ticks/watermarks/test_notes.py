"""What writers note of their times: what they may not, how many may, and commits that count as notes."""

from __future__ import annotations

import pytest
from watermark_world import S2, WatermarkWorld

from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.segments import covers_key_space_once
from headrace.model.transactions import WriterTime
from headrace.model.watermarks import is_at_or_behind


def test_what_a_writer_may_not_note(marks: WatermarkWorld):
    marks.note("a", 5, {0: 10})
    for time, offsets, code in (
        (4, {0: 10}, "invalid_time"),
        (6, {0: 9}, "invalid_position"),
        (6, {7: 1}, "invalid_position"),
        (6, {S2: 1}, "invalid_position"),
        (6, {}, "invalid_position"),
        (1 << 63, {0: 10}, "invalid_time"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            marks.note("a", time, offsets)
        assert refused.value.specific_code == code
    with pytest.raises(NotFoundError):
        marks.note("a", 6, {0: 1}, stream="none")
    marks.note("a", 5, {0: 10})


def test_too_many_writers(marks: WatermarkWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.metadata.watermark_records.WRITER_MARKS_PER_STREAM_MAX", 2)
    marks.note("a", 1, {0: 1})
    marks.note("b", 1, {0: 1})
    with pytest.raises(InvalidRequestError) as refused:
        marks.note("c", 1, {0: 1})
    assert refused.value.specific_code == "too_many_writers"
    marks.note("a", 2, {0: 1})


def test_the_first_notes_of_many_writers_are_counted(marks: WatermarkWorld):
    """Another writer's first note comes between what this one reads and writes."""

    with marks.world.calls.overtaken("transaction", lambda: marks.note("b", 1, {0: 1})):
        marks.note("a", 1, {0: 1})
    (entry,) = [body for (partition, _), (_, body) in marks.world.everything().items() if partition.startswith("water")]
    assert entry["writers"] == 2


def test_a_commit_counts_as_a_note_and_old_news_as_none(marks: WatermarkWorld):
    note = marks.service._marks.note_commit
    assert note("s", "t", "a", 5, {0: 10, 1: 10})
    assert note("s", "t", "a", 5, {0: 10, 1: 10})
    assert not note("s", "t", "a", 4, {0: 12})
    assert not note("s", "none", "a", 4, {0: 12})
    marks.tick()
    assert marks.bounds() == [(5, 5)]


@pytest.mark.parametrize("scales", [0, 1])
def test_transactions_of_a_writer_with_times_become_watermarks(marks: WatermarkWorld, scales: int):
    """Also one that a scale has overtaken, so that its events lie in an epoch that the commit made for them."""
    world = marks.world
    for time in (5, 6):
        transaction = world.begin()
        world.write_in(transaction, 0.1, b"event")
        for _ in range(scales):
            world.scale([world.tail_ids()[0]], [0.0, 0.5])
        world.transactions.commit_transaction("s", "t", transaction, WriterTime("w", time))
        world.drain_transactions()
        marks.tick()
    assert marks.bounds() == [(5, 5), (6, 6)]
    first, second = marks.written()
    assert is_at_or_behind(second.cut, first.cut)
    assert covers_key_space_once([position.segment.key_range for position in second.cut])
