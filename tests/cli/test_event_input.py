"""Events of files and pipes, in whatever pieces their bytes arrive."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.event_input import CountedInput, InputFormat, InputRules, RefusedRow, line_batches
from headrace.model.errors import InvalidRequestError

EVENT_BYTES_MAX = 8


class Pieces(io.BytesIO):
    """Gives `data` in pieces of these sizes, then the rest at once."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        super().__init__(data)
        self._sizes = iter(sizes)

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(next(self._sizes, size))


def _read(data: bytes, sizes: list[int], form: InputFormat) -> tuple[list[bytes], str | None]:
    """The events, and the error behind them."""
    events: list[bytes] = []
    source = CountedInput(Pieces(data, sizes))
    try:
        for batch in line_batches(source, InputRules(form, event_bytes_max=EVENT_BYTES_MAX)):
            events += batch.events
    except InvalidRequestError as error:
        return events, error.message
    assert source.bytes_read == len(data)
    return events, None


def _lines(data: bytes) -> tuple[list[bytes], str | None]:
    """The same in a plain way."""
    lines = data.split(b"\n")
    last = lines.pop()
    events = [line.removesuffix(b"\r") for line in lines] + ([last] if last else [])
    for number, event in enumerate(events, 1):
        if len(event) > EVENT_BYTES_MAX:
            return events[: number - 1], f"line {number} has more than {EVENT_BYTES_MAX} bytes"
    return events, None


@given(st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"1234567"])).map(b"".join), st.lists(st.integers(1, 5)))
def test_lines_do_not_depend_on_pieces(data: bytes, sizes: list[int]):
    assert _read(data, sizes, "lines") == _lines(data)


@given(st.lists(st.binary(max_size=EVENT_BYTES_MAX), max_size=6), st.lists(st.integers(1, 5)), st.integers(0, 7))
def test_raw_events_do_not_depend_on_pieces(events: list[bytes], sizes: list[int], cut: int):
    data = b"".join(len(event).to_bytes(4, "big") + event for event in events)
    assert _read(data, sizes, "raw") == (events, None)
    broken, error = _read(data + b"\0\0\0\7abcd"[:cut], sizes, "raw")
    assert broken == events
    assert (error is None) == (cut == 0)


@given(
    st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"1234567"]), max_size=30).map(b"".join),
    st.lists(st.integers(1, 5)),
    st.integers(1, 9),
)
def test_lines_that_are_too_long_are_left_out(data: bytes, sizes: list[int], from_line: int):
    refused: list[RefusedRow] = []
    rules = InputRules(from_line=from_line, event_bytes_max=EVENT_BYTES_MAX, refuse=refused.append)
    batches = list(line_batches(CountedInput(Pieces(data, sizes)), rules))
    lines = [line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")] if data else []
    wanted = list(enumerate(lines, 1))[from_line - 1 :]
    assert [event for batch in batches for event in batch.events] == [
        line for _, line in wanted if len(line) <= EVENT_BYTES_MAX
    ]
    assert [row.line for row in refused] == [number for number, line in wanted if len(line) > EVENT_BYTES_MAX]
    assert all(row.content and len(row.content) > EVENT_BYTES_MAX for row in refused)
    if wanted:
        assert batches[-1].next_line == len(lines) + 1


@given(st.lists(st.binary(max_size=EVENT_BYTES_MAX), max_size=6), st.integers(1, 8))
def test_raw_events_from_a_number_on(events: list[bytes], from_line: int):
    data = b"".join(len(event).to_bytes(4, "big") + event for event in events)
    batches = line_batches(CountedInput(io.BytesIO(data)), InputRules("raw", from_line=from_line))
    assert [event for batch in batches for event in batch.events] == events[from_line - 1 :]
