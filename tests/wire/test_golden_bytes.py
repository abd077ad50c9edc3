"""Every command against bytes put together by hand from the facts about the protocol, not from the code's layouts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace import wire
from headrace.wire.fields import LAYOUTS

ID = "0000000000000007"
WRITER_ID = 0x000102030405060708090A0B0C0D0E0F
WRITER = "000102030405060708090a0b0c0d0e0f"
SEGMENT = "0003 732f74"  # "s/t"
OTHER = "0001 75"  # "u"
TOKEN = "0002 746f"  # "to"
EMPTY = "0000"
MINUS_ONE = "ffffffffffffffff"
NEVER = "8000000000000000"
DATA = "00000003 616263"  # i32 length and "abc"
KEY = "0000000e 00000002 6b31"  # total, length, "k1"; a version follows
VALUE = "00000007 00000003 616263"  # total, length, "abc"

GOLDEN = [
    (wire.Hello(17, 5), -127, "00000011 00000005"),
    (wire.KeepAlive(), 100, ""),
    (wire.SetupAppend(7, WRITER_ID, "s/t", "to"), 1, f"{ID} {WRITER} {SEGMENT} {TOKEN}"),
    (wire.AppendSetup(7, "s/t", WRITER_ID, -(2**63)), 2, f"{ID} {SEGMENT} {WRITER} {NEVER}"),
    (wire.AppendBlock(WRITER_ID, b"abc"), 3, f"{WRITER} 616263"),
    (
        wire.AppendBlockEnd(WRITER_ID, 3, b"abc", 2, 9, 7),
        4,
        f"{WRITER} 00000003 {DATA} 00000002 0000000000000009 {ID}",
    ),
    (
        wire.ConditionalAppend(WRITER_ID, 1, 2, b"abc", 7),
        5,
        f"{WRITER} 0000000000000001 0000000000000002 00000000 {DATA} {ID}",
    ),
    (
        wire.DataAppended(WRITER_ID, 9, 8, 7, 300),
        7,
        f"{WRITER} 0000000000000009 0000000000000008 {ID} 000000000000012c",
    ),
    (wire.ConditionalCheckFailed(WRITER_ID, 9, 7), 8, f"{WRITER} 0000000000000009 {ID}"),
    (
        wire.ConditionalBlockEnd(WRITER_ID, 0, 5, b"abc", 7),
        89,
        f"{WRITER} 0000000000000000 0000000000000005 {DATA} {ID}",
    ),
    (wire.Padding(b"\0\0"), -1, "0000"),
    (wire.PartialEvent(b"abc"), -2, "616263"),
    (
        wire.ReadSegment("s/t", 4, 1024, "to", 7, b"abc"),
        9,
        f"{SEGMENT} 0000000000000004 00000400 {TOKEN} {ID} {DATA}",
    ),
    (
        wire.SegmentRead("s/t", 4, True, False, b"abc", 7, 300, b"abc"),
        10,
        f"{SEGMENT} 0000000000000004 01 00 {DATA} {ID} 000000000000012c {DATA}",
    ),
    (wire.GetStreamSegmentInfo(7, "s/t", "to"), 11, f"{ID} {SEGMENT} {TOKEN}"),
    (
        wire.StreamSegmentInfo(7, "s/t", True, False, True, 1, 2, 3, 300),
        12,
        f"{ID} {SEGMENT} 01 00 01 0000000000000001 0000000000000002 0000000000000003 000000000000012c",
    ),
    (
        wire.LocateOffset(7, "s/t", 4, "to", 300),
        41,
        f"{ID} {SEGMENT} 0000000000000004 {TOKEN} 000000000000012c",
    ),
    (wire.OffsetLocated(7, "s/t", 4, 300), 42, f"{ID} {SEGMENT} 0000000000000004 000000000000012c"),
    (
        wire.CreateSegment(7, "s/t", 100, 2, "to", 4),
        20,
        f"{ID} {SEGMENT} 00000064 02 {TOKEN} 0000000000000004",
    ),
    (wire.SegmentCreated(7, "s/t"), 21, f"{ID} {SEGMENT}"),
    (wire.CreateTransientSegment(7, WRITER_ID, "s/t", "to"), 40, f"{ID} {WRITER} {SEGMENT} {TOKEN}"),
    (wire.SealSegment(7, "s/t", "to"), 28, f"{ID} {SEGMENT} {TOKEN}"),
    (wire.SegmentSealed(7, "s/t"), 29, f"{ID} {SEGMENT}"),
    (wire.TruncateSegment(7, "s/t", 4, "to"), 38, f"{ID} {SEGMENT} 0000000000000004 {TOKEN}"),
    (wire.SegmentTruncated(7, "s/t"), 39, f"{ID} {SEGMENT}"),
    (wire.DeleteSegment(7, "s/t", "to"), 30, f"{ID} {SEGMENT} {TOKEN}"),
    (
        wire.DeleteSegmentUpTo(7, "s/t", WRITER_ID, 4, "to"),
        110,
        f"{ID} {SEGMENT} {WRITER} 0000000000000004 {TOKEN}",
    ),
    (
        wire.TruncateSegmentUpTo(7, "s/t", 5, WRITER_ID, 4, "to"),
        111,
        f"{ID} {SEGMENT} 0000000000000005 {WRITER} 0000000000000004 {TOKEN}",
    ),
    (
        wire.UpdateSegmentAttributeUpTo(7, "s/t", WRITER_ID, 5, 6, WRITER_ID, 4, "to"),
        112,
        f"{ID} {SEGMENT} {WRITER} 0000000000000005 0000000000000006 {WRITER} 0000000000000004 {TOKEN}",
    ),
    (wire.SegmentDeleted(7, "s/t"), 31, f"{ID} {SEGMENT}"),
    (wire.UpdateSegmentPolicy(7, "s/t", 100, 1, "to"), 32, f"{ID} {SEGMENT} 00000064 01 {TOKEN}"),
    (wire.SegmentPolicyUpdated(7, "s/t"), 33, f"{ID} {SEGMENT}"),
    (wire.GetSegmentAttribute(7, "s/t", WRITER_ID, "to"), 34, f"{ID} {SEGMENT} {WRITER} {TOKEN}"),
    (wire.SegmentAttribute(7, -(2**63)), 35, f"{ID} {NEVER}"),
    (
        wire.UpdateSegmentAttribute(7, "s/t", WRITER_ID, 1, -1, "to"),
        36,
        f"{ID} {SEGMENT} {WRITER} 0000000000000001 {MINUS_ONE} {TOKEN}",
    ),
    (wire.SegmentAttributeUpdated(7, True), 37, f"{ID} 01"),
    (
        wire.MergeSegments(7, "s/t", "u", "to", (wire.AttributeUpdate(WRITER_ID, 4, 1, -1),)),
        58,
        f"{ID} {SEGMENT} {OTHER} {TOKEN} 00000001 {WRITER} 04 0000000000000001 {MINUS_ONE}",
    ),
    (wire.SegmentsMerged(7, "s/t", "u", 300), 59, f"{ID} {SEGMENT} {OTHER} 000000000000012c"),
    (
        wire.MergeSegmentsBatch(7, "s/t", ("u", "s/t"), "to"),
        90,
        f"{ID} {SEGMENT} 00000002 {OTHER} {SEGMENT} {TOKEN}",
    ),
    (
        wire.SegmentsBatchMerged(7, "s/t", (wire.MergedSource("u", 1), wire.MergedSource("s/t", 2))),
        91,
        f"{ID} {SEGMENT} 00000002 {OTHER} 0000000000000001 {SEGMENT} 0000000000000002",
    ),
    (wire.WrongHost(7, "s/t"), 50, f"{ID} {SEGMENT} {EMPTY} {EMPTY}"),
    (wire.SegmentIsSealed(7, "s/t", "", 4), 51, f"{ID} {SEGMENT} {EMPTY} 0000000000000004"),
    (wire.SegmentAlreadyExists(7, "s/t"), 52, f"{ID} {SEGMENT} {EMPTY}"),
    (wire.NoSuchSegment(7, "s/t", "", 4), 53, f"{ID} {SEGMENT} {EMPTY} 0000000000000004"),
    (wire.InvalidEventNumber(WRITER_ID, 7, "", 9), 55, f"{WRITER} {ID} {EMPTY} 0000000000000009"),
    (
        wire.SegmentIsTruncated(7, "s/t", 5, "", 4),
        56,
        f"{ID} {SEGMENT} 0000000000000005 {EMPTY} 0000000000000004",
    ),
    (wire.OperationUnsupported(7, "u"), 57, f"{ID} {OTHER} {EMPTY}"),
    (wire.AuthTokenCheckFailed(7, "", 1), 60, f"{ID} {EMPTY} 00000001"),
    (wire.GetTableSegmentInfo(7, "s/t", "to"), 68, f"{ID} {SEGMENT} {TOKEN}"),
    (
        wire.TableSegmentInfo(7, "s/t", 1, 2, 3, 4),
        69,
        f"{ID} {SEGMENT} 0000000000000001 0000000000000002 0000000000000003 00000004",
    ),
    (
        wire.CreateTableSegment(7, "s/t", "to", False, 16, 4),
        70,
        f"{ID} {SEGMENT} {TOKEN} 00 00000010 0000000000000004",
    ),
    (wire.DeleteTableSegment(7, "s/t", True, "to"), 71, f"{ID} {SEGMENT} 01 {TOKEN}"),
    (
        wire.UpdateTableEntries(7, "s/t", "to", (wire.TableEntry(b"k1", wire.NOT_EXISTS, b"abc"),), 300),
        74,
        f"{ID} {SEGMENT} {TOKEN} 00000001 {KEY} {MINUS_ONE} {VALUE} 000000000000012c",
    ),
    (wire.TableEntriesUpdated(7, (0, 300)), 75, f"{ID} 00000002 0000000000000000 000000000000012c"),
    (
        wire.RemoveTableKeys(7, "s/t", "to", (wire.TableKey(b"k1"), wire.TableKey(b"k1", 9)), -1),
        76,
        f"{ID} {SEGMENT} {TOKEN} 00000002 {KEY} {NEVER} {KEY} 0000000000000009 {MINUS_ONE}",
    ),
    (wire.TableKeysRemoved(7, "s/t"), 77, f"{ID} {SEGMENT}"),
    (
        wire.ReadTable(7, "s/t", "to", (wire.TableKey(b"k1", wire.NO_VERSION),)),
        78,
        f"{ID} {SEGMENT} {TOKEN} 00000001 {KEY} {NEVER}",
    ),
    (
        wire.TableRead(7, "s/t", (wire.TableEntry(b"k1", 9, b"abc"), wire.TableEntry(b"k1", -1, b""))),
        79,
        f"{ID} {SEGMENT} 00000002 {KEY} 0000000000000009 {VALUE} {KEY} {MINUS_ONE} 00000004 00000000",
    ),
    (
        wire.ReadTableKeys(7, "s/t", "to", 10, b"abc", b"", b"a", b"b"),
        83,
        f"{ID} {SEGMENT} {TOKEN} 0000000a {DATA} 00000000 00000001 61 00000001 62",
    ),
    (
        wire.TableKeysRead(7, "s/t", (wire.TableKey(b"k1", 9),), b"abc"),
        84,
        f"{ID} {SEGMENT} 00000001 {KEY} 0000000000000009 {DATA}",
    ),
    (
        wire.ReadTableEntries(7, "s/t", "to", 10, b"abc", b"", b"a", b"b"),
        85,
        f"{ID} {SEGMENT} {TOKEN} 0000000a {DATA} 00000000 00000001 61 00000001 62",
    ),
    (
        wire.TableEntriesRead(7, "s/t", (wire.TableEntry(b"k1", 9, b"abc"),), b"abc"),
        86,
        f"{ID} {SEGMENT} 00000001 {KEY} 0000000000000009 {VALUE} {DATA}",
    ),
    (wire.ReadTableEntriesDelta(7, "s/t", "to", 4, 10), 88, f"{ID} {SEGMENT} {TOKEN} 0000000000000004 0000000a"),
    (
        wire.TableEntriesDeltaRead(7, "s/t", (wire.TableEntry(b"k1", 9, b"abc"),), False, True, 300),
        87,
        f"{ID} {SEGMENT} 00000001 {KEY} 0000000000000009 {VALUE} 00 01 000000000000012c",
    ),
    (wire.TableSegmentNotEmpty(7, "s/t"), 80, f"{ID} {SEGMENT} {EMPTY}"),
    (wire.TableKeyDoesNotExist(7, "s/t"), 81, f"{ID} {SEGMENT} {EMPTY}"),
    (wire.TableKeyBadVersion(7, "s/t"), 82, f"{ID} {SEGMENT} {EMPTY}"),
    (wire.ErrorMessage(7, "s/t", "u", 0), 61, f"{ID} {SEGMENT} {OTHER} 00000000"),
]


def test_every_command_has_golden_bytes() -> None:
    assert {type(command) for command, _, _ in GOLDEN} == set(LAYOUTS)


@pytest.mark.parametrize(("command", "type_code", "payload"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes_both_ways(command: wire.WireCommand, type_code: int, payload: str) -> None:
    expected = bytes.fromhex(payload)
    frame = wire.encode(command)
    assert frame[:8] == type_code.to_bytes(4, "big", signed=True) + len(expected).to_bytes(4, "big")
    assert frame[8:] == expected
    assert wire.decode(type_code, memoryview(expected)) == command


# What older peers leave out, in bytes from the end, and what is assumed then.
SHORT = [
    (wire.AppendBlockEnd(WRITER_ID, 3, b"abc", 2, 9, 7), 8, {"request_id": -1}),
    (wire.ConditionalAppend(WRITER_ID, 1, 2, b"abc", 7), 8, {"request_id": -1}),
    (wire.DataAppended(WRITER_ID, 9, 8, 7, 300), 8, {"current_segment_write_offset": -1}),
    (
        wire.DataAppended(WRITER_ID, 9, 8, 7, 300),
        24,
        {"previous_event_number": -1, "request_id": -1, "current_segment_write_offset": -1},
    ),
    (wire.ConditionalCheckFailed(WRITER_ID, 9, 7), 8, {"request_id": -1}),
    (wire.ReadSegment("s/t", 4, 1024, "to", 7), 4, {}),
    (wire.ReadSegment("s/t", 4, 1024, "to", 7), 12, {"request_id": -1}),
    (wire.SegmentRead("s/t", 4, True, False, b"abc", 7, 300), 12, {"ordering_number": 0}),
    (wire.SegmentRead("s/t", 4, True, False, b"abc", 7, 300), 20, {"request_id": -1, "ordering_number": 0}),
    (wire.StreamSegmentInfo(7, "s/t", True, False, True, 1, 2, 3, 300), 8, {"ordering_number": 0}),
    (wire.StreamSegmentInfo(7, "s/t", True, False, True, 1, 2, 3), 16, {"start_offset": 0}),
    (wire.LocateOffset(7, "s/t", 4, "to", 300), 8, {"ordering_number": 0}),
    (wire.OffsetLocated(7, "s/t", 4, 300), 8, {"ordering_number": 0}),
    (wire.CreateSegment(7, "s/t", 100, 2, "to", 4), 8, {"rollover_size_bytes": 0}),
    (wire.MergeSegments(7, "s/t", "u", "to"), 4, {"attribute_updates": ()}),
    (wire.SegmentsMerged(7, "s/t", "u", 300), 8, {"new_target_write_offset": -1}),
    (wire.SegmentIsSealed(7, "s/t", "", 4), 10, {"offset": -1}),
    (wire.NoSuchSegment(7, "s/t", "", 4), 8, {"offset": -1}),
    (wire.AuthTokenCheckFailed(7, "", 1), 4, {"error_code": -1}),
    (wire.CreateTableSegment(7, "s/t", "to", False, 16, 4), 13, {"key_length": 0, "rollover_size_bytes": 0}),
    (wire.UpdateTableEntries(7, "s/t", "to", (), 5), 8, {"table_segment_offset": -1}),
    (wire.RemoveTableKeys(7, "s/t", "to", (), 5), 8, {"table_segment_offset": -1}),
    (wire.ReadTableKeys(7, "s/t", "to", 10, b"abc"), 12, {}),
    (wire.ReadTableEntries(7, "s/t", "to", 10, b"abc"), 19, {"continuation_token": b""}),
]


@pytest.mark.parametrize(("command", "missing_bytes", "defaults"), SHORT)
def test_missing_trailing_fields_get_their_defaults(
    command: wire.WireCommand, missing_bytes: int, defaults: dict[str, object]
) -> None:
    payload = memoryview(wire.encode(command))[8:-missing_bytes]
    assert wire.decode(command.TYPE, payload) == replace(command, **defaults)


@pytest.mark.parametrize(("command", "type_code", "payload"), GOLDEN, ids=lambda value: type(value).__name__)
def test_bytes_behind_the_last_field_are_ignored(command: wire.WireCommand, type_code: int, payload: str) -> None:
    if isinstance(command, wire.AppendBlock | wire.Padding | wire.PartialEvent):
        return  # their last field is all that is left of the frame
    longer = bytes.fromhex(payload) + b"\x00\x00\x00\x09later"
    assert wire.decode(type_code, memoryview(longer)) == command
