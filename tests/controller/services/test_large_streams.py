"""A stream of many segments: the record that every operation checks stays small, whatever the active epoch holds."""

from __future__ import annotations

import json

import pytest
from costs import Meter
from soundness import assert_sound
from stream_world import StreamWorld

from headrace.metadata import stream
from headrace.metadata.stream import current_key, epoch_fields, epoch_key, stream_body
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Delete, Replace

SEGMENTS = 1_000
WRITE_UNITS_TO_BEGIN_MAX = 12


@pytest.fixture
def large(world: StreamWorld) -> StreamWorld:
    world.create(segments=SEGMENTS)
    return world


def _replace_first(world: StreamWorld) -> None:
    """A scale that is done: the first segment makes way for one of the same range."""
    first = world.records.get("s", "t").stream.epoch.segments[0]
    world.scale([first.segment_id], [first.key_range.low, first.key_range.high])


def test_a_transaction_on_many_segments_begins_for_few_units(large: StreamWorld):
    large.begin()
    bill = Meter(large).measured(large.begin)
    assert bill.write_units <= WRITE_UNITS_TO_BEGIN_MAX
    assert bill.read_units <= 2, "the epoch is in memory"


def test_the_current_record_fits_in_one_write_unit(large: StreamWorld):
    _replace_first(large)
    record = large.record(current_key("s", "t"))
    assert len(json.dumps(dict(record.body))) <= 1_024


def test_the_epoch_is_read_once_by_each_process(large: StreamWorld):
    records = StreamRecords(large.store)
    large.calls.counts.clear()
    for reads in (2, 3, 4):
        assert len(records.get("s", "t").stream.epoch.segments) == SEGMENTS
        assert large.calls.counts["read"] == reads


def test_a_record_that_holds_its_epoch_is_read_and_replaced(large: StreamWorld):
    """As all current records did before."""
    stored = large.records.get("s", "t")
    body = stream_body(stored.stream) | {"epoch": epoch_fields(stored.stream.epoch)}
    large.bare_store.write(Replace(current_key("s", "t"), body, stored.version))
    found = StreamRecords(large.bare_store).get("s", "t")
    assert (found.stream, found.version) == (stored.stream, stored.version + 1)
    _replace_first(large)
    assert "segments" not in large.record(current_key("s", "t")).body["epoch"]
    assert_sound(large)


def test_an_epoch_that_is_missing_is_corrupt(large: StreamWorld):
    large.bare_store.write(Delete(epoch_key("s", "t", 0), None))
    with pytest.raises(CorruptError):
        StreamRecords(large.bare_store).get("s", "t")


def test_a_stream_made_again_amid_the_read_is_read_whole(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    """The record names an epoch of the former stream, which has made way for one of the same number."""
    monkeypatch.setattr(stream, "SEGMENTS_IN_CURRENT_MAX", 0)
    world.create(segments=2)

    def make_again() -> None:
        world.seal()
        world.delete()
        world.create(segments=3)

    records = StreamRecords(world.store)
    world.calls.interrupt_at(1, make_again)
    found = records.get("s", "t").stream
    assert [segment.number for segment in found.epoch.segments] == [2, 3, 4]
    assert found == world.records.get("s", "t").stream
