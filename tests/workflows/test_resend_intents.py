"""The sweeper: a message that got lost is sent again, within bounds, and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import topology
from headrace.adapters.memory.request_queue import MemoryRequestQueue
from headrace.codec.records.intent_record import Intent, intent_body, intents_partition
from headrace.model.buckets import bucket_of_stream
from headrace.model.errors import UnavailableError
from headrace.model.requests import Noun, PendingRequest, RequestKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.ports.metadata_store import Create, Key
from headrace.workflows.resend_intents import INTENTS_SENT_PER_TICK_MAX, resend_intents

OLDER_THAN_MS = 30_000
BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)


def _sweep(world: Any, bucket: int = BUCKET) -> int:
    return resend_intents(world.store, world.queues, world.clock, bucket, OLDER_THAN_MS)


def _lose_the_message(world: Any) -> None:
    world.queue.is_down = True
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    world.queue.is_down = False


def test_a_lost_message_is_sent_again_once_it_is_old(world: Any):
    _lose_the_message(world)
    world.clock.advance(OLDER_THAN_MS)
    assert _sweep(world) == 0
    world.clock.advance(1)
    assert [_sweep(world, bucket) for bucket in range(topology.BUCKET_COUNT) if bucket != BUCKET] == [0] * 7
    before = world.everything()
    assert _sweep(world) == 1
    assert world.everything() == before
    (message,) = world.bare_queue.receive()
    assert message.group == "s/t"
    assert message.body == {"kind": "create_stream", "scope": "s", "stream": "t", "request": message.body["request"]}
    world.processor.process(message.body)
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert _sweep(world) == 0


def test_sending_what_is_queued_anyway_is_dropped_by_the_queue(world: Any):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    world.clock.advance(OLDER_THAN_MS + 1)
    assert _sweep(world) == 1
    assert world.drain() == 1


def test_a_queue_that_is_down_is_an_error_of_the_tick(world: Any):
    _lose_the_message(world)
    world.clock.advance(OLDER_THAN_MS + 1)
    world.queue.is_down = True
    with pytest.raises(UnavailableError):
        _sweep(world)


def test_one_tick_is_bounded_and_ticks_take_turns(world: Any):
    stuck = 3 * INTENTS_SENT_PER_TICK_MAX + 1
    for index in range(stuck):
        request = PendingRequest(RequestKind.SEAL_STREAM, f"seal_stream-0-{index}")
        intent = Intent("s", f"stuck-{index:04d}", request, world.clock.now_ms())
        key = Key(intents_partition(BUCKET), intent.scoped_name)
        world.bare_store.write(Create(key, intent_body(intent)))
    world.clock.advance(OLDER_THAN_MS + 1)
    sent: set[str] = set()
    for _ in range(40):
        queue = MemoryRequestQueue()
        queues = dict.fromkeys(Noun, queue)
        assert resend_intents(world.store, queues, world.clock, BUCKET, OLDER_THAN_MS) == INTENTS_SENT_PER_TICK_MAX
        sent |= {message.body["stream"] for message in queue.receive(stuck)}
        world.clock.advance(10_000)
    assert len(sent) == stuck
