from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec import events
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_BYTES_MAX_LARGE
from headrace.wire import WireFormatError


def test_golden_bytes() -> None:
    assert events.frame_event(b"abc") == bytes.fromhex("00000000 00000003 616263")
    assert events.event_header(EVENT_BYTES_MAX) == bytes.fromhex("00000000 00800000")


@given(st.lists(st.binary(max_size=30)), st.data())
def test_cut_anywhere_and_continued(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(events.frame_event(payload) for payload in payloads)
    cut = data.draw(st.integers(0, len(stream)))
    first, consumed = events.iter_events(stream[:cut])
    rest, consumed_later = events.iter_events(stream[consumed:])
    assert [bytes(event) for event in [*first, *rest]] == payloads
    assert consumed + consumed_later == len(stream)


@pytest.mark.parametrize("header", ["00000001 00000000", "00000000 ffffffff", "00000000 08000001"])
def test_bytes_that_are_no_events(header: str) -> None:
    with pytest.raises(WireFormatError, match="no event at"):
        events.iter_events(bytes.fromhex(header))


def test_too_large_events() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        events.event_header(EVENT_BYTES_MAX_LARGE + 1)
    assert caught.value.specific_code == "event_too_large"


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30)), st.integers(0, 1 << 40))
def test_assembling_reads_of_any_size(payloads: list[bytes], cuts: list[int], offset: int) -> None:
    data = b"".join(map(events.frame_event, payloads))
    assembler = events.EventAssembler(offset)
    read: list[bytes] = []
    position = 0
    for cut in [*cuts, len(data) + 1]:
        read += assembler.add(memoryview(data)[position : position + cut])
        position = min(len(data), position + cut)
        assert assembler.offset + assembler.cut_off_bytes == offset + position
    assert read == payloads
    assert assembler.offset == offset + len(data)


@pytest.mark.parametrize("header", ["00000001 00000000", "00000000 ffffffff", "00000000 08000001"])
def test_an_invalid_event_is_refused_once_its_header_is_complete(header: str) -> None:
    data = events.frame_event(b"fine") + bytes.fromhex(header)
    with pytest.raises(WireFormatError, match="no event at byte 12"):
        events.split_events(data, 0)
    assembler = events.EventAssembler(0)
    for byte in data[:-1]:
        assembler.add(memoryview(bytes([byte])))
    with pytest.raises(WireFormatError):
        assembler.add(memoryview(data)[-1:])


runs_of_one_length = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2 * events.ALIKE_EVENTS_MIN)), max_size=8)


@given(runs_of_one_length, st.data())
def test_runs_of_one_length_are_split_as_single_events_are(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    lengths = [length for length, count in runs for _ in range(count)]
    payloads = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    stream = b"".join(map(events.frame_event, payloads))
    cut = data.draw(st.integers(0, len(stream)))
    first, consumed = events.split_events(stream[:cut], 0)
    rest, end = events.split_events(stream, consumed)
    assert first + rest == payloads
    assert end == len(stream)


@pytest.mark.parametrize("before", range(events.ALIKE_EVENTS_MIN - 1, 3 * events.ALIKE_EVENTS_MIN))
@pytest.mark.parametrize("header", ["00000001 00000001", "00000000 ffffffff"])
def test_an_invalid_event_after_a_run_of_one_length_is_refused(header: str, before: int) -> None:
    stream = events.frame_event(b"x") * before + bytes.fromhex(header) + events.frame_event(b"x") * 3
    with pytest.raises(WireFormatError, match=f"no event at byte {9 * before} "):
        events.split_events(stream, 0)
