"""Events of files and pipes, in whatever pieces their bytes arrive."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import event_input
from headrace.cli.event_input import CountedInput, InputFormat, Keys, batches
from headrace.model.errors import InvalidRequestError

EVENT_BYTES_MAX = 8


class Pieces(io.BytesIO):
    """Gives `data` in pieces of these sizes, then the rest at once."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        super().__init__(data)
        self._sizes = iter(sizes)

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(next(self._sizes, size))


@pytest.fixture(autouse=True, scope="module")
def small_events() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_input, "EVENT_BYTES_MAX_LARGE", EVENT_BYTES_MAX)
        yield


def _read(data: bytes, sizes: list[int], form: InputFormat) -> tuple[list[bytes], str | None]:
    """The events, and the error behind them."""
    events: list[bytes] = []
    source = CountedInput(Pieces(data, sizes))
    try:
        for batch in batches(source, form, Keys()):
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
