"""Arrow batches have the events of a reader of single events, from any position, over scales and truncations."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Literal

import httpx
import pyarrow as pa
import pytest
from scripted_cluster import Cluster

from headrace.client import (
    AsyncHeadrace,
    CorruptError,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    ReaderOptions,
    StreamCut,
    TruncatedError,
    WriterOptions,
)
from headrace.client.reading import event_reader

Make = Callable[[int], Cluster]
EVERYTHING = {f"k{key}": list(range(90)) for key in range(10)}


def _by_key(events: list[bytes]) -> dict[str, list[int]]:
    numbers_by_key: dict[str, list[int]] = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        numbers_by_key[key].append(int(number))
    return dict(numbers_by_key)


def _fill(cluster: Cluster, headrace: Headrace) -> None:
    with headrace.writer("s", "t", WriterOptions(block_bytes=300, buffer_bytes=50_000)) as writer:
        for number in range(90):
            writer.write_many([f"k{key}:{number}".encode() for key in range(10)], [f"k{key}" for key in range(10)])
            if number == 30:
                cluster.scale([0], [(0.0, 0.25), (0.25, 0.5)])
            if number == 60:
                left, middle = (identifier for identifier in cluster.segments if identifier >> 32 == 1)
                cluster.scale([left, middle, 1], [(0.0, 0.4), (0.4, 1.0)])
    cluster.seal_stream()


def _rows(batches: list[pa.RecordBatch]) -> list[tuple[int, int, bytes]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_batches_have_the_rows_of_single_events(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        _fill(cluster, headrace)
        with headrace.reader("s", "t") as reader:
            single = [(read.segment_id, read.offset, read.event) for read in reader]
            end = reader.position
        with headrace.reader("s", "t") as reader:
            batches = list(reader.arrow_batches())
            assert reader.ended
            assert reader.position == end
            assert reader.read_arrow_batch() is None
    assert sorted(_rows(batches)) == sorted(single)
    assert _by_key([event for _, _, event in _rows(batches)]) == EVERYTHING
    for batch in batches:
        batch.validate(full=True)
        assert [str(kind) for kind in batch.schema.types] == ["int64", "int64", "large_binary"]
        assert batch.schema.names == ["segment_id", "offset", "event"]
        assert len(set(batch["segment_id"].to_pylist())) == 1


def test_continuing_at_the_position_repeats_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 40 bytes cut events at any place."""
    monkeypatch.setattr(event_reader, "WINDOW_BYTES_MIN", 1)
    monkeypatch.setattr(event_reader, "WINDOW_BYTES_MAX", 40)
    events: list[bytes] = []
    start: StreamCut | Literal["earliest"] = "earliest"
    with cluster.client() as headrace:
        _fill(cluster, headrace)
        ended = False
        while not ended:
            with headrace.reader("s", "t", start=start) as reader:
                for _, batch in zip(range(7), reader.arrow_batches(), strict=False):
                    events += batch["event"].to_pylist()
                start, ended = reader.position, reader.ended
    assert _by_key(events) == EVERYTHING


def test_asynchronous_batches_up_to_a_cut(cluster: Cluster) -> None:
    async def read() -> list[pa.RecordBatch]:
        transport = httpx.MockTransport(cluster.handle)
        async with AsyncHeadrace("http://controller", transport=transport) as headrace:
            tail = await headrace.admin.stream_cut("s", "t", at="latest")
            cluster.put(0, b"behind the cut")
            async with await headrace.reader("s", "t", end=tail) as reader:
                return [batch async for batch in reader.arrow_batches()]

    cluster.put(0, b"", b"a", b"bb")
    cluster.put(1, b"x" * 100_000)
    assert sorted(_rows(asyncio.run(read()))) == [(0, 0, b""), (0, 8, b"a"), (0, 17, b"bb"), (1, 0, b"x" * 100_000)]


def test_at_the_tail_a_batch_is_waited_for(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.reader("s", "t", start="latest") as reader:
        assert reader.read_arrow_batch(timeout_s=0.05) is None
        cluster.put(1, b"new")
        batch = reader.read_arrow_batch(timeout_s=30)
        assert batch is not None
        assert _rows([batch]) == [(1, 0, b"new")]


@pytest.mark.parametrize("on_truncation", ["error", "skip"])
def test_truncation_under_a_reader_of_batches(cluster: Cluster, on_truncation: Literal["error", "skip"]) -> None:
    cluster.put(0, b"gone", b"kept")
    cluster.seal_stream()
    with cluster.client() as headrace:
        head = headrace.admin.stream_cut("s", "t", at="earliest")
        cluster.segments[0].start = 12
        options = ReaderOptions(on_truncation=on_truncation)
        with headrace.reader("s", "t", start=head, options=options) as reader:
            if on_truncation == "error":
                with pytest.raises(TruncatedError):
                    list(reader.arrow_batches())
            else:
                assert _rows(list(reader.arrow_batches())) == [(0, 12, b"kept")]


def test_bytes_that_are_no_events_are_refused(cluster: Cluster) -> None:
    cluster.segments[1].data += b"these are not events at all"
    cluster.seal_stream()
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        with pytest.raises(CorruptError) as caught:
            list(reader.arrow_batches())
        assert caught.value.specific_code == "not_an_event"


def test_a_cut_inside_an_event_is_refused(cluster: Cluster) -> None:
    cluster.put(1, b"an event")
    with cluster.client() as headrace:
        inside = StreamCut.of("s", "t", {0: 0, 1: 12})
        with headrace.reader("s", "t", end=inside) as reader, pytest.raises(CorruptError):
            list(reader.arrow_batches())


def test_a_reader_has_one_form(cluster: Cluster) -> None:
    cluster.put(1, b"a", b"b")
    cluster.seal_stream()
    with cluster.client() as headrace:
        with headrace.reader("s", "t") as reader:
            assert next(iter(reader)).event == b"a"
            with pytest.raises(IllegalStateError, match="open another reader at the `position`"):
                reader.read_arrow_batch()
            position = reader.position
        with headrace.reader("s", "t", start=position) as reader:
            assert _rows(list(reader.arrow_batches())) == [(1, 9, b"b")]
            with pytest.raises(IllegalStateError):
                reader.read_batch()


def test_batches_are_copied_to_another_stream(make_cluster: Make) -> None:
    source, target = make_cluster(1), make_cluster(1)
    source.put(0, *(b"%d" % number for number in range(1_000)))
    source.seal_stream()
    with source.client() as reading, target.client() as writing, writing.writer("s", "t") as writer:
        for batch in reading.reader("s", "t").arrow_batches():
            writer.write_many(batch)
    assert target.events(0) == source.events(0)


def test_without_arrow_reading_says_what_to_install(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("headrace.client.reading.arrow_batches", "headrace.codec.event_columns"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        with pytest.raises(InvalidRequestError, match=r"read_arrow_batch needs .*install headrace\[arrow\]"):
            reader.read_arrow_batch()
        cluster.put(0, b"still works")
        assert next(iter(reader)).event == b"still works"
