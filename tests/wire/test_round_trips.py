"""Round trips of any values, and garbage: only WireFormatError may come out."""

from __future__ import annotations

import contextlib
from typing import Any, get_type_hints

import pytest
from any_commands import any_command
from hypothesis import given
from hypothesis import strategies as st

from headrace import wire
from headrace.model.errors import InvalidRequestError
from headrace.wire.fields import LAYOUTS, Layout, ListStep, Sink

ANY_COMMAND = any_command()


@given(ANY_COMMAND)
def test_round_trip(command: wire.WireCommand) -> None:
    frame = wire.encode(command)
    type_code, length_bytes = wire.decode_header(frame[:8])
    assert length_bytes == len(frame) - 8
    assert wire.decode(type_code, memoryview(frame)[8:]) == command


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.tuples(st.integers(0, (1 << 128) - 1), INT64, INT64, INT64, INT64))
def test_an_acknowledgement_encoded_at_once_is_the_same_frame(fields: tuple[int, int, int, int, int]) -> None:
    assert wire.encode_data_appended(*fields) == wire.encode(wire.DataAppended(*fields))


@given(ANY_COMMAND, st.data())
def test_a_cut_frame_is_refused_or_lacks_optional_fields_only(command: wire.WireCommand, data: st.DataObject) -> None:
    payload = wire.encode(command)[8:]
    cut = data.draw(st.integers(0, len(payload)))
    with contextlib.suppress(wire.WireFormatError):
        assert type(wire.decode(command.TYPE, memoryview(payload)[:cut])) is type(command)


@given(st.sampled_from(sorted(kind.TYPE for kind in LAYOUTS)), st.binary(max_size=200))
def test_garbage_payloads(type_code: int, payload: bytes) -> None:
    with contextlib.suppress(wire.WireFormatError):
        wire.decode(type_code, memoryview(payload))


@given(ANY_COMMAND, st.data())
def test_a_flipped_byte(command: wire.WireCommand, data: st.DataObject) -> None:
    payload = bytearray(wire.encode(command)[8:])
    if payload:
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(wire.WireFormatError):
        wire.decode(command.TYPE, memoryview(payload))


@pytest.mark.parametrize("type_code", [0, 6, 72, 999, -128, 2**31 - 1])
def test_unknown_types(type_code: int) -> None:
    with pytest.raises(wire.WireFormatError, match="no wire command"):
        wire.decode(type_code, memoryview(b""))


@pytest.mark.parametrize("length_bytes", [-1, -(2**31), wire.FRAME_PAYLOAD_BYTES_MAX + 1, 2**31 - 1])
def test_impossible_frame_lengths(length_bytes: int) -> None:
    with pytest.raises(wire.WireFormatError, match="claims"):
        wire.decode_header(wire.FRAME_HEADER.pack(1, length_bytes))


@pytest.mark.parametrize(
    ("type_code", "payload", "message"),
    [
        (11, "0000000000000007 0006 732f74 0000", "claims 6 bytes"),
        (11, "0000000000000007 0003 80ff74 0000", "not UTF-8"),
        (37, "0000000000000007 02", "only 0 and 1"),
        (90, "0000000000000007 0003 732f74 7fffffff", "claims 2147483647 elements"),
        (90, "0000000000000007 0003 732f74 ffffffff", "claims -1 elements"),
        (10, "0003 732f74 0000000000000004 01 00 ffffffff", "claims -1 bytes"),
        (10, "0003 732f74 0000000000000004 01 00 7fffffff", "claims 2147483647 bytes"),
        (5, "00" * 32 + "00000001 00000000", "expected an event"),
        (1, "00", "ends inside"),
        (9, "0003 732f74 0000000000000004 00000400 0000 0000000000000007 ffffffff", "claims -1 bytes"),
        (9, "0003 732f74 0000000000000004 00000400 0000 0000000000000007 00000101" + "00" * 257, "token of 257 bytes"),
        (78, "0000000000000007 0000 0000 00000001 0000000f 00000002 6b31 8000000000000000", "claims 2 bytes of 15"),
        (78, "0000000000000007 0000 0000 00000001 7fffffff 7ffffff3 6b31 8000000000000000", "are left"),
        (78, "0000000000000007 0000 0000 000186a1" + "00" * 20, "claims 100001 elements"),
        (78, "0000000000000007 0000 0000 00000001 00000008 fffffffc 6b31 8000000000000000", "claims -4 bytes"),
    ],
)
def test_malformed_payloads(type_code: int, payload: str, message: str) -> None:
    with pytest.raises(wire.WireFormatError, match=message):
        wire.decode(type_code, memoryview(bytes.fromhex(payload)))


def _lists() -> list[tuple[str, ListStep]]:
    """Every field that is a list, of every command."""
    return [
        (f"{kind.__name__}.{name}", step)
        for kind in LAYOUTS
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for step in getattr(hint, "__metadata__", ())
        if isinstance(step, ListStep)
    ]


def test_the_lists_of_all_commands_are_known() -> None:
    assert sorted((field, step.elements_max) for field, step in _lists()) == [
        ("MergeSegments.attribute_updates", 100),
        ("MergeSegmentsBatch.sources", 1_000),
        ("ReadTable.keys", 1_000),
        ("RemoveTableKeys.keys", 100_000),
        ("SegmentsBatchMerged.merged", 1_000),
        ("TableEntriesDeltaRead.entries", 100_000),
        ("TableEntriesRead.entries", 100_000),
        ("TableEntriesUpdated.versions", 100_000),
        ("TableKeysRead.keys", 100_000),
        ("TableRead.entries", 100_000),
        ("UpdateTableEntries.entries", 100_000),
    ]


@pytest.mark.parametrize(("field", "step"), _lists())
def test_a_long_list_is_refused_unread(field: str, step: ListStep, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_payload: memoryview, position: int) -> tuple[Any, int]:
        raise AssertionError(f"an element of {field} was read at {position}")

    monkeypatch.setattr(step, "_read", read)
    for count, expected in ((step.elements_max + 1, wire.WireFormatError), (step.elements_max, AssertionError)):
        with pytest.raises(expected):
            step.read(memoryview(count.to_bytes(4, "big") + bytes(40 * count)), 0, [])
    with pytest.raises(InvalidRequestError, match="too long"):
        step.write([(0,) * (step.elements_max + 1)], Sink())


@pytest.mark.parametrize(
    "command",
    [
        wire.GetStreamSegmentInfo(2**63, "s/t"),
        wire.SetupAppend(1, 2**128, "s/t"),
        wire.SetupAppend(1, -1, "s/t"),
        wire.GetStreamSegmentInfo(1, "x" * 65_536),
        wire.AppendBlockEnd(1, 0, bytes(wire.FRAME_PAYLOAD_BYTES_MAX), 1, 1, 1),
    ],
    ids=["i64", "uuid", "negative-uuid", "text", "frame"],
)
def test_what_does_not_fit_is_refused_before_it_is_sent(command: wire.WireCommand) -> None:
    with pytest.raises(InvalidRequestError):
        wire.encode(command)


def test_data_is_not_copied() -> None:
    data = bytes(100_000)
    parts = wire.encode_parts(wire.SegmentRead("s/t", 0, False, False, data, 7))
    assert any(part is data for part in parts)
    payload = memoryview(bytearray(b"".join(parts)))[8:]
    read = wire.decode(10, payload)
    assert isinstance(read, wire.SegmentRead)
    assert isinstance(read.data, memoryview)
    assert read.data.obj is payload.obj


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_encode_around_data_in_many_parts(parts: list[bytes]) -> None:
    data = b"".join(parts)
    head, tail = wire.encode_around(wire.SegmentRead("s/t", 4, True, False, b"", 7, 300, b"token"), len(data))
    assert head + data + tail == wire.encode(wire.SegmentRead("s/t", 4, True, False, data, 7, 300, b"token"))


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.__name__)
def test_commands_are_unchangeable(kind: Any) -> None:
    assert kind.__struct_config__.frozen


def test_optional_field_without_a_default_is_refused() -> None:
    with pytest.raises(TypeError, match=r"SealSegment\.segment may be missing on the wire but has no default"):
        Layout(wire.SealSegment, optional_from="segment")
