"""What is packed into one object: whole appends of many segments, in order, up to the size of an object."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.segment_states import AcceptedState
from headrace.segmentstore.tiering.object_packing import pack

BLOCK_BYTES = 64


def segments_with(appends: list[tuple[int, int]]) -> tuple[list[Segment], dict[str, bytes]]:
    """Segments whose appends came in this order, and their bytes; an append is a segment's number and a length."""
    pool = BlockPool(64 * BLOCK_BYTES, BLOCK_BYTES)
    segments = [Segment(number, f"scope/stream/{number}.#epoch.0", pool, AcceptedState({}, 0)) for number in range(3)]
    expected = {segment.name: b"" for segment in segments}
    for entry, (number, length) in enumerate(appends):
        segment, data = segments[number], bytes([entry % 256]) * length
        reservation = pool.reserve(length)
        assert reservation is not None
        reservation.fill([memoryview(data)])
        segment.index.add(len(expected[segment.name]), reservation, entry)
        expected[segment.name] += data
        segment.durable.length += length
    return segments, expected


@given(
    appends=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100)), max_size=20),
    object_bytes_max=st.integers(1, 400),
)
def test_objects_have_all_bytes_in_whole_appends(appends: list[tuple[int, int]], object_bytes_max: int):
    segments, expected = segments_with(appends)
    lengths = {segment.name: [length for number, length in appends if number == segment.number] for segment in segments}
    packed_bytes = dict.fromkeys(segments, 0)
    while any(packed_bytes[segment] < segment.durable.length for segment in segments):
        packed = pack(segments, "object", object_bytes_max, lambda segment: packed_bytes[segment], 1)
        assert packed.runs
        data = b"".join(packed.parts)
        assert len(packed.parts) == len(packed.blocks)
        assert len(data) == packed.length
        is_one_append = len(packed.runs) == 1 and packed.length in lengths[packed.runs[0][0].name]
        assert packed.length <= object_bytes_max or is_one_append
        for segment, run in packed.runs:
            assert run.offset == packed_bytes[segment]
            found = data[run.position : run.position + run.length]
            assert found == expected[segment.name][run.offset : run.end]
            ends = {sum(lengths[segment.name][: count + 1]) for count in range(len(lengths[segment.name]))}
            assert run.end in ends
            packed_bytes[segment] = run.end
