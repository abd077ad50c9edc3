"""The bytes that outlive a process: pinned, so that a change of a format is noticed, and garbage is told apart."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.codec import container_snapshots, data_frames
from headrace.codec.container_snapshots import DirectoryPlace, MergedRange
from headrace.codec.data_frames import decode_operation, encode_operation
from headrace.model.errors import CorruptError

ATTRIBUTES = (((1 << 127) | 1, 5), (7, -(1 << 63)))

MERGE = data_frames.MergeOperation(3, 4, 10, 20, ((7, 1),), 1000)
MERGE_HEX = (
    "0700000000000000030000000000000004000000000000000a000000000000001400000000000003e800000001"
    "000000000000000000000000000000070000000000000001"
)

GOLDEN = [
    (
        data_frames.CreateOperation(3, "s/t/0", ATTRIBUTES, 1000),
        "01000000000000000300000000000003e8000500000002732f742f30"
        "800000000000000000000000000000010000000000000005000000000000000000000000000000078000000000000000",
    ),
    (
        data_frames.AppendOperation(3, 9, (1 << 64) | 2, -4, 6, 1000, memoryview(b"data")),
        "02000000000000000300000000000000090000000000000001000000000000000"
        "2fffffffffffffffc0000000600000000000003e864617461",
    ),
    (
        data_frames.AttributesOperation(3, ((7, -1),), 1000),
        "03000000000000000300000000000003e80000000100000000000000000000000000000007ffffffffffffffff",
    ),
    (data_frames.SealOperation(3, 1000), "04000000000000000300000000000003e8"),
    (data_frames.TruncateOperation(3, 8, 1000), "050000000000000003000000000000000800000000000003e8"),
    (data_frames.DeleteOperation(3, 1000), "06000000000000000300000000000003e8"),
    (MERGE, MERGE_HEX),
    (
        data_frames.MergeBatchOperation((MERGE, data_frames.MergeOperation(3, 5, 30, 1, (), 1000))),
        "0d00000002"
        "00000045" + MERGE_HEX + "0000002d"
        "07000000000000000300000000000000050000000000000" + "01e000000000000000100000000000003e800000000",
    ),
    (
        data_frames.StoredOperation(((3, 9), (4, 10))),
        "08000000020000000000000003000000000000000900000000000000040000000000000" + "00a",
    ),
    (data_frames.DeletionStoredOperation(4), "090000000000000004"),
    (data_frames.CheckpointOperation(2, True, memoryview(b"part")), "0a000000020170617274"),
    (data_frames.EvictOperation(3), "0b0000000000000003"),
    (data_frames.ActivateOperation(memoryview(b"state")), "0c7374617465"),
    (
        data_frames.ForgetWritersOperation(3, ((1 << 64) | 2, 7)),
        "0e0000000000000003000000020000000000000001000000000000000200000000000000000000000000000007",
    ),
]

FRAME = data_frames.FrameHeader(3, -2, 4)
FRAME_HEX = "f10000000000000003fffffffffffffffe00000004"

uint64 = st.integers(0, (1 << 64) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
attributes = st.lists(st.tuples(st.integers(0, (1 << 128) - 1), int64), max_size=5).map(tuple)
views = st.binary(max_size=50).map(memoryview)
merges = st.builds(data_frames.MergeOperation, uint64, uint64, uint64, uint64, attributes, uint64)
operations = st.one_of(
    st.builds(data_frames.CreateOperation, uint64, st.text(max_size=40), attributes, uint64),
    st.builds(
        data_frames.AppendOperation, uint64, uint64, st.integers(0, (1 << 128) - 1), int64,
        st.integers(0, (1 << 32) - 1), uint64, views,
    ),
    st.builds(data_frames.AttributesOperation, uint64, attributes, uint64),
    st.builds(data_frames.SealOperation, uint64, uint64),
    st.builds(data_frames.TruncateOperation, uint64, uint64, uint64),
    st.builds(data_frames.DeleteOperation, uint64, uint64),
    merges,
    st.builds(data_frames.MergeBatchOperation, st.lists(merges, max_size=3).map(tuple)),
    st.builds(data_frames.StoredOperation, st.lists(st.tuples(uint64, uint64), max_size=5).map(tuple)),
    st.builds(data_frames.DeletionStoredOperation, uint64),
    st.builds(data_frames.CheckpointOperation, st.integers(0, (1 << 32) - 1), st.booleans(), views),
    st.builds(data_frames.EvictOperation, uint64),
    st.builds(data_frames.ActivateOperation, views),
    st.builds(
        data_frames.ForgetWritersOperation, uint64, st.lists(st.integers(0, (1 << 128) - 1), max_size=5).map(tuple)
    ),
)  # fmt: skip

_OPEN_ENDED = data_frames.AppendOperation | data_frames.CheckpointOperation | data_frames.ActivateOperation


def frame_of(operation):
    return b"".join(encode_operation(operation))


@pytest.mark.parametrize(("operation", "frame"), GOLDEN, ids=lambda value: type(value).__name__)
def test_operations_keep_their_bytes(operation, frame):
    assert frame_of(operation).hex() == frame
    assert decode_operation(memoryview(bytes.fromhex(frame))) == operation


def test_a_data_frame_keeps_its_bytes():
    assert data_frames.encode_frame_header(FRAME).hex() == FRAME_HEX
    assert data_frames.encode_operation_length(258).hex() == "00000102"
    assert data_frames.decode_frame(memoryview(bytes.fromhex(FRAME_HEX) + b"four...")) == (FRAME, b"four...")


def test_an_append_in_a_frame_is_its_length_and_itself():
    fields = (3, 9, (1 << 64) | 2, -4, 6, 1000)
    raw = data_frames.append_fields(*fields)
    assert data_frames.framed_append_fields(*fields, 4) == data_frames.encode_operation_length(len(raw) + 4) + raw


@given(operations)
def test_operations_come_back_as_they_were(operation):
    assert decode_operation(memoryview(frame_of(operation))) == operation


@given(operations, st.data())
def test_frames_that_are_none_are_corrupt(operation, data):
    valid = frame_of(operation)
    start, end = data.draw(st.integers(0, len(valid))), data.draw(st.integers(0, len(valid)))
    frame = valid[:start] + data.draw(st.binary(max_size=120)) + valid[end:]
    try:
        operation = decode_operation(memoryview(frame))
    except CorruptError:
        return
    again = frame_of(operation)
    assert decode_operation(memoryview(again)) == operation


@given(operations, st.data())
def test_a_frame_that_was_cut_never_reads_as_another_fixed_one(operation, data):
    frame = frame_of(operation)
    cut = frame[: data.draw(st.integers(0, len(frame) - 1))]
    if isinstance(operation, _OPEN_ENDED):
        return  # their data has no length of its own: the journal's record has it
    with pytest.raises(CorruptError):
        decode_operation(memoryview(cut))


@given(st.binary(max_size=200))
@example(b'{"version":1,"next":1,"deletions":{}}\n[]\n')
@example(b'{"version":1,"next":1,"deletions":[]}\n')
@example(b'{"version":1,"next":"x","deletions":{}}\n')
@example(b'{"version":1,"next":1,"deletions":{"a":"b"}}\n')
@example(
    b'{"version":1,"next":1,"deletions":{}}\n'
    b'{"number":1,"name":"a","start":0,"length":0,"sealed":false,"modified":0,"attributes":[]}\n'
)
@example(
    b'{"version":1,"next":1,"deletions":{}}\n'
    b'{"number":1,"name":5,"start":"0","length":0,"sealed":false,"modified":0,"attributes":{"1":"x"}}\n'
)
@example(b"[" * 5_000)
@example(b"")
def test_snapshots_that_are_none_are_corrupt(raw):
    with pytest.raises(CorruptError):
        container_snapshots.decode_snapshot([raw])


SNAPSHOT_HEADER = b'{"version":1,"next":5,"deletions":{}}\n'
MERGED_RANGES = [
    (b'[6,3,"source",2,9]', MergedRange(6, 3, DirectoryPlace("source", 2), 9)),
    (
        b'[6,9,"source",0,9,[],[[2,4,"inner",0,5]]]',
        MergedRange(6, 9, DirectoryPlace("source", 0), 9, (MergedRange(2, 4, DirectoryPlace("inner", 0), 5),)),
    ),
]


def snapshot_with(merged):
    return (
        SNAPSHOT_HEADER + b'{"number":1,"name":"a","start":0,"length":6,"sealed":false,"modified":7,"attributes":{},'
        b'"merged":[' + merged + b"]}\n"
    )


@pytest.mark.parametrize(("written", "merged"), MERGED_RANGES)
def test_merged_ranges_keep_their_bytes(written, merged):
    snapshot = container_snapshots.decode_snapshot([snapshot_with(written)])
    assert snapshot.segments[0].merged == (merged,)
    assert b"".join(container_snapshots.encode_snapshot(snapshot)) == snapshot_with(written)


@pytest.mark.parametrize("more", [b"", b",9,5", b",9,[5]", b',9,[["passed",4]]', b",9,null"])
def test_a_merged_range_of_another_form_is_corrupt(more):
    """Release 0.1.0 wrote some without an ordering, and some with the segments that the bytes passed through."""
    with pytest.raises(CorruptError):
        container_snapshots.decode_snapshot([snapshot_with(b'[6,3,"source",2' + more + b"]")])


PLAIN_SEGMENT = (
    b'{"number":1,"name":"a","start":0,"length":6,"sealed":false,"modified":7,"attributes":{"abc":5,"10":1}}\n'
)
EXPIRED_SEGMENT = PLAIN_SEGMENT[:-2] + b',"client_attributes":["10","abc"],"forgot_writers":true}\n'


def test_the_expiry_of_writers_in_a_snapshot_keeps_its_bytes():
    """A segment that has neither looks as it did before there was an expiry."""
    plain, expired = map(container_snapshots.decode_segment, (PLAIN_SEGMENT, EXPIRED_SEGMENT))
    assert (plain.client_attributes, plain.forgot_writers) == (frozenset(), False)
    assert (expired.client_attributes, expired.forgot_writers) == ({0x10, 0xABC}, True)
    assert container_snapshots.encode_segment(plain) == PLAIN_SEGMENT
    assert container_snapshots.encode_segment(expired) == EXPIRED_SEGMENT


@pytest.mark.parametrize("field", [b'"client_attributes":[5]', b'"client_attributes":{}', b'"forgot_writers":1'])
def test_an_expiry_of_writers_that_is_none_is_corrupt(field):
    with pytest.raises(CorruptError):
        container_snapshots.decode_segment(PLAIN_SEGMENT[:-2] + b"," + field + b"}\n")
