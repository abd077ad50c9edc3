"""Bytes of a range from links and from the store: exact whatever fails in between, loud when it does not heal."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from object_server import FAILURES, ObjectServer, serving_object

from headrace.api.plans import Chunk
from headrace.client.ranges.range_bytes import (
    GATHERED_BYTES_MIN,
    LONGEST_WAIT_S,
    RangeBytes,
    gathered,
    one_ahead,
    read_ahead_thread,
)
from headrace.client.reading import chunk_reads
from headrace.client.reading.chunk_reads import SMALL_CHUNKS_AT_ONCE
from headrace.client.reading.object_reads import ObjectReads
from headrace.model.errors import CorruptError, UnavailableError

SEGMENT = 7
DATA = bytes(index * 7 % 251 for index in range(3000))


class Source:
    """`stored` bytes of DATA lie in tier 2, in runs of `run_bytes`; the rest only in the store."""

    def __init__(self, stored: int, run_bytes: int = 400) -> None:
        self.stored = stored
        self.run_bytes = run_bytes
        self.url = ""
        self.listings: list[tuple[int, int]] = []
        self.store_reads: list[tuple[int, int]] = []

    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        assert segment_id == SEGMENT
        self.listings.append((start, stop))
        chunks: list[Chunk] = []
        while start < min(stop, self.stored) and len(chunks) < limit:
            end = min((start // self.run_bytes + 1) * self.run_bytes, stop, self.stored)
            chunks.append(Chunk(start, end - start, self.url, {"Range": f"bytes={start}-{end - 1}"}, 0))
            start = end
        return chunks

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[bytes]:
        assert segment_id == SEGMENT
        self.store_reads.append((start, stop))
        for position in range(start, stop, 333):
            yield DATA[position : min(position + 333, stop)]


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectServer]:
    with serving_object(DATA) as server:
        yield server


REQUESTS_MAX = 100
"""Each run is a request: a whole range of the smallest runs would take thousands."""


class Waits(list[float]):
    """A clock that moves only while something waits."""

    def monotonic_s(self) -> float:
        return sum(self)


def read(
    source: Source, s3: ObjectServer, start: int, stop: int, *, use_links: bool = True, waits: Waits | None = None
) -> bytes:
    source.url = s3.url
    waits = Waits() if waits is None else waits
    with (
        closing(ObjectReads()) as objects,
        RangeBytes(
            source, objects, wait=waits.append, use_links=use_links, patience_s=60, monotonic_s=waits.monotonic_s
        ) as reader,
    ):
        return b"".join(reader.windows(SEGMENT, start, stop))


@given(st.data(), st.integers(0, len(DATA)), st.integers(1, 1000))
def test_the_bytes_are_exact_wherever_tier_two_ends(
    s3: ObjectServer, data: st.DataObject, stored: int, run_bytes: int
) -> None:
    start = data.draw(st.integers(0, len(DATA)))
    stop = data.draw(st.integers(start, min(len(DATA), start + REQUESTS_MAX * run_bytes)))
    source = Source(stored, run_bytes)
    assert read(source, s3.fail(), start, stop) == DATA[start:stop]
    assert source.store_reads == ([(max(start, stored), stop)] if stop > max(start, stored) else [])


@given(st.lists(st.sampled_from(FAILURES), max_size=6))
def test_failures_in_a_row_are_outlived(s3: ObjectServer, failures: list[str]) -> None:
    waits = Waits()
    assert read(Source(len(DATA)), s3.fail(failures), 100, 2900, waits=waits) == DATA[100:2900]
    assert s3.failures == []
    assert bool(waits) == bool(failures)
    assert len(waits) <= len(failures)
    assert all(wait > 0 for wait in waits)


@pytest.fixture
def _chunks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are streamed one after the other, as large ones are."""
    monkeypatch.setattr(chunk_reads, "SMALL_CHUNK_BYTES", 0)


@pytest.mark.usefixtures("_chunks_are_large")
def test_it_goes_on_where_it_broke_off_and_lists_anew(s3: ObjectServer) -> None:
    source = Source(len(DATA))
    assert read(source, s3.fail(["server error"]), 0, 1000) == DATA[:1000]
    assert source.listings == [(0, 1000), (0, 1000)]
    source = Source(len(DATA))
    assert read(source, s3.fail(["", "server error"]), 0, 1000) == DATA[:1000]
    assert source.listings == [(0, 1000), (400, 1000)]


@pytest.mark.usefixtures("_chunks_are_large")
def test_progress_forgives_failures(s3: ObjectServer) -> None:
    waits = Waits()
    failures = ["server error"] * 6 + [""]
    assert read(Source(len(DATA)), s3.fail(failures * 7), 0, 2800, waits=waits) == DATA[:2800]
    assert waits.monotonic_s() > 60


@pytest.mark.parametrize("failure", ["expired", "server error", "no connection"])
def test_it_gives_up_with_the_remedy_when_patience_ends(s3: ObjectServer, failure: str) -> None:
    waits = Waits()
    with pytest.raises(UnavailableError, match="read_history_from=segment_store"):
        read(Source(len(DATA)), s3.fail([failure] * 100), 0, 1000, waits=waits)
    assert 60 <= waits.monotonic_s() < 60 + 1.5 * LONGEST_WAIT_S


@pytest.mark.usefixtures("_chunks_are_large")
@pytest.mark.parametrize("failure", ["other range", "range ignored"])
def test_bytes_of_another_range_never_get_out(s3: ObjectServer, failure: str) -> None:
    assert read(Source(len(DATA)), s3.fail([failure]), 400, 1200) == DATA[400:1200]


def test_history_can_be_read_from_the_store(s3: ObjectServer) -> None:
    source = Source(len(DATA))
    assert read(source, s3.fail(), 10, 500, use_links=False) == DATA[10:500]
    assert source.listings == []


class Gap(Source):
    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        return [Chunk(start + 1, 10, "http://s3/object", {}, 0)]


class Short(Source):
    def read(self, segment_id: int, start: int, stop: int) -> Iterator[bytes]:
        yield DATA[start : stop - 1]


@pytest.mark.parametrize("source", [Gap(len(DATA)), Short(0)], ids=["gap in the listing", "store ends early"])
def test_missing_bytes_are_refused(s3: ObjectServer, source: Source) -> None:
    with pytest.raises(CorruptError):
        read(source, s3.fail(), 0, 1000)


def test_read_ahead_keeps_order_and_stays_one_ahead() -> None:
    taken: list[int] = []

    def items() -> Generator[int, None, None]:
        for number in range(5):
            taken.append(number)
            yield number

    with read_ahead_thread() as thread:
        ahead = one_ahead(items(), thread)
        assert next(ahead) == 0
        ahead.close()
        assert list(one_ahead((number for number in range(100)), thread)) == list(range(100))
    assert taken in ([0], [0, 1]), "closed: nothing more is fetched"


def test_read_ahead_passes_errors_on() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise UnavailableError("gone")

    with read_ahead_thread() as thread:
        ahead = one_ahead(items(), thread)
        assert next(ahead) == 1
        with pytest.raises(UnavailableError, match="gone"):
            next(ahead)


@given(st.lists(st.integers(1, GATHERED_BYTES_MIN), max_size=12))
def test_small_windows_are_joined(sizes: list[int]) -> None:
    windows = [bytes([index]) * size for index, size in enumerate(sizes)]
    joined = list(gathered(window for window in windows))
    assert b"".join(joined) == b"".join(windows)
    assert all(len(window) >= GATHERED_BYTES_MIN for window in joined[:-1])


def test_small_chunks_are_fetched_several_at_a_time(s3: ObjectServer) -> None:
    s3.fail().barrier = threading.Barrier(SMALL_CHUNKS_AT_ONCE)
    assert read(Source(1600), s3, 0, 1600) == DATA[:1600]
