"""The stream as the connector sees it, over HTTP and the wire protocol, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble, cut_text

from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut
from headrace.spark.batch import StreamPlans
from headrace.spark.client_access import ClientStreamAccess, open_stream
from headrace.spark.options import read_options
from headrace.spark.planner import Positions
from headrace.spark.stream_access import RangesBetween

EVENT = bytes(64 * 1024 - 8)
FRAME_BYTES = 64 * 1024


@pytest.fixture
def access(store: StoreDouble) -> Iterator[ClientStreamAccess]:
    with closing(open_stream(read_options({"controller": store.url, "scope": SCOPE, "stream": STREAM}))) as opened:
        yield opened


def test_cuts_and_ranges_are_those_of_the_stream(access: ClientStreamAccess, store: StoreDouble) -> None:
    for number in range(20):
        store.stream.append(number / 20, b"x")
    store.stream.scale(list(store.stream.active), [(0.0, 1.0)])
    store.stream.append(0.5, b"y")
    head, tail = access.cut("head"), access.cut("tail")
    assert (head, tail) == (store.stream.head(), store.stream.tail())
    between = access.ranges_between(head, tail)
    assert list(between.ranges) == store.stream.between(head, tail)
    assert access.ranges_between(None, None) == between


def test_cut_texts_round_trip_and_those_of_others_are_refused(access: ClientStreamAccess) -> None:
    positions = {0: 17, 1: 2**40}
    assert access.cut_of_text(access.text_of_cut(positions)) == positions
    assert access.text_of_cut(positions) == cut_text(positions)
    with pytest.raises(InvalidRequestError, match="not of weather/stations"):
        access.cut_of_text(stream_cut_text(StreamCut.of(SCOPE, "other", positions)))


def test_ends_of_segments_in_a_start_get_their_offsets(
    access: ClientStreamAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, asked = {0: -1, 1: 5}, []

    def between(start: Positions | None, end: Positions | None) -> RangesBetween:
        asked.append((start, end))
        return RangesBetween((), {0: 70, 1: 5}, {0: 70, 1: 5})

    monkeypatch.setattr(access, "ranges_between", between)
    options = {"controller": "http://unused", "scope": SCOPE, "stream": STREAM, "start_stream_cut": cut_text(written)}
    assert StreamPlans(read_options(options), access).start_cut("earliest") == {0: 70, 1: 5}
    assert asked == [(written, written)]
    options["start_stream_cut"] = cut_text({0: 70, 1: 5})
    assert StreamPlans(read_options(options), access).start_cut("earliest") == {0: 70, 1: 5}
    assert len(asked) == 1


def test_bytes_come_over_the_wire(access: ClientStreamAccess, store: StoreDouble) -> None:
    identifier = store.stream.append(0.1, b"0123456789")
    store.stream.append(0.1, b"abc")
    assert b"".join(access.read(identifier, 8, 20)) == bytes(store.stream.segments[identifier].data[8:20])


def test_boundaries_come_from_the_stores_index(access: ClientStreamAccess, store: StoreDouble) -> None:
    (identifier,) = {store.stream.append(0.1, b"0123456789") for _ in range(5)}
    assert access.event_boundary(identifier, 19, 90) == 36
    assert access.event_boundary(identifier, 36, 90) == 36
    assert access.event_boundary(identifier, 37, 40) == 40
    assert access.event_boundary(identifier, 90, 90) == 90


def test_without_an_index_a_range_stays_whole(access: ClientStreamAccess, store: StoreDouble) -> None:
    """The ends of objects in tier 2 are no boundaries: they may be inside a large event."""
    (identifier,) = {store.stream.append(0.1, EVENT) for _ in range(40)}
    store.indexed, store.run_bytes = False, 4 * FRAME_BYTES
    stop = 40 * FRAME_BYTES
    assert access.event_boundary(identifier, 5 * FRAME_BYTES, stop) == stop
