"""Arrow batches of the readers of a group have the events, positions and checkpoints of single events."""

from __future__ import annotations

import pyarrow as pa
import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace.client import (
    GroupStream,
    Headrace,
    IllegalStateError,
    ReaderGroup,
    ReaderGroupConfiguration,
    ScalingPolicy,
)

Row = tuple[str, str, int, int, bytes]


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With the streams `orders` (two segments) and `returns` (one), with events."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    for stream, segments in (("orders", 2), ("returns", 1)):
        headrace.admin.create_stream("shop", stream, scaling=ScalingPolicy.fixed(segments))
        with headrace.writer("shop", stream) as writer:
            events = [f"{stream} {number}".encode() for number in range(50)]
            writer.write_batch(events, [f"key {number}" for number in range(50)])
    return headrace


def create(headrace: Headrace, *streams: str) -> ReaderGroup:
    """A group that reads these streams up to their present ends."""
    reads = tuple(GroupStream("shop", stream, end=headrace.admin.stream_cut("shop", stream)) for stream in streams)
    headrace.admin.reader_groups.create("shop", "billing", ReaderGroupConfiguration(reads))
    return headrace.reader_group("shop", "billing")


def rows(table: pa.Table | pa.RecordBatch) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


def test_batches_have_the_rows_of_single_events(headrace: Headrace) -> None:
    group = create(headrace, "orders", "returns")
    with group.reader() as reader:
        single = [(event.scope, event.stream, event.segment_id, event.offset, event.event) for event in reader]
    group.reset("earliest")
    with group.reader() as reader:
        table = pa.Table.from_batches(reader.arrow_batches())
        assert reader.ended
        assert reader.read_arrow_batch() is None
    table.validate(full=True)
    assert table.schema.names == ["scope", "stream", "segment_id", "offset", "event"]
    assert sorted(rows(table)) == sorted(single)
    assert len(single) == 100


def test_batch_counts_as_processed_at_the_next_call(headrace: Headrace) -> None:
    group = create(headrace, "returns")

    def fail() -> None:
        with group.reader() as reader:
            assert reader.read_arrow_batch(timeout_s=10) is not None
            raise RuntimeError("the application fails")

    with pytest.raises(RuntimeError):
        fail()
    with group.reader() as reader:
        batch = reader.read_arrow_batch(timeout_s=10)
        assert batch is not None
        assert len(batch) == 50
    assert group.lag().bytes_unread == 0


def test_asynchronous_reader_returns_batches(headrace: Headrace) -> None:
    create(headrace, "orders")

    async def read() -> list[pa.RecordBatch]:
        async with await headrace._core.reader_group("shop", "billing") as group, await group.reader() as reader:
            return [batch async for batch in reader.arrow_batches()]

    assert sum(map(len, headrace._thread.run(read()))) == 50


def test_a_reader_has_one_form(headrace: Headrace) -> None:
    group = create(headrace, "orders", "returns")
    with group.reader() as reader:
        assert reader.read_arrow_batch(timeout_s=10) is not None
        with pytest.raises(IllegalStateError, match="another reader"):
            reader.read_batch()
    with group.reader() as reader:
        assert reader.read_batch(timeout_s=10) is not None
        with pytest.raises(IllegalStateError):
            reader.read_arrow_batch()


def test_batches_are_copied_to_another_stream(headrace: Headrace) -> None:
    headrace.admin.create_stream("shop", "copies", scaling=ScalingPolicy.fixed(1))
    group = create(headrace, "returns")
    with group.reader() as reader, headrace.writer("shop", "copies") as writer:
        for batch in reader.arrow_batches():
            writer.write_many(batch)
    with headrace.reader("shop", "copies", end=headrace.admin.stream_cut("shop", "copies")) as copies:
        assert [event.event for event in copies] == [f"returns {number}".encode() for number in range(50)]
