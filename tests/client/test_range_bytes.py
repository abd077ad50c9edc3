"""Bytes of a range from links and from the store: exact whatever fails in between, loud when it does not heal."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.chunks import Chunk
from headrace.client import range_bytes
from headrace.client.range_bytes import (
    FAILURES_IN_A_ROW_MAX,
    GATHERED_BYTES_MIN,
    SMALL_CHUNKS_AT_ONCE,
    RangeBytes,
    gathered,
    one_ahead,
)
from headrace.model.errors import CorruptError, UnavailableError

SEGMENT = 7
DATA = bytes(index * 7 % 251 for index in range(3000))
FAILURES = ["expired", "gone", "server error", "cut off", "other range", "range ignored", "no connection"]


class Source:
    """`stored` bytes of DATA lie in tier 2, in runs of `run_bytes`; the rest only in the store."""

    def __init__(self, stored: int, run_bytes: int = 400) -> None:
        self.stored = stored
        self.run_bytes = run_bytes
        self.listings: list[tuple[int, int]] = []
        self.store_reads: list[tuple[int, int]] = []

    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        assert segment_id == SEGMENT
        self.listings.append((start, stop))
        found: list[Chunk] = []
        while start < min(stop, self.stored) and len(found) < limit:
            end = min((start // self.run_bytes + 1) * self.run_bytes, stop, self.stored)
            found.append(Chunk(start, end - start, "http://s3/object", {"Range": f"bytes={start}-{end - 1}"}, 0))
            start = end
        return found

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[bytes]:
        assert segment_id == SEGMENT
        self.store_reads.append((start, stop))
        for position in range(start, stop, 333):
            yield DATA[position : min(position + 333, stop)]


class S3:
    """Fails as told, once per entry, then serves ranges."""

    def __init__(self, failures: Sequence[str] = ()) -> None:
        self.failures = list(failures)
        self.waits: list[float] = []

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        data = DATA[first : last + 1]
        length = len(data)
        failure = self.failures.pop(0) if self.failures else None
        if failure == "no connection":
            raise httpx.ConnectError("refused")
        statuses = {"expired": 403, "gone": 404, "server error": 503}
        if failure in statuses:
            return httpx.Response(statuses[failure])
        if failure == "cut off":
            data = data[: len(data) // 2]
        if failure == "other range":
            data, length = data + b"?", length + 1
        if failure == "range ignored":
            return httpx.Response(200, content=DATA)
        return httpx.Response(206, headers={"content-length": str(length)}, stream=httpx.ByteStream(data))


def read(source: Source, s3: S3, start: int, stop: int, *, use_links: bool = True) -> bytes:
    with RangeBytes(source, s3.client(), wait=s3.waits.append, use_links=use_links) as reader:
        return b"".join(reader.windows(SEGMENT, start, stop))


@given(st.data(), st.integers(0, len(DATA)), st.integers(1, 1000))
def test_the_bytes_are_exact_wherever_tier_two_ends(data: st.DataObject, stored: int, run_bytes: int) -> None:
    start = data.draw(st.integers(0, len(DATA)))
    stop = data.draw(st.integers(start, len(DATA)))
    source = Source(stored, run_bytes)
    assert read(source, S3(), start, stop) == DATA[start:stop]
    assert source.store_reads == ([(max(start, stored), stop)] if stop > max(start, stored) else [])


@given(st.lists(st.sampled_from(FAILURES), max_size=FAILURES_IN_A_ROW_MAX - 1))
def test_failures_in_a_row_are_outlived(failures: list[str]) -> None:
    s3 = S3(failures)
    assert read(Source(len(DATA)), s3, 100, 2900) == DATA[100:2900]
    assert s3.failures == []
    assert bool(s3.waits) == bool(failures)
    assert len(s3.waits) <= len(failures)
    assert all(wait > 0 for wait in s3.waits)


@pytest.fixture
def _chunks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are streamed one after the other, as large ones are."""
    monkeypatch.setattr(range_bytes, "SMALL_CHUNK_BYTES", 0)


@pytest.mark.usefixtures("_chunks_are_large")
def test_it_goes_on_where_it_broke_off_and_lists_anew() -> None:
    source = Source(len(DATA))
    assert read(source, S3(["cut off"]), 0, 1000) == DATA[:1000]
    assert source.listings == [(0, 1000), (200, 1000)]


@pytest.mark.usefixtures("_chunks_are_large")
def test_progress_forgives_failures() -> None:
    failures = ["cut off"] * 8
    source = Source(len(DATA), run_bytes=len(DATA))
    assert read(source, S3(failures), 0, 2900) == DATA[:2900]


@pytest.mark.parametrize("failure", ["expired", "server error", "no connection"])
def test_it_gives_up_with_the_remedy(failure: str) -> None:
    s3 = S3([failure] * FAILURES_IN_A_ROW_MAX * SMALL_CHUNKS_AT_ONCE)
    with pytest.raises(UnavailableError, match="read_history_from=segment_store"):
        read(Source(len(DATA)), s3, 0, 1000)
    assert len(s3.waits) == FAILURES_IN_A_ROW_MAX - 1


@pytest.mark.usefixtures("_chunks_are_large")
@pytest.mark.parametrize("failure", ["other range", "range ignored"])
def test_bytes_of_another_range_never_get_out(failure: str) -> None:
    assert read(Source(len(DATA)), S3([failure]), 400, 1200) == DATA[400:1200]


def test_history_can_be_read_from_the_store() -> None:
    source = Source(len(DATA))
    assert read(source, S3(), 10, 500, use_links=False) == DATA[10:500]
    assert source.listings == []


class Gap(Source):
    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        return [Chunk(start + 1, 10, "http://s3/object", {}, 0)]


class Short(Source):
    def read(self, segment_id: int, start: int, stop: int) -> Iterator[bytes]:
        yield DATA[start : stop - 1]


@pytest.mark.parametrize("source", [Gap(len(DATA)), Short(0)], ids=["gap in the listing", "store ends early"])
def test_missing_bytes_are_refused(source: Source) -> None:
    with pytest.raises(CorruptError):
        read(source, S3(), 0, 1000)


def test_read_ahead_keeps_order_and_stays_one_ahead() -> None:
    taken: list[int] = []

    def items() -> Generator[int, None, None]:
        for number in range(5):
            taken.append(number)
            yield number

    ahead = one_ahead(items())
    assert next(ahead) == 0
    ahead.close()
    assert taken in ([0], [0, 1]), "closed: nothing more is fetched"
    assert list(one_ahead(number for number in range(100))) == list(range(100))


def test_read_ahead_passes_errors_on() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise UnavailableError("gone")

    ahead = one_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(UnavailableError, match="gone"):
        next(ahead)


@given(st.lists(st.integers(1, GATHERED_BYTES_MIN), max_size=12))
def test_small_windows_are_joined(sizes: list[int]) -> None:
    windows = [bytes([index]) * size for index, size in enumerate(sizes)]
    joined = list(gathered(window for window in windows))
    assert b"".join(joined) == b"".join(windows)
    assert all(len(window) >= GATHERED_BYTES_MIN for window in joined[:-1])


def test_small_chunks_are_fetched_several_at_a_time() -> None:
    together = threading.Barrier(SMALL_CHUNKS_AT_ONCE)

    class Waiting(S3):
        def handle(self, request: httpx.Request) -> httpx.Response:
            together.wait(timeout=30)
            return super().handle(request)

    assert read(Source(1600), Waiting(), 0, 1600) == DATA[:1600]
