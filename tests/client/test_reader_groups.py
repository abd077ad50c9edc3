"""Reader groups over everything real but AWS: the client's administration of them."""

from __future__ import annotations

import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace.client import (
    GroupStream,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ReaderGroupConfiguration,
    RetentionMode,
    ScalingPolicy,
)


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With the streams `orders` and `returns`. The requests on reader groups are processed."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    for stream in ("orders", "returns"):
        headrace.admin.create_stream("shop", stream, scaling=ScalingPolicy.fixed(1))
    return headrace


def test_the_life_of_a_reader_group(headrace: Headrace) -> None:
    groups = headrace.admin.reader_groups
    with headrace.writer("shop", "orders") as writer:
        writer.write(b"an order")
    tail = headrace.admin.stream_cut("shop", "orders")
    reads = ReaderGroupConfiguration((GroupStream("shop", "orders", start=tail),), RetentionMode.MANUAL)
    created = groups.create("shop", "billing", reads)
    assert (created.state, created.generation, created.configuration) == ("ACTIVE", 0, reads)
    assert groups.create("shop", "billing", reads, group_id="7c9e6679-7425-40de-944b-e07fc1f90ae7") == created
    assert groups.get("shop", "billing") == created
    assert groups.list("shop") == ["billing"]
    both = ReaderGroupConfiguration((GroupStream("shop", "orders"), GroupStream("shop", "returns")))
    updated = groups.update(created, both)
    assert (updated.generation, updated.configuration) == (1, both)
    with pytest.raises(IllegalStateError) as stale:
        groups.reset(created)
    assert stale.value.specific_code == "reader_group_mismatch"
    reset = groups.reset(updated)
    assert (reset.generation, reset.state) == (2, "ACTIVE")
    with pytest.raises(IllegalStateError):
        headrace.admin.delete_scope("shop")
    groups.delete(reset)
    with pytest.raises(NotFoundError):
        groups.get("shop", "billing")
    assert groups.list("shop") == []


def test_requests_that_are_refused(headrace: Headrace) -> None:
    groups = headrace.admin.reader_groups
    with pytest.raises(NotFoundError) as missing:
        groups.create("shop", "billing", ReaderGroupConfiguration((GroupStream("shop", "nowhere"),)))
    assert missing.value.specific_code == "stream_not_found"
    reads = ReaderGroupConfiguration((GroupStream("shop", "orders"),))
    for name, group_id in (("a/b", None), ("billing", "7")):
        with pytest.raises(InvalidRequestError):
            groups.create("shop", name, reads, group_id=group_id)
    assert groups.list("shop") == []
