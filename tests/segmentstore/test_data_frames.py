"""Operations come back from the frames in which they were logged, or the frames are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from list_ledger import ListLedger, open_log, read_all, turn
from store_world import World

from headrace import wire
from headrace.codec import data_frames
from headrace.model.errors import CorruptError
from headrace.segmentstore.containers.operation_log import OPERATION_BYTES_MAX, FrameReader

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"


def read_on(entries, first):
    """From an entry in the middle on."""
    reader = FrameReader(0, resumes=True)
    return [
        (logged.entry, bytes(logged.content))
        for number, entry in enumerate(entries)
        if number >= first
        for logged in reader.read(number, memoryview(entry))
    ]


lives = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 900), st.booleans()), max_size=12),
        st.integers(0, 12),
    ),
    max_size=4,
)


@given(lives)
async def test_what_survives_is_a_prefix_of_each_life(lives):
    """Each life logs operations, with or without a turn of the loop behind them, and loses some of its last entries."""

    entries, expected, number = [], [], 0
    for operations, lost_entries in lives:
        reader = read_all(entries)[1]
        ledger = ListLedger()
        ledger.entries = list(entries)
        log = open_log(ledger, reader)
        logged = []
        for length, turns in operations:
            number += 1
            content = (b"%d " % number * length)[:length]
            log.append([content[:9], memoryview(content)[9:]], lambda _error: None)
            logged.append(content)
            if turns:
                await turn()
        log.flush()
        kept = max(len(entries), len(ledger.entries) - lost_entries)
        complete = kept == len(ledger.entries)
        entries = ledger.entries[:kept]
        found, reader = read_all(entries)
        contents = [content for _, content in found]
        assert contents[: len(expected)] == expected
        assert contents[len(expected) :] == logged[: len(contents) - len(expected)]
        assert not complete or len(contents) == len(expected) + len(logged)
        assert reader.next_sequence == len(contents)
        for first in {entry for entry, _ in found}:
            assert read_on(entries, first) == [(entry, content) for entry, content in found if entry >= first]
        expected = contents


def frames(*headers_and_contents):
    return [
        data_frames.encode_frame_header(data_frames.FrameHeader(*header)) + content
        for header, content in headers_and_contents
    ]


OPERATION = data_frames.encode_operation_length(3) + b"abc"


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        (frames(((0, 1, 0), b"")), "is not a data frame"),
        (frames(((0, 1, 5), b"abc")), "claims to continue"),
        (frames(((0, 1, 3), b"abc")), "start is missing"),
        (frames(((0, 1, 0), OPERATION), ((2, 2, 0), OPERATION)), "expected 1"),
        (frames(((0, 1, 0), OPERATION), ((1, 1, 0), OPERATION)), "has ordering 1"),
        (frames(((0, 1, 0), OPERATION[:-1]), ((1, 2, 2), b"cd")), "beyond its end"),
        (frames(((0, 1, 0), OPERATION[:-1]), ((0, 2, 1), b"c")), "expected 1"),
        (frames(((0, 1, 0), OPERATION[:-1]), ((0, 2, 0), OPERATION), ((2, 3, 1), b"c")), "start is missing"),
        (frames(((0, 1, 0), OPERATION[:-1]), ((1, 2, 1), b"c"), ((1, 3, 1), b"d")), "start is missing"),
        (frames(((0, 1, 0), OPERATION[:-2]), ((1, 2, 1), b"b"), ((2, 3, 1), b"c")), "expected 1"),
        (frames(((0, 1, 0), OPERATION[:3])), "no operation"),
        (frames(((0, 1, 0), OPERATION + b"\0")), "no operation"),
        (frames(((0, 1, 0), data_frames.encode_operation_length(0))), "of 0 bytes"),
        (frames(((0, 1, 0), data_frames.encode_operation_length(OPERATION_BYTES_MAX + 1))), "holds an operation of"),
    ],
)
def test_frames_that_contradict_each_other_are_corrupt(entries, complaint):
    with pytest.raises(CorruptError, match=complaint):
        read_all(entries)


def test_reading_from_the_middle_skips_one_cut_operation():
    """It counts as read. A second operation without a start means that entries are missing."""
    cut = frames(((6, 5, 2), b"ef" + OPERATION + OPERATION), ((8, 6, 0), OPERATION))
    reader = FrameReader(0, resumes=True)
    entries = [logged.entry for number, entry in enumerate(cut, 4) for logged in reader.read(number, memoryview(entry))]
    assert (entries, reader.next_sequence, reader.last_ordering) == ([4, 4, 5], 9, 6)
    with pytest.raises(CorruptError, match="start is missing"):
        list(reader.read(6, memoryview(frames(((10, 7, 1), b"z"))[0])))


def test_reading_from_the_middle_skips_an_operation_s_frames():
    cut = frames(((6, 5, 2), b"ef"), ((6, 6, 2), b"gh"), ((6, 7, 1), b"i" + OPERATION))
    reader = FrameReader(0, resumes=True)
    entries = [logged.entry for number, entry in enumerate(cut, 4) for logged in reader.read(number, memoryview(entry))]
    assert (entries, reader.next_sequence, reader.last_ordering) == ([6], 7, 7)


def test_split_operation_has_the_place_of_its_start():
    """And the ordering of its end: before that frame it was not whole."""
    entries = frames(((0, 5, 0), OPERATION + OPERATION[:-1]), ((2, 9, 1), b"c" + OPERATION))
    reader = FrameReader(0)
    operations = [
        logged for number, entry in enumerate(entries, 3) for logged in reader.read(number, memoryview(entry))
    ]
    assert [(each.entry, each.position, each.ordering) for each in operations] == [(3, 4, 5), (3, 11, 9), (4, 5, 9)]
    assert {bytes(each.content) for each in operations} == {b"abc"}


def test_operation_that_begins_behind_a_cut_one_is_counted_once():
    """A resumed reader counts on at a frame that has the end of one operation and the start of the next."""
    cut = frames(((6, 5, 2), b"ef" + OPERATION[:-1]), ((7, 6, 1), b"c" + OPERATION))
    reader = FrameReader(0, resumes=True)
    entries = [logged.entry for number, entry in enumerate(cut, 4) for logged in reader.read(number, memoryview(entry))]
    assert (entries, reader.next_sequence) == ([4, 5], 8)


@pytest.mark.parametrize(
    ("second", "complaint"),
    [(((9, 6, 0), OPERATION), "expected 8"), (((9, 6, 1), b"c" + OPERATION), "start is missing")],
)
def test_gap_behind_the_first_resumed_frame_is_corrupt(second: tuple[tuple[int, int, int], bytes], complaint: str):
    """The frame has an operation of its own, so the cut one has ended in it."""
    reader = FrameReader(0, resumes=True)
    first, after = map(memoryview, frames(((7, 5, 2), b"ef" + OPERATION), second))
    assert len(list(reader.read(4, first))) == 1
    with pytest.raises(CorruptError, match=complaint):
        list(reader.read(5, after))


@pytest.mark.parametrize("entry", [b"", b"\xf1", b"\2" + bytes(60)], ids=["empty", "cut", "a bare operation"])
def test_an_entry_that_is_no_frame_is_refused(entry):
    """Release 0.1.0 wrote each operation as an entry of its own."""
    with pytest.raises(CorruptError, match=r"begins with 0x02, a data frame with 0xf1|is not a data frame"):
        list(FrameReader(0).read(3, memoryview(entry)))


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_hurt_the_reader(entries):
    try:
        read_all([b"\xf1" + entry for entry in entries])
    except CorruptError:
        return


async def test_append_larger_than_a_frame_survives_a_crash(world: World):
    world.file_bytes = 256 << 10
    data = bytes(range(256)) * 4096  # 1 MiB, five files
    replies = []

    async with world.running(graceful=False) as running:
        client = await running.connect()
        await client.create(SEGMENT)
        await client.set_up(SEGMENT, 5)
        client.send(wire.AppendBlockEnd(5, len(data), data, 1, 1, 9), wire.AppendBlockEnd(5, 3, b"end", 1, 2, 9))
        while not replies or replies[-1].event_number < 2:
            replies.append(await client.receive())
    world.disk = world.disk.cut_power(3)
    async with world.running() as running:
        assert await (await running.connect()).read_all(SEGMENT) == data + b"end"
