"""The stored forms of reader groups and state synchronizers: golden bytes by Pravega's rules, round trips, bad input.

Each golden value is put together from its fields, in the order in which Pravega's serializers declare them.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.group_state import parse_state, parse_update, state_bytes, update_bytes
from headrace.codec.stored_objects import (
    FieldReader,
    InitialEntry,
    UpdatesEntry,
    compact_long,
    compact_signed_long,
    entry_bytes,
    parse_entry,
    text,
)
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.model.group_state import Checkpoints, GroupState, SharedConfiguration, initial_state
from headrace.model.group_updates import (
    AcquireSegment,
    AddReader,
    BeginCheckpoint,
    ClearCheckpointsBefore,
    CompleteSegment,
    GroupUpdate,
    NoteProgress,
    NotePublished,
    NoteUpdating,
    ReachCheckpoint,
    ReleaseSegment,
    RemoveOutstandingCheckpoints,
    RemoveReader,
    ReplaceState,
)
from headrace.model.names import StreamSegmentName
from headrace.model.reader_groups import RetentionMode
from headrace.model.segments import KeyRange

FIRST = StreamSegmentName("s", "t", 0)
LATER = StreamSegmentName("s", "t", 1 << 32 | 2)
FIRST_TEXT = b"\0\x0es/t/0.#epoch.0"
LATER_TEXT = b"\0\x0es/t/2.#epoch.1"


def long(number: int) -> bytes:
    return struct.pack(">q", number)


def revision(number: int, *fields: bytes) -> bytes:
    data = b"".join(fields)
    return bytes([number]) + struct.pack(">i", len(data)) + data


def typed(kind: int, *revisions: bytes) -> bytes:
    return bytes([0, kind, 0, len(revisions)]) + b"".join(revisions)


UPDATES: list[tuple[GroupUpdate, bytes]] = [
    (AddReader("r1"), typed(2, revision(0, b"\0\2r1"))),
    (
        RemoveReader("r1", {FIRST: 8}),
        typed(3, revision(0, b"\0\2r1", b"\1", FIRST_TEXT, long(8))),
    ),
    (
        ReleaseSegment("r1", FIRST, 300),
        typed(4, revision(0, b"\0\2r1", FIRST_TEXT, long(300))),
    ),
    (AcquireSegment("r1", LATER), typed(5, revision(0, b"\0\2r1", LATER_TEXT))),
    (
        NoteProgress("r1", 30_000, {FIRST: 8, LATER: 9}, {LATER: KeyRange(0.25, 0.5)}),
        typed(
            6,
            revision(0, b"\0\2r1", long(30_000)),
            revision(
                1,
                b"\2",
                FIRST_TEXT,
                struct.pack(">dd", -1, -1),
                long(8),
                LATER_TEXT,
                struct.pack(">dd", 0.25, 0.5),
                long(9),
            ),
        ),
    ),
    (
        CompleteSegment("r1", FIRST, {LATER: (0, 1)}, {LATER: KeyRange(0.0, 0.5)}),
        typed(
            7,
            revision(0, b"\0\2r1", FIRST_TEXT, b"\1", LATER_TEXT, b"\2", long(0), long(1)),
            revision(1, b"\2", FIRST_TEXT, struct.pack(">dd", -1, -1), LATER_TEXT, struct.pack(">dd", 0, 0.5)),
        ),
    ),
    (
        ReachCheckpoint("c", "r1", {FIRST: -1}),
        typed(8, revision(0, b"\0\1c", b"\0\2r1", b"\1", FIRST_TEXT, long(-1))),
    ),
    (BeginCheckpoint("c"), typed(9, revision(0, b"\0\1c"))),
    (ClearCheckpointsBefore("c"), typed(10, revision(0, b"\0\1c"))),
    (NotePublished(True), typed(11, revision(0, b"\1"))),
    (NoteUpdating(False), typed(12, revision(0, b"\0"))),
    (RemoveOutstandingCheckpoints(), typed(13, revision(0))),
]


@pytest.mark.parametrize(("update", "stored"), UPDATES, ids=[type(update).__name__ for update, _ in UPDATES])
def test_golden_updates(update: GroupUpdate, stored: bytes) -> None:
    assert update_bytes(update) == stored
    assert parse_update(stored) == update


CONFIGURATION = SharedConfiguration(
    starts={"s/t": {0: 300, 1 << 32 | 2: -1}},
    ends={"s/t": None},
    group_id="7c9e6679-7425-40de-944b-e07fc1f90ae7",
    generation=5,
    retention=RetentionMode.AUTOMATIC,
)
CUT = b"\0\1\1" + revision(0, b"\0\3s/t", b"\2", b"\0", b"\x21\x2c", b"\xc0\0\0\1\0\0\0\2", b"\x80")
_CUTS = long(30_000) + long(3_000) + b"\1\0\3s/t" + bytes([len(CUT)]) + CUT + b"\1\0\3s/t\0"
_IDENTITY = b"\2" + long(5) + bytes.fromhex("7c9e6679742540de944be07fc1f90ae7")
STORED_CONFIGURATION = (
    b"\0\0\3" + revision(0, _CUTS) + revision(1, _CUTS, struct.pack(">i", 3)) + revision(2, _IDENTITY)
)


def counted(data: bytes) -> bytes:
    """Bytes after their number, which has two bytes from 128 on."""
    return (bytes([len(data)]) if len(data) < 128 else struct.pack(">H", 0x8000 | len(data))) + data


def test_golden_initial_state() -> None:
    state = initial_state(CONFIGURATION, {FIRST: 300}, {LATER: 9}, {FIRST: KeyRange(0.0, 1.0)})
    stored = typed(
        0,
        revision(0, counted(STORED_CONFIGURATION), b"\1", FIRST_TEXT, long(300), b"\1", LATER_TEXT, long(9)),
        revision(1, b"\1", FIRST_TEXT, struct.pack(">dd", 0, 1), long(300)),
        revision(2, b"\0"),
    )
    assert state_bytes(state) == stored
    assert parse_state(stored) == state
    assert parse_update(stored) == ReplaceState(state)


def test_golden_compact_state() -> None:
    other = StreamSegmentName("s", "t", 1)
    state = GroupState(
        CONFIGURATION,
        unassigned={FIRST: 300},
        ends={},
        assigned={"r1": {other: 7}, "r2": {}},
        future={LATER: frozenset({1})},
        last_read={FIRST: 301},
        lags_ms={"r1": 30_000},
        ranges={FIRST: KeyRange(0.0, 0.5)},
        checkpoints=Checkpoints(("c",), {"c": ("r2",)}, {"c": {FIRST: 300}}, {FIRST: 200}, False),
        is_updating=True,
    )
    other_text = b"\0\x0es/t/1.#epoch.0"
    no_range = struct.pack(">dd", -1, -1)
    checkpoints = b"\0\0\2" + revision(
        0,
        b"\1\0\1c",
        b"\1\0\1c\1\0\2r2",
        b"\1\0\1c\1" + FIRST_TEXT + long(300),
        b"\1" + FIRST_TEXT + long(200),
    )
    checkpoints += revision(1, b"\0")
    stored = typed(
        1,
        revision(
            0,
            counted(STORED_CONFIGURATION),
            counted(checkpoints),
            b"\1\0\2r1" + long(30_000),
            b"\1" + LATER_TEXT + b"\1" + long(1),
            b"\2\0\2r1\1" + other_text + long(7) + b"\0\2r2\0",
            b"\1" + FIRST_TEXT + long(300),
            b"\0",
        ),
        revision(
            1,
            b"\1" + FIRST_TEXT + long(301),
            b"\3" + LATER_TEXT + no_range + FIRST_TEXT + struct.pack(">dd", 0, 0.5) + other_text + no_range,
        ),
        revision(2, b"\1"),
    )
    assert state_bytes(state) == stored
    assert parse_state(stored) == state


def test_golden_synchronizer_entries() -> None:
    assert entry_bytes(InitialEntry(b"abc")) == b"\0\0\0\1abc"
    assert entry_bytes(UpdatesEntry([b"a", b"bc"])) == b"\0\0\0\2" + b"\0\0\0\1a" + b"\0\0\0\2bc"
    assert parse_entry(b"\0\0\0\1abc") == InitialEntry(b"abc")
    assert parse_entry(b"\0\0\0\2\0\0\0\1a\0\0\0\2bc") == UpdatesEntry((b"a", b"bc"))


def test_lease_is_in_a_revision_that_others_skip() -> None:
    """Pravega's readers skip revisions that they do not know, so they see the update without the lease."""
    plain = NoteProgress("r1", 30_000, {FIRST: 8})
    leased = NoteProgress("r1", 30_000, {FIRST: 8}, lease_ms=20_000)
    with_lease, without = update_bytes(leased), update_bytes(plain)
    assert parse_update(with_lease) == leased
    assert with_lease[3] == without[3] + 1
    assert with_lease[4 : len(without)] == without[4:]
    foreign = without[:3] + b"\3" + without[4:] + revision(2, b"another field")
    assert parse_update(foreign) == plain


def test_leases_are_in_the_compact_state() -> None:
    state = AddReader("r1").applied_to(initial_state(CONFIGURATION, {FIRST: 0}, {}))
    state = NoteProgress("r1", 1, lease_ms=20_000).applied_to(state)
    assert parse_state(state_bytes(state)) == state
    assert state.leases_ms == {"r1": 20_000}


@pytest.mark.parametrize(
    ("number", "stored"),
    [
        (0, "00"), (63, "3f"), (64, "4040"), (0x3FFF, "7fff"), (0x4000, "80004000"), (0x3FFFFFFF, "bfffffff"),
        (0x40000000, "c000000040000000"), ((1 << 62) - 1, "ffffffffffffffff"),
    ],
)  # fmt: skip
def test_golden_compact_longs(number: int, stored: str) -> None:
    assert compact_long(number).hex() == stored
    assert FieldReader(bytes.fromhex(stored)).compact_long() == number


@pytest.mark.parametrize(
    ("number", "stored"),
    [
        (0, "00"), (-1, "80"), (31, "1f"), (32, "2020"), (-32, "9f"), (-33, "a020"), (0x1FFF, "3fff"),
        (0x2000, "40002000"), (0x20000000, "6000000020000000"), (-(1 << 61), "ffffffffffffffff"),
    ],
)  # fmt: skip
def test_golden_compact_signed_longs(number: int, stored: str) -> None:
    assert compact_signed_long(number).hex() == stored
    assert FieldReader(bytes.fromhex(stored)).compact_signed_long() == number


def test_text_is_that_of_java() -> None:
    assert text("a\0é😀").hex() == "000b" + "61" + "c080" + "c3a9" + "eda0bd" + "edb880"
    assert FieldReader(text("a\0é😀")).text() == "a\0é😀"
    with pytest.raises(InvalidRequestError):
        text("x" * 65_536)


NAMES = st.sampled_from(["a", "shop", "x.y-z", "R1"])
SEGMENTS = st.builds(
    StreamSegmentName,
    NAMES,
    NAMES,
    st.builds(lambda epoch, number: epoch << 32 | number, *[st.integers(0, 1 << 20)] * 2),
)
OFFSETS = st.integers(-1, 1 << 60)
POSITIONS = st.dictionaries(SEGMENTS, OFFSETS, max_size=4)
TEXTS = st.sampled_from(["", "c1", "\0", "é😀", "x" * 300])
RANGES = st.builds(
    lambda low, width: KeyRange(low / 64, min(1.0, (low + width) / 64)), st.integers(0, 63), st.integers(1, 64)
)
SCOPED_NAMES = st.builds("{}/{}".format, NAMES, NAMES)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoints:
    """Each has positions."""
    positions = draw(st.dictionaries(TEXTS, POSITIONS, max_size=3))
    kept = st.lists(st.sampled_from(sorted(positions)), unique=True) if positions else st.just([])
    return Checkpoints(
        tuple(draw(kept)),
        {name: tuple(draw(st.lists(TEXTS, max_size=3))) for name in draw(kept)},
        positions,
        draw(st.none() | POSITIONS.filter(bool)),
        draw(st.booleans()),
    )


CONFIGURATIONS = st.builds(
    SharedConfiguration,
    starts=st.dictionaries(SCOPED_NAMES, st.none() | st.dictionaries(st.integers(0, 1 << 60), OFFSETS), max_size=3),
    ends=st.dictionaries(SCOPED_NAMES, st.none() | st.dictionaries(st.integers(0, 1 << 60), OFFSETS), max_size=3),
    group_id=st.uuids().map(str),
    generation=st.integers(-1, 1 << 40),
    retention=st.sampled_from(RetentionMode),
    automatic_checkpoint_interval_ms=st.integers(-1, 1 << 40),
)


@st.composite
def states(draw: st.DrawFn) -> GroupState:
    unassigned, last_read = draw(POSITIONS), draw(POSITIONS)
    known = list(unassigned) + list(last_read)
    return GroupState(
        draw(CONFIGURATIONS),
        unassigned=unassigned,
        ends=draw(POSITIONS),
        assigned=draw(st.dictionaries(NAMES, POSITIONS, max_size=3)),
        future=draw(st.dictionaries(SEGMENTS, st.frozensets(st.integers(0, 1 << 40), max_size=3), max_size=3)),
        last_read=last_read,
        lags_ms=draw(st.dictionaries(NAMES, st.integers(0, (1 << 63) - 1), max_size=3)),
        leases_ms=draw(st.dictionaries(NAMES, st.integers(0, 1 << 40), max_size=3)),
        ranges=draw(st.dictionaries(st.sampled_from(known), RANGES)) if known else {},
        checkpoints=draw(checkpoints()),
        is_updating=draw(st.booleans()),
    )


@given(states())
def test_states_survive_storing(state: GroupState) -> None:
    assert parse_state(state_bytes(state)) == state


CUT = {0: 5}


@pytest.mark.parametrize(
    "state",
    [
        GroupState(SharedConfiguration({}, {}), {}, {}, checkpoints=Checkpoints(names=("c",))),
        GroupState(SharedConfiguration({}, {}), {}, {}, checkpoints=Checkpoints(("c",), {"c": ("r",)})),
        initial_state(SharedConfiguration({"stream": CUT}, {}), {}, {}),
        initial_state(SharedConfiguration({}, {"s/t/0": CUT}), {}, {}),
        initial_state(SharedConfiguration({"s/": CUT}, {}), {}, {}),
        initial_state(SharedConfiguration({}, {}), {StreamSegmentName("s", "x" * 3000, 0): 1}, {}),
    ],
)
def test_states_that_no_reader_writes_are_refused(state: GroupState) -> None:
    """Each process that may write the stream of a state could write them."""
    with pytest.raises(CorruptError):
        parse_state(state_bytes(state))


@given(
    st.binary(max_size=200) | st.builds(lambda kind, rest: bytes([0, kind, 0]) + rest, st.integers(0, 14), st.binary())
)
def test_any_bytes_are_refused_or_understood(data: bytes) -> None:
    for parse in (parse_update, parse_state, parse_entry):
        try:
            parse(data)
        except CorruptError:
            continue


@given(st.sampled_from(UPDATES), st.data())
def test_cut_off_updates_are_refused(sample: tuple[GroupUpdate, bytes], data: st.DataObject) -> None:
    stored = sample[1]
    length = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(CorruptError):
        parse_update(stored[:length])


def test_claimed_sizes_take_no_memory() -> None:
    huge = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptError):
        parse_update(typed(3, revision(0, b"\0\2r1", huge)))
    with pytest.raises(CorruptError):
        parse_update(bytes([0, 3, 0, 1, 0]) + b"\x7f\xff\xff\xff")
