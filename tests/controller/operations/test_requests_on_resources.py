"""Requests on different kinds of resources have separate intents and messages, and a workflow each."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace import topology
from headrace.controller.engine import RequestProcessor
from headrace.controller.ticks.resend_intents import IntentSweep
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.metadata.intent import Intent, create_intent_write, delete_intent_write, intent_key
from headrace.metadata.request_messages import parse_request_message, request_message_body, send_intent
from headrace.model.dead_letters import Cause, DeadLetterStatus, Delivery
from headrace.model.errors import InvalidRequestError
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind, scoped_resource_name

GROUP_REQUEST = PendingRequest(RequestKind.CREATE_READER_GROUP, "id-0")
STREAM_REQUEST = PendingRequest(RequestKind.SEAL_STREAM, "id-0")
GROUP_MESSAGE = {"kind": "create_reader_group", "scope": "s", "reader-group": "t", "request": "id-0"}


def _lost(world: StreamWorld, *requests: PendingRequest) -> None:
    """Intents on the name `s/t` whose messages never arrived."""
    world.bare_store.write(
        *(create_intent_write(Intent("s", "t", request, world.clock.now_ms())) for request in requests)
    )
    world.clock.advance(30_001)


def _sweep(world: StreamWorld, queues: Any) -> int:
    buckets = range(topology.BUCKET_COUNT)
    return sum(IntentSweep(world.store, queues, world.clock, 30_000).run(bucket)[0] for bucket in buckets)


@pytest.mark.parametrize("kind", RequestKind)
def test_a_message_of_every_kind_comes_back(kind: RequestKind):
    intent = Intent("s", "" if kind.resource is ResourceKind.SCOPE else "t", PendingRequest(kind, "id-1"), 5)
    assert parse_request_message(request_message_body(intent)) == (intent.scope, intent.name, intent.request)


@pytest.mark.parametrize(
    "body",
    [
        {**GROUP_MESSAGE, "stream": "t"},
        {key if key != "reader-group" else "stream": text for key, text in GROUP_MESSAGE.items()},
        {**GROUP_MESSAGE, "reader-group": "a/b"},
        {**GROUP_MESSAGE, "reader-group": ""},
    ],
)
def test_message_names_only_its_own_resource(body: dict[str, str]):
    with pytest.raises(InvalidRequestError):
        parse_request_message(body)


def test_a_scope_goes_by_its_own_name():
    assert scoped_resource_name(ResourceKind.SCOPE, "s", "") == "s"
    assert scoped_resource_name(ResourceKind.KEY_VALUE_TABLE, "s", "t") == "s/t"


def test_resources_of_one_name_have_separate_intents(world: StreamWorld):
    assert (
        len(
            {intent_key("s", "t", resource) for resource in ResourceKind if resource is not ResourceKind.SCOPE}
            | {intent_key("s", "t")}
        )
        == 3
    )
    _lost(world, STREAM_REQUEST, GROUP_REQUEST)
    world.bare_store.write(delete_intent_write(ResourceKind.STREAM, "s", "t"))
    assert world.bare_store.get(intent_key("s", "t")) is None
    assert world.bare_store.get(intent_key("s", "t", ResourceKind.READER_GROUP)) is not None


def test_messages_of_one_name_are_not_taken_for_each_other(world: StreamWorld):
    for request in (STREAM_REQUEST, GROUP_REQUEST):
        send_intent(world.queue, Intent("s", "t", request, 5))
    assert {message.body["kind"] for message in world.bare_queue.receive(10)} == {"seal_stream", "create_reader_group"}


def test_sweeper_sends_to_the_queue_of_the_resource_kind(world: StreamWorld):
    other = StreamWorld()
    _lost(world, STREAM_REQUEST, GROUP_REQUEST)
    assert _sweep(world, dict.fromkeys(ResourceKind, world.queue) | {ResourceKind.READER_GROUP: other.queue}) == 2
    assert [message.body["kind"] for message in world.bare_queue.receive(10)] == ["seal_stream"]
    assert [message.body for message in other.bare_queue.receive(10)] == [GROUP_MESSAGE]


def test_a_kind_without_an_operation_is_rejected(world: StreamWorld):
    tools = world.tools()
    only_groups = {RequestKind.CREATE_READER_GROUP: tools.operations[RequestKind.CREATE_READER_GROUP]}
    processor = RequestProcessor(replace(tools, operations=only_groups))
    processor.process(GROUP_MESSAGE)
    with pytest.raises(InvalidRequestError):
        processor.process({"kind": "seal_stream", "scope": "s", "stream": "t", "request": "id-0"})


def test_request_is_stuck_while_its_intent_exists(world: StreamWorld):
    _lost(world, GROUP_REQUEST)
    letter = _write_letter(world)
    assert (letter.status, letter.subject, letter.kind) == (DeadLetterStatus.STUCK, "s/t", "create_reader_group")
    assert world.dead_letters.get_letter(letter.letter_id) == letter
    world.bare_store.write(delete_intent_write(ResourceKind.READER_GROUP, "s", "t"))
    assert world.dead_letters.get_letter(letter.letter_id).status is DeadLetterStatus.DONE
    assert _write_letter(world) is None


def _write_letter(world: StreamWorld) -> Any:
    delivery = Delivery(topology.REQUESTS_QUEUE.name, "s/t", json.dumps(GROUP_MESSAGE), 1_000, 10)
    return handle_dead_letter(
        world.store, delivery, Cause("unavailable", "no segment store answers"), world.clock.now_ms()
    )
