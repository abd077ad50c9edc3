"""The sweeper: a message that got lost is sent again, within bounds, and nothing is written."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from stream_world import StreamWorld

from headrace import topology
from headrace.controller.ticks.due_work import WORK_S_MAX
from headrace.controller.ticks.resend_intents import IntentSweep
from headrace.metadata.due_index import BUCKET_LEASES_PARTITION
from headrace.metadata.intent import Intent, intent_body, intents_partition
from headrace.model.backoff import BACKOFF_FIRST_MS, bucket_of_stream
from headrace.model.errors import UnavailableError
from headrace.model.requests import PendingRequest, RequestKind, ResourceKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_state import StreamState
from headrace.ports.clock import PIECE_S
from headrace.ports.metadata_store import Create, Key

OLDER_THAN_MS = 30_000
BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)


def _sweep(world: StreamWorld, bucket: int = BUCKET) -> int:
    return world.resend_intents(bucket, OLDER_THAN_MS)


def _lose_the_message(world: StreamWorld) -> None:
    world.queue.is_down = True
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    world.queue.is_down = False


def _without_leases(world: StreamWorld) -> Any:
    return {key: value for key, value in world.everything().items() if key[0] != BUCKET_LEASES_PARTITION}


def test_a_lost_message_is_sent_again_once_it_is_old(world: StreamWorld):
    _lose_the_message(world)
    world.clock.advance(OLDER_THAN_MS)
    assert _sweep(world) == 0
    world.clock.advance(1)
    assert [_sweep(world, bucket) for bucket in range(topology.BUCKET_COUNT) if bucket != BUCKET] == [0] * 7
    before = _without_leases(world)
    assert _sweep(world) == 1
    assert _without_leases(world) == before
    (message,) = world.bare_queue.receive()
    assert message.group == "s/t"
    assert message.body == {"kind": "create_stream", "scope": "s", "stream": "t", "request": message.body["request"]}
    world.processor.process(message.body)
    assert world.streams.get_stream("s", "t").state is StreamState.ACTIVE
    assert _sweep(world) == 0


def test_sending_what_is_queued_anyway_is_dropped_by_the_queue(world: StreamWorld):
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(1)))
    world.clock.advance(OLDER_THAN_MS + 1)
    assert _sweep(world) == 1
    assert world.drain() == 1


def test_what_a_queue_does_not_take_is_sent_by_the_next_tick(world: StreamWorld):
    _lose_the_message(world)
    world.clock.advance(OLDER_THAN_MS + 1)
    world.queue.is_down = True
    assert _sweep(world) == 0
    world.queue.is_down = False
    world.clock.advance(BACKOFF_FIRST_MS)
    assert _sweep(world) == 1


def test_an_intent_that_fails_gives_way_to_healthy_ones(world: StreamWorld):
    """Each failure doubles the time for which it takes no place in a tick, up to a bound."""
    for name in ("dead", "well"):
        request = PendingRequest(RequestKind.SEAL_STREAM, f"seal_stream-0-{name}")
        intent = Intent("s", name, request, world.clock.now_ms())
        world.bare_store.write(Create(Key(intents_partition(BUCKET), intent.scoped_name), intent_body(intent)))
    world.clock.advance(OLDER_THAN_MS + 1)
    start_ms = world.clock.now_ms()
    tried: list[tuple[str, int]] = []

    class Queue:
        def send(self, *, group: str, body: Any, deduplication_id: str) -> None:
            tried.append((group, world.clock.now_ms() - start_ms))
            if group == "s/dead":
                raise UnavailableError("this message is not taken")

    sweep = IntentSweep(world.store, dict.fromkeys(ResourceKind, Queue()), world.clock, OLDER_THAN_MS)
    every_ms, ticks = 10_000, 26
    for _ in range(ticks):
        sweep.run(BUCKET)
        world.clock.advance(every_ms)
    assert [at_ms for group, at_ms in tried if group == "s/well"] == [every_ms * number for number in range(ticks)]
    dead = [at_ms for group, at_ms in tried if group == "s/dead"]
    assert [after - before for before, after in pairwise(dead)] == [10_000, 20_000, 40_000, 60_000, 60_000, 60_000]


def test_a_record_that_does_not_decode_holds_up_no_other(world: StreamWorld):
    _lose_the_message(world)
    broken = Key(intents_partition(BUCKET), "s/a")
    world.bare_store.write(Create(broken, {"format": 1, "kind": "no such kind"}))
    world.clock.advance(OLDER_THAN_MS + 1)
    noted: list[str] = []
    sweep = IntentSweep(world.store, world.queues, world.clock, OLDER_THAN_MS, note_undecodable=noted.append)
    assert sweep.run(BUCKET) == (1, False)
    assert noted == ["resend-intents"]
    assert world.bare_store.get(broken) is not None


def test_a_tick_ends_in_time_and_the_next_one_goes_on(world: StreamWorld):
    stuck, per_tick = 1_500, 100
    for index in range(stuck):
        request = PendingRequest(RequestKind.SEAL_STREAM, f"seal_stream-0-{index}")
        intent = Intent("s", f"stuck-{index:04d}", request, world.clock.now_ms())
        key = Key(intents_partition(BUCKET), intent.scoped_name)
        world.bare_store.write(Create(key, intent_body(intent)))
    world.clock.advance(OLDER_THAN_MS + 1)
    sent: list[str] = []

    class SlowQueue:
        def send(self, *, group: str, body: Any, deduplication_id: str) -> None:
            sent.append(group)
            world.clock.advance(int((WORK_S_MAX - PIECE_S) * 1000 / per_tick) + 1)

    sweep = IntentSweep(world.store, dict.fromkeys(ResourceKind, SlowQueue()), world.clock, OLDER_THAN_MS)
    outcomes = [sweep.run(BUCKET) for _ in range(stuck // per_tick + 1)]
    assert outcomes[:-1] == [(per_tick, True)] * (stuck // per_tick)
    assert sent[:stuck] == sorted(sent[:stuck])
    assert len(set(sent)) == stuck
