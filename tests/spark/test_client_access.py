"""A stream as planning sees it, over HTTP, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.client.ranges import segment_ranges
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut
from headrace.spark.client_access import ClientStreamAccess, open_streams
from headrace.spark.options import read_options
from headrace.spark.plans import StreamPlans
from headrace.spark.stream_access import Batch, PlannedRange

FRAME_BYTES = 18


@pytest.fixture
def access(store: StoreDouble) -> Iterator[ClientStreamAccess]:
    with closing(open_streams(read_options({"controller": store.url, "scope": SCOPE, "stream": STREAM}))) as opened:
        yield opened.stream(SCOPE, STREAM)


def fill_and_scale(store: StoreDouble) -> None:
    for number in range(20):
        store.stream.append(number / 20, b"0123456789")
    store.stream.scale(list(store.stream.active), [(0.0, 1.0)])
    store.stream.append(0.5, b"0123456789")


@pytest.mark.parametrize("segments_per_cut", [None, 1])
def test_cuts_and_ranges_are_those_of_the_stream(
    access: ClientStreamAccess, store: StoreDouble, segments_per_cut: int | None
) -> None:
    fill_and_scale(store)
    store.segments_per_cut = segments_per_cut
    head, tail = access.cut("earliest"), access.cut("latest")
    assert (head, tail) == (store.stream.head(), store.stream.tail())
    between = access.between(head, tail)
    assert [(part.segment_id, part.start, part.end) for part in between] == [
        (part.segment_id, part.start, part.end) for part in store.stream.between(head, tail)
    ]


def test_a_batch_says_what_it_leaves(access: ClientStreamAccess, store: StoreDouble) -> None:
    fill_and_scale(store)
    batch = access.next_batch(None, None, bytes_max=4 * FRAME_BYTES)
    assert sum(part.length_bytes for part in batch.ranges) == 4 * FRAME_BYTES
    assert (batch.left_bytes, batch.reached_end) == (17 * FRAME_BYTES, False)
    rest = access.next_batch(batch.end, None)
    assert (rest.left_bytes, rest.reached_end) == (0, True)


def test_cut_texts_of_other_streams_are_refused(access: ClientStreamAccess) -> None:
    positions = {0: 17, 1: 2**40}
    assert access.cut_of_text(cut_text(positions)) == positions
    with pytest.raises(InvalidRequestError, match="not of weather/stations"):
        access.cut_of_text(stream_cut_text(StreamCut.of(SCOPE, "other", positions)))


def test_ends_of_segments_in_a_start_get_their_offsets(
    access: ClientStreamAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, asked = {0: -1, 1: 5}, []

    def next_batch(start: object, end: object) -> Batch:
        asked.append((start, end))
        return Batch((), {0: 70, 1: 5}, {0: 70, 1: 5})

    monkeypatch.setattr(access, "next_batch", next_batch)
    options = {"controller": "http://unused", "scope": SCOPE, "stream": STREAM, "start_stream_cut": cut_text(written)}
    assert StreamPlans(read_options(options), STREAM, access).start_cut("earliest") == {0: 70, 1: 5}
    assert asked == [(written, written)]
    options["start_stream_cut"] = cut_text({0: 70, 1: 5})
    assert StreamPlans(read_options(options), STREAM, access).start_cut("earliest") == {0: 70, 1: 5}
    assert len(asked) == 1


def pieces(found: Sequence[PlannedRange]) -> list[tuple[int, int, int]]:
    return [(planned.part.segment_id, planned.part.start, planned.part.end) for planned in found]


def test_pieces_end_between_events_and_come_with_links(access: ClientStreamAccess, store: StoreDouble) -> None:
    fill_and_scale(store)
    store.stored = lambda segment: 5 * FRAME_BYTES
    (part, *_) = access.between(store.stream.head(), store.stream.tail())
    found = access.planned([part], 50)
    assert pieces(found) == [(0, 0, 54), (0, 54, 90), (0, 90, 144), (0, 144, 180)]
    assert [planned.listing is not None and planned.listing.stored_until for planned in found] == [54, 90, 90, 144]
    assert all(planned.endpoint is not None and planned.endpoint.port == store.wire_port for planned in found)


def test_without_known_boundaries_a_range_stays_whole(access: ClientStreamAccess, store: StoreDouble) -> None:
    """The ends of objects in tier 2 are no boundaries: they may be inside a large event."""
    fill_and_scale(store)
    store.indexed = False
    (part, *_) = access.between(store.stream.head(), store.stream.tail())
    assert pieces(access.planned([part], 50)) == [(0, 0, 180)]


@pytest.mark.parametrize(("name", "most"), [("RANGES_PER_PLAN_MAX", 2), ("PIECES_PER_PLAN_MAX", 10)])
def test_many_ranges_are_planned_in_several_requests(
    access: ClientStreamAccess, store: StoreDouble, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    fill_and_scale(store)
    ranges = [SegmentRange(SCOPE, STREAM, 0, 0.0, 0.5, 36 * n, 36 * n + 36) for n in range(5)]
    monkeypatch.setattr(segment_ranges, name, most)
    assert len(access.planned(ranges, 9)) >= 5
    assert store.requests["range-plans"] == 3
