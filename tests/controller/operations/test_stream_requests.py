"""Messages: which are understood, which are refused, and in which order the steps of each workflow run."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.controller.operations.registry import ALL_OPERATIONS
from headrace.controller.steps.segment_creation import scale_rate
from headrace.metadata.intent import Intent
from headrace.metadata.request_messages import message_body, parse_message
from headrace.metadata.sealed_segments import SealedSegment, sealed_segments_body, sealed_segments_key
from headrace.model.errors import ConflictError, CorruptError, InvalidRequestError, NotFoundError
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.model.stream_configuration import ScalingPolicy
from headrace.ports.metadata_store import Create, Key, WriteConflictError
from headrace.ports.segment_stores import SegmentScaleRate

GOOD = {"kind": "seal_stream", "scope": "s", "stream": "t", "request": "seal_stream-0-1"}


def test_the_order_of_the_steps():
    on_streams = [operation for operation in ALL_OPERATIONS if operation.kind.resource is ResourceKind.STREAM]
    assert {str(operation.kind): [step.name for step in operation.steps] for operation in on_streams} == {
        "create_stream": ["create segments", "index tags", "open"],
        "update_stream": [
            "teach the rate",
            "index added tags",
            "put in force",
            "plan growth",
            "create segments",
            "record the epoch",
            "seal replaced segments",
            "record sizes",
            "remove cold marks",
            "remove leftovers",
            "go over to the epoch",
            "unindex removed tags",
            "close",
        ],
        "truncate_stream": ["record the head", "truncate segments", "delete segments", "close"],
        "scale_stream": [
            "create segments",
            "record the epoch",
            "seal replaced segments",
            "record sizes",
            "remove cold marks",
            "remove leftovers",
            "activate the epoch",
        ],
        "commit_transactions": ["finish the batch"],
        "seal_stream": ["settle transactions", "seal segments", "record sizes", "close"],
        "delete_stream": [
            "forget transactions",
            "delete replaced segments",
            "delete last segments",
            "delete leftovers",
            "unindex tags",
            "leave the index of due retention",
            "delete remaining records",
            "forget",
        ],
    }


def test_a_good_message_is_understood():
    assert parse_message(GOOD) == ("s", "t", PendingRequest(RequestKind.SEAL_STREAM, "seal_stream-0-1"))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {**GOOD, "kind": "explode"},
        {**GOOD, "more": "x"},
        {key: GOOD[key] for key in ("kind", "scope", "stream")},
        {**GOOD, "scope": 7},
        {**GOOD, "scope": "a/b"},
        {**GOOD, "stream": ""},
        {**GOOD, "request": "x" * 201},
    ],
)
def test_anything_else_is_refused_for_good(world: StreamWorld, body: dict[str, Any]):
    before = world.everything()
    with pytest.raises(InvalidRequestError) as refused:
        world.processor.process(body)
    assert refused.value.retry == "never"
    assert world.everything() == before


def test_messages_for_what_is_not_there_are_done(world: StreamWorld):
    before = world.everything()
    world.processor.process(GOOD)
    world.create()
    assert world.streams.get_stream("s", "t").segments == 2
    world.processor.process(GOOD)
    after = {key: value for key, value in world.everything().items() if key not in before}
    assert not any(partition.startswith("requests/") for partition, _ in after)


def test_conflicts_without_end_are_given_back_to_the_queue(world: StreamWorld):
    world.create()
    world.streams.seal_stream("s", "t")
    (message,) = world.bare_queue.receive()
    world.calls.refuse("transaction", WriteConflictError("somebody else was faster", {0: None}))
    with pytest.raises(ConflictError) as error:
        world.processor.process(message.body)
    assert error.value.retry == "now"
    assert 1 < world.calls.counts["read"] < 100


def test_a_corrupt_record_is_no_reason_to_write(world: StreamWorld):
    world.create()
    world.streams.seal_stream("s", "t")
    (message,) = world.bare_queue.receive()
    record = world.bare_store._partitions["stream/s/t"].records["current"]
    record.text = record.text.replace('"SEALING"', '"MELTING"')
    before = world.everything()
    with pytest.raises(CorruptError):
        world.processor.process(message.body)
    assert world.everything() == before
    assert world.bare_store.get(Key("stream/s/t", "current")) is not None


def test_deleting_takes_more_records_than_one_transaction_holds(world: StreamWorld):
    """As after very many scales: far more blocks of sealed segments than a page or a transaction takes."""
    world.create()
    world.seal()
    for shard in range(1, 251):
        body = sealed_segments_body({shard * 400: SealedSegment(0, 1)})
        world.bare_store.write(Create(sealed_segments_key("s", "t", (shard, 0)), body))
    world.delete()
    assert [sort for partition, sort in world.everything() if partition == "stream/s/t"] == ["current"]


def test_a_segment_that_must_be_there_but_is_not_is_an_error(world: StreamWorld):
    world.create()
    world.streams.seal_stream("s", "t")
    world.bare_segment_stores.delete_segment("s/t/1.#epoch.0")
    (message,) = world.bare_queue.receive()
    with pytest.raises(NotFoundError):
        world.processor.process(message.body)


@pytest.mark.parametrize(
    ("policy", "rate"),
    [
        (ScalingPolicy.fixed(3), SegmentScaleRate(0, 0)),
        (ScalingPolicy.by_data_rate(500, 2, 1), SegmentScaleRate(1, 500)),
        (ScalingPolicy.by_event_rate(700, 2, 1), SegmentScaleRate(2, 700)),
    ],
)
def test_segments_carry_the_rate_of_their_policy(policy: ScalingPolicy, rate: SegmentScaleRate):
    assert scale_rate(policy) == rate


def test_request_ids_never_return(world: StreamWorld):
    seen: list[dict[str, str]] = []
    send = world.bare_queue.send

    def keep(*, group: str, body: Any, deduplication_id: str) -> None:
        seen.append({"id": deduplication_id, **body})
        send(group=group, body=body, deduplication_id=deduplication_id)

    world.bare_queue.send = keep
    for _ in range(3):
        for name in ("t", "u"):
            world.create(name)
            first = world.tail_ids(name)[0]
            world.scale([first], [0.0, 0.1, 0.5], name)
            world.seal(name)
            world.delete(name)
    assert len(seen) == 24
    assert len({one["id"] for one in seen}) == 24
    assert all(len(one["id"]) <= 128 for one in seen)


def test_a_message_says_what_the_intent_says(world: StreamWorld):
    intent = Intent("s", "t", PendingRequest(RequestKind.SEAL_STREAM, "seal_stream-0-1"), 5)
    assert message_body(intent) == GOOD


def test_a_batch_of_commits_comes_through_no_request_queue(world: StreamWorld):
    world.create()
    world.transactions.commit_transaction("s", "t", world.begin())
    body = {"kind": "commit_transactions", "scope": "s", "stream": "t", "request": "1"}
    with pytest.raises(InvalidRequestError, match="does not come through a request queue"):
        world.processor.process(body)
