"""Event bytes to and from Arrow: for windows of any size the same events at the same offsets, never a wrong row."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec import event_columns
from headrace.codec.event_columns import ColumnAssembler, assemble_events, frame_events, parse_events
from headrace.model.errors import CorruptError

BASE = 1_000_003


def framed(payload: bytes) -> bytes:
    return struct.pack(">ii", 0, len(payload)) + payload


def windows_of(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """`data` cut into windows whose sizes repeat in turn."""
    position, turn = 0, 0
    while position < len(data):
        yield data[position : position + sizes[turn % len(sizes)]]
        position += sizes[turn % len(sizes)]
        turn += 1


def assembled(data: bytes, sizes: list[int], stop: int | None = None) -> list[tuple[int, bytes]]:
    stop = BASE + len(data) if stop is None else stop
    return [
        (offset, event)
        for columns in assemble_events(windows_of(data, sizes), BASE, stop)
        for offset, event in zip(columns.offsets.to_pylist(), columns.events.to_pylist(), strict=True)
    ]


def expected(payloads: list[bytes]) -> list[tuple[int, bytes]]:
    rows, offset = [], BASE
    for payload in payloads:
        rows.append((offset, payload))
        offset += 8 + len(payload)
    return rows


one_size = st.integers(0, 40).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=60))
payload_lists = one_size | st.lists(st.binary(max_size=90), max_size=60)


@given(payload_lists, st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_windows_of_any_size_give_the_same_events(payloads: list[bytes], sizes: list[int]) -> None:
    data = b"".join(map(framed, payloads))
    assert assembled(data, sizes) == expected(payloads)


@given(payload_lists, st.integers(0, 120))
def test_a_cut_off_tail_is_left_over(payloads: list[bytes], missing: int) -> None:
    data = b"".join(map(framed, payloads))
    shorter = data[: max(0, len(data) - missing)]
    columns = parse_events(shorter, BASE)
    rows = list(zip(columns.offsets.to_pylist(), columns.events.to_pylist(), strict=True))
    assert rows == expected(payloads)[: len(rows)]
    rest = len(shorter) - columns.bytes_used
    taken = sum(8 + len(event) for _, event in rows)
    assert columns.bytes_used == taken
    if len(rows) < len(payloads):
        assert rest < 8 + len(payloads[len(rows)])


@pytest.mark.parametrize("payloads", [[b"abc"] * 50, [b"a", b"bc", b""] * 20], ids=["one size", "any size"])
def test_arrow_types_are_exactly_binary_and_int64(payloads: list[bytes]) -> None:
    columns = parse_events(b"".join(map(framed, payloads)), 0)
    assert (str(columns.events.type), str(columns.offsets.type)) == ("binary", "int64")
    columns.events.validate(full=True)
    assert columns.events.null_count == 0


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=20), st.data(), st.integers(1, 2**32 - 1))
def test_a_wrong_type_word_is_refused_with_its_offset(payloads: list[bytes], data: st.DataObject, word: int) -> None:
    broken = data.draw(st.integers(0, len(payloads) - 1))
    frames = [framed(payload) for payload in payloads]
    frames[broken] = struct.pack(">I", word) + frames[broken][4:]
    with pytest.raises(CorruptError) as raised:
        assembled(b"".join(frames), [64])
    assert raised.value.specific_code == "not_an_event"
    assert raised.value.details["offset"] == expected(payloads)[broken][0]


@given(payload_lists.filter(lambda payloads: sum(map(len, payloads)) > 0), st.data())
def test_a_range_that_ends_inside_an_event_is_refused(payloads: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(framed, payloads))
    boundaries = {offset - BASE for offset, _ in expected(payloads)} | {len(whole)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda offset: offset not in boundaries))
    with pytest.raises(CorruptError) as raised:
        assembled(whole[:cut], [64])
    assert raised.value.specific_code == "not_an_event_boundary"


def test_missing_bytes_are_refused() -> None:
    data = framed(b"x" * 10)
    with pytest.raises(CorruptError, match="bytes are missing"):
        assembled(data, [64], stop=BASE + 2 * len(data))


def test_an_event_larger_than_one_append_spans_many_windows() -> None:
    payloads = [b"first", bytes(range(256)) * 4096 * 17, b"last"]
    assert assembled(b"".join(map(framed, payloads)), [1024 * 1024]) == expected(payloads)


def test_an_event_length_is_bounded_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_columns, "EVENT_BYTES_READ_MAX", 100)
    with pytest.raises(CorruptError) as raised:
        assembled(framed(b"x" * 101), [50])
    assert raised.value.details["length_bytes"] == 101


@given(payload_lists, st.data())
def test_framed_columns_are_the_bytes_of_the_events(payloads: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(payloads)))
    last = data.draw(st.integers(first, len(payloads)))
    wanted = payloads[first:last]
    column = pa.array(payloads, pa.large_binary()).slice(first, last - first)
    order = None
    if data.draw(st.booleans()):
        order = np.array(data.draw(st.permutations(range(len(wanted)))), np.int64)
        wanted = [wanted[position] for position in order]
    found = frame_events(column, order)
    assert bytes(found.data) == b"".join(map(framed, wanted))
    assert found.ends.tolist() == [offset - BASE + 8 + len(event) for offset, event in expected(wanted)]


@given(payload_lists, st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(0, 60))
def test_reading_without_an_end_keeps_what_is_cut_off(payloads: list[bytes], sizes: list[int], missing: int) -> None:
    """A reader at the tail does not know where the segment ends."""
    data = b"".join(map(framed, payloads))
    data = data[: max(0, len(data) - missing)]
    assembler = ColumnAssembler(BASE)
    found = [columns for window in windows_of(data, sizes) if (columns := assembler.add(window)) is not None]
    events = [event for columns in found for event in columns.events.to_pylist()]
    assert events == payloads[: len(events)]
    assert assembler.offset == BASE + sum(8 + len(event) for event in events)
    assert assembler.offset + assembler.cut_off_bytes == BASE + len(data)
    if len(events) < len(payloads):
        assert assembler.cut_off_bytes < 8 + len(payloads[len(events)])


def test_event_length_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_columns, "EVENT_BYTES_READ_MAX", 100)
    assembler = ColumnAssembler(BASE)
    with pytest.raises(CorruptError) as raised:
        assembler.add(framed(b"x" * 101)[:20])
    assert raised.value.details == {"offset": BASE, "length_bytes": 101, "left_bytes": 100}


IMPORTS_OF_PANDAS = """
import sys

class Recorder:
    found = 0
    def find_spec(self, name, path=None, target=None):
        Recorder.found += name == "pandas"

sys.meta_path.insert(0, Recorder())
import numpy as np
import pyarrow as pa
from headrace.client.reading.arrow_batches import ArrowBatches
from headrace.codec.event_columns import frame_events
framed = [bytes(7) + bytes([size]) + bytes(size) for size in (1, 2, 3)]
batch = ArrowBatches(0, 0).add(memoryview(b"".join(framed))).events
assert ArrowBatches(0, 0).add(memoryview(framed[0] * 3)).events.num_rows == 3
frame_events(batch.column("event"), np.array([2, 1, 0]))
print(Recorder.found)
pa.array(np.zeros(1))
print(Recorder.found)
"""


def test_events_become_columns_without_pandas() -> None:
    """Its import takes longer than reading a million events. The last line shows that imports are seen."""
    done = subprocess.run([sys.executable, "-c", IMPORTS_OF_PANDAS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]
