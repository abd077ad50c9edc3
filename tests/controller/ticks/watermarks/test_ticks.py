"""The tick of watermarks: what lies in the mark segment, and who is waited for."""

from __future__ import annotations

import pytest
from watermark_world import MARK_SEGMENT, S2, S3, SILENT_MS, WatermarkWorld

from headrace.codec.events import frame_event
from headrace.codec.stored_objects import watermark_payload
from headrace.metadata.watermark_records import watermark_key
from headrace.model.errors import NotFoundError
from headrace.ports.metadata_store import Delete
from headrace.ports.segment_stores import SegmentScaleRate


def test_a_watermark_is_what_all_writers_agree_on(marks: WatermarkWorld):
    marks.note("a", 100, {0: 10, 1: 20})
    marks.note("b", 90, {0: 15, 1: 5})
    marks.tick()
    assert marks.bounds() == [(90, 100)]
    assert marks.newest_cut() == {0: 15, 1: 20}
    marks.tick()
    assert len(marks.written()) == 1, "nobody has noted anything new"
    marks.note("a", 110, {0: 30, 1: 20})
    marks.tick()
    assert len(marks.written()) == 1, "b is waited for"
    marks.note("b", 95, {0: 16, 1: 6})
    marks.tick()
    assert marks.bounds() == [(90, 100), (95, 110)]
    assert marks.newest_cut() == {0: 30, 1: 20}


def test_the_mark_of_revisions_leads_to_the_newest_watermark(marks: WatermarkWorld):
    for time in (1, 2, 3):
        marks.note("a", time, {0: time})
        marks.tick()
        newest = marks.service.newest_watermark("s", "t")
        assert newest.mark_segment == MARK_SEGMENT
        assert newest.watermark == marks.written()[-1]
        assert marks.revision_mark() == newest.offset
        record = frame_event(watermark_payload(marks.written()[-1]))
        length = marks.world.bare_segment_stores.segment_info(MARK_SEGMENT).length
        assert newest.offset == length - len(record)


def test_no_watermark_yet(marks: WatermarkWorld):
    assert marks.service.newest_watermark("s", "t").watermark is None
    assert MARK_SEGMENT not in marks.world.bare_segment_stores.names()
    with pytest.raises(NotFoundError):
        marks.service.newest_watermark("s", "none")


def test_a_scale_between_notes(marks: WatermarkWorld):
    marks.note("a", 1, {0: 10, 1: 20})
    marks.tick()
    marks.world.scale([0], [0.0, 0.25, 0.5])
    marks.note("a", 2, {S2: 1})
    marks.tick()
    assert marks.newest_cut() == {S2: 1, S3: 0, 1: 20}
    marks.note("b", 3, {0: 99, 1: 21})
    marks.note("a", 3, {S2: 2, S3: 7})
    marks.tick()
    assert marks.newest_cut() == {S2: 2, S3: 7, 1: 21}


def test_a_silent_writer_holds_the_others_up_only_for_so_long(marks: WatermarkWorld):
    marks.note("a", 1, {0: 1})
    marks.note("b", 1, {0: 1})
    marks.tick()
    for time in (2, 3):
        marks.note("a", time, {0: time})
        marks.tick()
    assert marks.bounds() == [(1, 1)]
    marks.tick(after_ms=SILENT_MS)
    assert marks.bounds() == [(1, 1), (3, 3)]
    marks.note("b", 2, {0: 2})
    marks.tick()
    assert marks.bounds() == [(1, 1), (3, 3)], "who comes back late does not take watermarks back"


def test_a_writer_that_was_shut_down_holds_nobody_up(marks: WatermarkWorld):
    marks.note("a", 1, {0: 1})
    marks.note("b", 1, {0: 1})
    marks.tick()
    marks.service.remove_writer("s", "t", "b")
    marks.service.remove_writer("s", "t", "b")
    marks.note("a", 2, {0: 2})
    marks.tick()
    assert marks.bounds() == [(1, 1), (2, 2)]
    with pytest.raises(NotFoundError) as unknown:
        marks.service.remove_writer("s", "t", "b")
    assert unknown.value.specific_code == "writer_not_found"


def test_a_stream_is_scheduled_only_while_it_has_active_writers(marks: WatermarkWorld):
    marks.note("a", 1, {0: 1})
    marks.tick()
    assert marks.is_scheduled()
    marks.tick()
    marks.tick(after_ms=SILENT_MS)
    assert not marks.is_scheduled()
    marks.tick()
    marks.note("a", 2, {0: 2})
    assert marks.is_scheduled()
    marks.tick()
    assert marks.bounds() == [(1, 1), (2, 2)]


def test_what_is_no_watermark_is_cut_off(marks: WatermarkWorld):
    stores = marks.world.bare_segment_stores
    stores.create_segment(MARK_SEGMENT, SegmentScaleRate())
    stores.append(MARK_SEGMENT, b"anything", 0)
    marks.note("a", 1, {0: 1})
    marks.tick()
    marks.note("a", 2, {0: 2})
    marks.tick()
    assert marks.bounds() == [(2, 2)]
    assert marks.revision_mark() == len(b"anything")


def test_a_state_that_was_lost_is_read_from_the_mark_segment(marks: WatermarkWorld):
    for time in (1, 2):
        marks.note("a", time, {0: time})
        marks.tick()
    marks.world.bare_store.write(Delete(watermark_key("s", "t"), None))
    marks.note("a", 3, {0: 3})
    marks.tick()
    marks.tick()
    assert marks.bounds() == [(1, 1), (2, 2), (3, 3)]
