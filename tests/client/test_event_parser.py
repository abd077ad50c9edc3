from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.event_parser import EventAssembler, split_events
from headrace.codec.events import frame_event
from headrace.codec.wire_commands import WireFormatError


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30)), st.integers(0, 1 << 40))
def test_any_cut_of_the_bytes(events: list[bytes], cuts: list[int], offset: int) -> None:
    data = b"".join(map(frame_event, events))
    assembler = EventAssembler(offset)
    read: list[bytes] = []
    position = 0
    for cut in [*cuts, len(data) + 1]:
        read += assembler.add(memoryview(data)[position : position + cut])
        position = min(len(data), position + cut)
        assert assembler.offset + assembler.cut_off_bytes == offset + position
    assert read == events
    assert assembler.offset == offset + len(data)


@pytest.mark.parametrize("header", ["00000001 00000000", "00000000 ffffffff", "00000000 00800001"])
def test_bytes_that_are_no_events(header: str) -> None:
    data = frame_event(b"fine") + bytes.fromhex(header)
    with pytest.raises(WireFormatError, match="no event at byte 12"):
        split_events(data, 0)
    assembler = EventAssembler(0)
    for byte in data[:-1]:
        assembler.add(memoryview(bytes([byte])))
    with pytest.raises(WireFormatError):
        assembler.add(memoryview(data)[-1:])
