"""Reader groups whose names were used before, and checkpoints that no reader takes part in."""

from __future__ import annotations

import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace.client import (
    GroupStream,
    Headrace,
    NotFoundError,
    ReaderGroupConfiguration,
    ScalingPolicy,
)

EVENT = b"x" * 92
EVENT_BYTES = 100
READS = ReaderGroupConfiguration((GroupStream("shop", "orders"),), automatic_checkpoint_interval_ms=0)


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With two events in the stream `orders`. The requests on reader groups are processed."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    _create_stream(headrace)
    return headrace


def _create_stream(headrace: Headrace) -> None:
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders") as writer:
        writer.write(EVENT)
        writer.write(EVENT)


def _read_all(headrace: Headrace) -> int:
    with headrace.reader_group("shop", "billing") as group, group.reader("r1") as reader:
        batch = reader.read_batch(timeout_s=10)
        assert batch is not None
        return len(batch.events)


def test_a_group_that_is_created_again_is_usable(headrace: Headrace) -> None:
    for _ in range(3):
        created = headrace.admin.reader_groups.create("shop", "billing", READS)
        assert _read_all(headrace) == 2
        headrace.admin.reader_groups.delete(created)
        with pytest.raises(NotFoundError):
            headrace.reader_group("shop", "billing")


def test_a_group_in_a_scope_that_is_created_again(headrace: Headrace) -> None:
    headrace.admin.reader_groups.create("shop", "billing", READS)
    assert _read_all(headrace) == 2
    headrace.admin.delete_scope("shop", recursive=True)
    headrace.admin.create_scope("shop")
    _create_stream(headrace)
    headrace.admin.reader_groups.create("shop", "billing", READS)
    assert _read_all(headrace) == 2


def test_the_endpoint_of_a_segment_that_never_was(headrace: Headrace) -> None:
    assert headrace.admin.endpoint("shop", "orders", 0).port
    assert headrace.admin.watermarks.mark_segment_endpoint("shop", "orders").port
    for stream, segment in (("orders", 1), ("orders", 7 << 32), ("missing", 0)):
        with pytest.raises(NotFoundError):
            headrace.admin.endpoint("shop", stream, segment)
    with pytest.raises(NotFoundError):
        headrace.admin.watermarks.mark_segment_endpoint("shop", "missing")


def test_reset_to_a_checkpoint_without_readers(headrace: Headrace) -> None:
    headrace.admin.reader_groups.create("shop", "billing", READS)
    with headrace.reader_group("shop", "billing") as group:
        with group.reader("r1") as reader:
            batch = reader.read_batch(timeout_s=10)
            assert batch is not None
            assert len(batch.events) == 2
        (cut,) = group.checkpoint("done").cuts
        assert cut.offsets == {0: 2 * EVENT_BYTES}
        group.reset()
        assert [stream_cut.offsets for stream_cut in group.stream_cuts()] == [{0: 2 * EVENT_BYTES}]
