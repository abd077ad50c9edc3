"""Tasks: exact rows in order, small ranges together, and nothing that is paid for in each task again."""

from __future__ import annotations

import pickle
import socket
import threading
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest
from spark_store_double import SCOPE, STREAM, StoreDouble

from headrace.api.plans import Chunk
from headrace.api.segments import SegmentEndpoint
from headrace.client.ranges.range_bytes import Listing
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.client.reading import object_reads
from headrace.model.errors import HeadraceError, TruncatedError
from headrace.spark import python_workers, task_reads
from headrace.spark.engines import functions
from headrace.spark.options import ReadOptions, read_options
from headrace.spark.partitions import Partition
from headrace.spark.stream_access import PlannedRange
from headrace.spark.task_reads import RANGES_AT_ONCE, read_partition

EVENT = b"0123456789ab"
FRAME_BYTES = len(EVENT) + 8


@pytest.fixture
def options(store: StoreDouble) -> ReadOptions:
    return read_options({"controller": store.url, "scope": SCOPE, "stream": STREAM, "patience_s": "1"})


def small_ranges(store: StoreDouble, count: int) -> Partition:
    """Ranges of ten events each, of segment 0."""
    for _ in range(count * 10):
        store.stream.append(0.1, EVENT)
    size = 10 * FRAME_BYTES
    return tuple(planned(number * size, (number + 1) * size) for number in range(count))


def planned(start: int, end: int) -> PlannedRange:
    return PlannedRange(SegmentRange(SCOPE, STREAM, 0, 0.0, 0.5, start, end))


def offsets(options: ReadOptions, partition: Partition) -> list[int]:
    return [offset for batch in read_partition(options, partition) for offset in batch.column("offset").to_pylist()]


def test_rows_keep_the_order_of_the_ranges(store: StoreDouble, options: ReadOptions) -> None:
    parts = small_ranges(store, 20)
    assert offsets(options, parts) == list(range(0, 200 * FRAME_BYTES, FRAME_BYTES))
    assert offsets(options, ()) == []


@pytest.mark.parametrize("limit", [0, 15 * FRAME_BYTES])
def test_large_and_small_ranges_keep_their_order(
    store: StoreDouble, options: ReadOptions, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(task_reads, "SMALL_RANGE_BYTES", limit)
    first, second, third, fourth = small_ranges(store, 4)
    joined = planned(second.part.start, third.part.end)
    assert offsets(options, (first, joined, fourth)) == list(range(0, 40 * FRAME_BYTES, FRAME_BYTES))


def test_small_ranges_are_fetched_together(
    store: StoreDouble, options: ReadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(RANGES_AT_ONCE)
    fetch = task_reads._whole

    def wait_for_others(*arguments: Any) -> bytes:
        together.wait(timeout=30)
        return fetch(*arguments)

    monkeypatch.setattr(task_reads, "_whole", wait_for_others)
    assert len(offsets(options, small_ranges(store, 2 * RANGES_AT_ONCE))) == 20 * RANGES_AT_ONCE


def test_clients_and_connections_outlive_tasks(
    store: StoreDouble, options: ReadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.stored = lambda segment: 0
    (part,) = small_ranges(store, 1)
    offsets(options, (part,))
    made: list[str] = []
    for owner, name in ((python_workers, "Headrace"), (task_reads, "StreamRanges"), (object_reads, "_connect")):
        monkeypatch.setattr(owner, name, lambda *arguments, name=name, **named: made.append(name))
    for _ in range(5):
        offsets(options, (part,))
    assert made == []
    assert store.requests["Hello"] <= 1


def test_connections_that_were_idle_for_long_are_not_used(store: StoreDouble, options: ReadOptions) -> None:
    now_s = 0.0
    reads = task_reads.WorkerReads(options, monotonic_s=lambda: now_s)
    (part,) = small_ranges(store, 1)
    list(reads.windows(part))
    ((_, kept),) = reads._idle[SCOPE, STREAM]
    now_s = task_reads.IDLE_S_MAX + 1
    list(reads.windows(part))
    ((_, fresh),) = reads._idle[SCOPE, STREAM]
    assert fresh is not kept
    assert kept._reads.closed
    reads.close()
    assert fresh._reads.closed


def test_a_failed_connection_is_not_used_again(store: StoreDouble, options: ReadOptions) -> None:
    parts = small_ranges(store, 2)
    store.stored = lambda segment: 0
    store.refuse("ReadSegment", 0, times=1000)
    with pytest.raises(HeadraceError):
        offsets(options, parts)
    store.forgive()
    assert len(offsets(options, parts)) == 20


def linked(store: StoreDouble, length: int, expires_at_ms: int) -> Chunk:
    """The first bytes of segment 0."""
    return Chunk(0, length, f"{store.url}/object/{STREAM}/0", {"Range": f"bytes=0-{length - 1}"}, expires_at_ms)


def hinted(store: StoreDouble, port: int, expires_at_ms: int) -> Partition:
    """A range whose first half is in S3, with a link and an endpoint from the plan."""
    (planned,) = small_ranges(store, 1)
    store.stored = lambda segment: 5 * FRAME_BYTES
    chunk = linked(store, 5 * FRAME_BYTES, expires_at_ms)
    endpoint = SegmentEndpoint("127.0.0.1", port, "local", 0, 1)
    return (PlannedRange(planned.part, Listing((chunk,), 5 * FRAME_BYTES), endpoint),)


def test_what_is_planned_is_not_asked_for_again(store: StoreDouble, options: ReadOptions) -> None:
    partition = hinted(store, store.wire_port, 2**53)
    assert len(offsets(options, partition)) == 10
    assert store.requests == {"object": 1, "Hello": 1, "ReadSegment": 1}


def test_one_request_gives_the_links_of_all_ranges(store: StoreDouble, options: ReadOptions) -> None:
    """Manifests of Spark 3.5 have none."""
    parts = small_ranges(store, 20)
    assert offsets(options, parts) == list(range(0, 200 * FRAME_BYTES, FRAME_BYTES))
    assert (store.requests["range-plans"], store.linked_ranges, store.requests["chunks"]) == (1, 20, 0)
    (fresh,) = hinted(store, store.wire_port, 2**53)
    offsets(options, (fresh, fresh))
    assert store.requests["range-plans"] == 1


def test_expired_links_are_replaced_together(store: StoreDouble, options: ReadOptions) -> None:
    parts = tuple(
        replace(planned, listing=Listing((linked(store, FRAME_BYTES, 1000),), FRAME_BYTES))
        for planned in small_ranges(store, 3)
    )
    assert len(offsets(options, parts)) == 30
    assert (store.requests["range-plans"], store.requests["chunks"]) == (1, 0)


def test_no_links_are_asked_for_without_need(store: StoreDouble, options: ReadOptions) -> None:
    parts = small_ranges(store, 3)
    assert len(offsets(replace(options, read_history_from="segment_store"), parts)) == 30
    assert len(offsets(options, parts[:1])) == 10
    assert (store.requests["range-plans"], store.requests["chunks"]) == (0, 1)


def test_a_truncated_range_does_not_hide_the_others(store: StoreDouble, options: ReadOptions) -> None:
    """The controller plans all ranges of a request or none, and the error of the read says what is lost."""
    parts = small_ranges(store, 3)
    store.stream.truncate({0: 5 * FRAME_BYTES, 1: 0})
    kept = offsets(replace(options, on_truncation="skip"), parts)
    assert kept == list(range(5 * FRAME_BYTES, 30 * FRAME_BYTES, FRAME_BYTES))
    with pytest.raises(TruncatedError, match="lost"):
        offsets(options, parts)


def test_links_are_asked_for_one_by_one_if_not_together(store: StoreDouble, options: ReadOptions) -> None:
    parts = small_ranges(store, 3)
    store.refuse("range-plans", 503, times=1000)
    assert len(offsets(options, parts)) == 30
    assert store.requests["chunks"] == 3


@pytest.mark.parametrize("outdated", ["link expired", "link refused", "store moved"])
def test_an_outdated_plan_is_replaced(store: StoreDouble, options: ReadOptions, outdated: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1] if outdated == "store moved" else store.wire_port
        partition = hinted(store, port, 1000 if outdated == "link expired" else 2**53)
        if outdated == "link refused":
            store.refuse("object", 403)
        assert len(offsets(options, partition)) == 10
    assert store.requests["chunks"] == (0 if outdated == "store moved" else 2)
    assert store.requests["endpoint"] == (1 if outdated == "store moved" else 0)


def test_a_task_of_a_batch_read_loads_its_own_plan_only(store: StoreDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function of the tasks has the plans of all of them, with a link for each range."""
    for number in range(200):
        store.stream.append(number % 2 / 2, bytes(64 * 1024))
    made: list[tuple[functions.Read, int]] = []
    monkeypatch.setattr(functions, "_numbered", lambda spark, read, parts, ddl: made.append((read, parts)))
    where = {"controller": store.url, "scope": SCOPE, "stream": STREAM, "parallelism": "1", "columns": "offset"}
    functions.read_batch(cast(Any, None), where | {"max_partition_bytes": "100000"})
    ((read, parts),) = made
    assert parts > 20
    loaded: list[object] = []
    restore = PlannedRange.__setstate__  # type: ignore[attr-defined]

    def counted(planned: PlannedRange, state: object) -> None:
        loaded.append(planned)
        restore(planned, state)

    monkeypatch.setattr(PlannedRange, "__setstate__", counted)
    task: functions.Read = pickle.loads(pickle.dumps(read))
    assert sum(batch.num_rows for batch in task([pa.record_batch({"id": [3]})])) >= 1
    assert len(loaded) == 1


BAD_TEXT = b"\xe4bc"
REASON = "it is not UTF-8: invalid continuation byte at byte 0"


@pytest.fixture
def texts(store: StoreDouble) -> Partition:
    events = (b"one", BAD_TEXT, "zwölf".encode(), BAD_TEXT)
    for event in events:
        store.stream.append(0.1, event)
    return (planned(0, sum(len(event) + 8 for event in events)),)


@pytest.mark.parametrize(
    ("on_bad_record", "rows"),
    [
        ("skip", [(0, "one"), (22, "zwölf")]),
        (
            "column",
            [
                (0, "one", None, None),
                (11, None, BAD_TEXT, REASON),
                (22, "zwölf", None, None),
                (36, None, BAD_TEXT, REASON),
            ],
        ),
    ],
)
def test_text_that_is_not_utf8_does_not_stop_the_read(
    options: ReadOptions, texts: Partition, on_bad_record: str, rows: list[tuple[object, ...]]
) -> None:
    where = {"controller": options.controller, "scope": SCOPE, "stream": STREAM, "event_format": "text"}
    given = read_options(where | {"on_bad_record": on_bad_record, "columns": "offset,event"})
    batches = list(read_partition(given, texts))
    assert [
        row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ] == rows
    names = {name for batch in batches for name in batch.schema.names}
    assert names == {name for name, _ in given.column_types()}


def test_text_that_is_not_utf8_fails_the_read_by_default(options: ReadOptions, texts: Partition) -> None:
    where = {"controller": options.controller, "scope": SCOPE, "stream": STREAM, "event_format": "text"}
    with pytest.raises(HeadraceError, match=r"event at offset 11 is not UTF-8 text.*on_bad_record=column"):
        list(read_partition(read_options(where), texts))
