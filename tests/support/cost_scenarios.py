"""What docs/operating/costs.md measures: each scenario prepares a world and gives back the work that costs.

The stream `s/t` scales by rate, has three segments in its second epoch, one tag, and 20 bytes in each first segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from watermark_world import WatermarkWorld

from headrace import topology
from headrace.controller.auto_scaling import AutoScalingService
from headrace.controller.retention import RetentionService
from headrace.controller.subscribers import SubscriberService
from headrace.metadata.cluster_records import write_lease
from headrace.model.buckets import bucket_of_stream
from headrace.model.cluster import StoreLease, registered
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, claim_body, claim_sort
from headrace.model.key_value_tables import TableConfiguration
from headrace.model.names import container_of_segment, segment_name
from headrace.model.rates import ScalingReport
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, RetentionMode
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Create, Key
from headrace.workflows.apply_retention import RetentionTicks
from headrace.workflows.detect_failed_stores import detect_failed_stores
from headrace.workflows.expire_transactions import expire_transactions
from headrace.workflows.resend_intents import resend_intents

BUCKET = bucket_of_stream("s/t", topology.BUCKET_COUNT)
GROUP_ID = "5f1d3a6e-8a3b-4c1e-9d6f-0123456789ab"
Work = Callable[[], object]


@dataclass(frozen=True)
class Scenario:
    """`prepare` makes the world ready and answers the work to measure; a question is measured twice."""

    name: str
    prepare: Callable[[Any], Work]
    is_question: bool = False


def _configuration(minimum: int = 1, **more: Any) -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy.by_event_rate(100, 2, minimum), **{"tags": ("a",), **more})


def create_stream(world: Any) -> None:
    """The first epoch of the stream."""
    world.streams.create_stream("s", "t", _configuration(2))
    world.drain()


def bring_into_last_epoch(world: Any) -> None:
    """From the epoch in which it is, of two segments. `before`, `tails`: ids of both epochs in order of the ranges."""
    world.before = _active(world)
    for identifier in world.before:
        world.append(identifier, 20)
    world.clock.advance(5_000)
    world.scale(world.before[:1], [0.0, 0.25, 0.5])
    world.clock.advance(5_000)
    world.tails = _active(world)


def _active(world: Any) -> list[int]:
    return [one.segment_id for one in world.records.get("s", "t").stream.epoch.segments]


def _tail(world: Any) -> dict[int, int]:
    """A stream cut in the last epoch."""
    first, second, kept = world.tails
    return {first: 0, second: 0, kept: 5}


def _beginning(world: Any) -> dict[int, int]:
    """The stream cut where the epoch before began."""
    return dict.fromkeys(world.before, 0)


def _epoch(world: Any) -> int:
    return world.tails[0] >> 32


def _claim(world: Any) -> None:
    name = segment_name("s", "t", world.tails[0])
    container = container_of_segment(name, topology.CONTAINER_COUNT)
    claim = claim_body(ContainerClaim("store-0", "127.0.0.1", 1, "local"))
    world.bare_store.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim))


def question(name: str, ask: Callable[[Any], object], *steps: Callable[[Any], object]) -> Scenario:
    return Scenario(name, _prepared(ask, *steps), is_question=True)


def change(name: str, act: Callable[[Any], object], *steps: Callable[[Any], object]) -> Scenario:
    """A call, after the stream was made and `steps` were done."""
    return Scenario(name, _prepared(act, *steps))


def workflow(name: str, accept: Callable[[Any], object], *steps: Callable[[Any], object]) -> Scenario:
    """The work that follows a call which was accepted."""
    return Scenario(name, _prepared(_drain, *steps, accept))


def _prepared(act: Callable[[Any], object], *steps: Callable[[Any], object]) -> Callable[[Any], Work]:
    def prepare(world: Any) -> Work:
        if not hasattr(world, "tails"):
            create_stream(world)
            bring_into_last_epoch(world)
        for step in steps:
            step(world)
        return lambda: act(world)

    return prepare


def _drain(world: Any) -> None:
    world.drain()
    world.drain_transactions()


def _create(world: Any) -> object:
    return world.streams.create_stream("s", "new", _configuration(2))


def _scale(world: Any) -> object:
    return world.streams.scale_stream("s", "t", world.tails[2:], [KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)])


def _update(world: Any, **more: Any) -> object:
    return world.streams.update_stream("s", "t", _configuration(2, **more))


def _raise_minimum(world: Any) -> object:
    return world.streams.update_stream("s", "t", _configuration(5))


def _truncate(world: Any) -> object:
    return world.streams.truncate_stream("s", "t", _tail(world))


def _seal(world: Any) -> object:
    return world.streams.seal_stream("s", "t")


def _delete(world: Any) -> object:
    return world.streams.delete_stream("s", "t")


def _delete_scope(world: Any) -> object:
    return world.scope_deletions.delete_scope_recursively("s")


def _sealed(world: Any) -> None:
    world.seal()


def _truncated(world: Any) -> None:
    world.truncate(_tail(world))


def _scaled(world: Any) -> None:
    world.scale(world.tails[1:2], [0.25, 0.375, 0.5])


def _rate() -> StreamConfiguration:
    return StreamConfiguration(ScalingPolicy.by_event_rate(50, 2, 2), tags=("a",))


# Transactions


def _begin(world: Any) -> int:
    return world.begin()


def _transaction(world: Any) -> None:
    world.transaction = world.begin()


def _several(world: Any) -> None:
    world.several = [world.begin() for _ in range(10)]


def _of(call: str, *more: Any) -> Callable[[Any], object]:
    return lambda world: getattr(world.transactions, call)("s", "t", world.transaction, *more)


def _commit_several(world: Any) -> None:
    for one in world.several:
        world.transactions.commit_transaction("s", "t", one)


# Scaling reports


def _report(number: int, kind: str, **more: Any) -> Callable[[Any], object]:
    """Of an active segment; -1: of the one that was replaced."""

    def handle(world: Any) -> object:
        service = AutoScalingService(world.store, world.streams, world.clock)
        name = segment_name("s", "t", world.tails[number] if number >= 0 else world.before[0])
        return service.handle(ScalingReport(name, kind, world.clock.now_ms(), **more))  # type: ignore[arg-type]

    return handle


# Watermarks


def _marks(world: Any) -> None:
    world.marks = WatermarkWorld(world)


def _noted(world: Any) -> None:
    world.marks.note("a", 1, {world.tails[0]: 1})


def _noted_again(world: Any) -> None:
    world.marks.note("a", 2, {world.tails[0]: 2})


def _tick_marks(world: Any) -> None:
    world.marks.tick()


# Retention


def _retained(world: Any) -> None:
    """A policy, and a first cut."""
    _update(world, retention=RetentionPolicy.by_size(30))
    world.drain()
    ticks = RetentionTicks(world.store, world.segment_stores, world.clock, world.streams.truncate_stream, 60_000)
    world.retain = lambda: ticks.run(BUCKET)
    world.retained = RetentionService(world.store, world.segment_stores, world.clock)
    world.subscribers = SubscriberService(world.store, world.clock)
    world.retain()


def _a_period_later(world: Any) -> None:
    world.append(world.tails[0], 10)
    world.clock.advance(60_000)


def _full(world: Any) -> None:
    world.append(world.tails[0], 100)
    _a_period_later(world)


def _subscribed(world: Any) -> None:
    world.subscribers.register("s", "t", "g", 0)


def _publish(world: Any) -> object:
    return world.subscribers.update_stream_cut("s", "t", "g", 0, _tail(world))


def _retain(world: Any) -> None:
    world.retain()


# Key-value tables


def _create_table(world: Any) -> object:
    return world.tables.create_table("s", "k", TableConfiguration(4, 8))


def _table(world: Any) -> None:
    _create_table(world)
    world.drain()


def _delete_table(world: Any) -> object:
    return world.tables.delete_table("s", "k")


def _resend(world: Any) -> object:
    return resend_intents(world.store, world.queues, world.clock, BUCKET, 30_000)


def _lost(world: Any) -> None:
    """A message that never arrived, of a request that was accepted a while ago."""
    world.queue.is_down = True
    _scale(world)
    world.queue.is_down = False
    world.clock.advance(60_000)


# The tick of transactions


def _expire(world: Any) -> object:
    return expire_transactions(world.store, world.transaction_queues, world.clock, BUCKET)


def _lease_over(world: Any) -> None:
    world.clock.advance(3_600_000)


def _committed(world: Any) -> None:
    world.commit(world.transaction)


def _day_over(world: Any) -> None:
    world.clock.advance(2 * 24 * 3_600_000)


# The cluster


def _stores(world: Any) -> None:
    """Three stores that have their containers."""
    for number in range(3):
        lease = StoreLease(f"store-{number}", "h", 1, f"zone-{number}", 100, f"v{number}", f"task-{number}", 60_000)
        world.bare_store.write(write_lease(registered(lease, None, world.clock.now_ms()), None))
    detect_failed_stores(world.bare_store, world.clock, topology.CONTAINER_COUNT)


def _look(world: Any) -> object:
    return detect_failed_stores(world.store, world.clock, topology.CONTAINER_COUNT)


# Reader groups


def _group(**more: Any) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration((GroupStream("s", "t"),), retention=RetentionMode.MANUAL, **more)


def _create_group(world: Any) -> object:
    return world.reader_groups.create_reader_group("s", "g", GROUP_ID, _group())


def _with_group(world: Any) -> None:
    _create_group(world)
    world.drain()


def _update_group(world: Any) -> object:
    return world.reader_groups.update_reader_group("s", "g", GROUP_ID, 0, _group(group_refresh_ms=5))


def _delete_group(world: Any) -> object:
    return world.reader_groups.delete_reader_group("s", "g", GROUP_ID)


SECTIONS: dict[str, tuple[Scenario, ...]] = {
    "questions": (
        question("get a scope", lambda w: w.scopes.get_scope("s")),
        question("list scopes", lambda w: w.scopes.list_scopes(10)),
        question("get a stream", lambda w: w.streams.get_stream("s", "t")),
        question("list streams, also by prefix", lambda w: w.streams.list_streams("s", 100, prefix="t")),
        question("list streams by tag", lambda w: w.streams.list_streams("s", 100, tag="a")),
        question("status of a scale", lambda w: w.streams.scale_status("s", "t", _epoch(w))),
        question(
            "scaling events", lambda w: w.scaling_events.scaling_events("s", "t", w.clock.now_ms() - 6_000, 2**50, 9)
        ),
        question("segments at the tail", lambda w: w.segments.segments_at_tail("s", "t")),
        question("segments at the head", lambda w: w.segments.segments_at_head("s", "t")),
        question("segments of an old epoch", lambda w: w.segments.segments_of_epoch("s", "t", _epoch(w) - 1)),
        question("segments at a time", lambda w: w.segments.segments_at_time("s", "t", w.clock.now_ms() - 6_000)),
        question("successors of an active segment", lambda w: w.segments.successors("s", "t", w.tails[0])),
        question("successors of a sealed segment", lambda w: w.segments.successors("s", "t", w.before[0])),
        question("predecessors", lambda w: w.segments.predecessors("s", "t", w.tails[0])),
        question("endpoint of a segment", lambda w: w.segments.endpoint("s", "t", w.tails[0]), _claim),
        question("stream cut at the head", lambda w: w.segments.stream_cut("s", "t", "head")),
        question("stream cut at the tail", lambda w: w.segments.stream_cut("s", "t", "tail")),
        question("segments between head and tail", lambda w: w.segments.between("s", "t", None, None)),
        question("is a stream cut valid", lambda w: w.cuts.is_valid("s", "t", _tail(w))),
        question("distance of two cuts", lambda w: w.cuts.distance_bytes("s", "t", _beginning(w), _tail(w))),
        question("state of a transaction", _of("get_transaction"), _transaction),
        question("segments of a transaction", _of("segments_of"), _transaction),
        question("list open transactions", lambda w: w.transactions.list_open("s", "t", 100), _transaction),
        question("list completed transactions", lambda w: w.transactions.list_completed("s", "t")),
        question("newest watermark", lambda w: w.marks.service.newest_watermark("s", "t"), _marks),
        question("what retention does", lambda w: w.retained.describe("s", "t"), _retained),
        question("list subscribers", lambda w: w.subscribers.list_subscribers("s", "t", 100), _retained, _subscribed),
        question("get a key-value table", lambda w: w.tables.get_table("s", "k"), _table),
        question("segments of a key-value table", lambda w: w.tables.segments_of_table("s", "k"), _table),
        question("list key-value tables", lambda w: w.tables.list_tables("s", 100), _table),
        question("get a reader group", lambda w: w.reader_groups.get_reader_group("s", "g"), _with_group),
        question("list reader groups", lambda w: w.reader_groups.list_reader_groups("s", 100), _with_group),
        question("list dead letters", lambda w: w.dead_letters.list_letters(100)),
    ),
    "changes": (
        change("create a scope", lambda w: w.scopes.create_scope("new")),
        change("delete a scope", lambda w: w.scopes.delete_scope("empty"), lambda w: w.scopes.create_scope("empty")),
        change("delete a scope with everything in it", _delete_scope),
        change("create a stream", _create),
        change("update a stream", lambda w: _update(w, tags=("b",))),
        change("truncate a stream", _truncate),
        change("scale a stream", _scale),
        change("seal a stream", _seal),
        change("delete a stream", _delete, _sealed),
        change("create a transaction", _begin),
        change("ping a transaction", _of("ping_transaction", 60_000), _transaction),
        change("commit a transaction", _of("commit_transaction"), _transaction),
        change("abort a transaction", _of("abort_transaction"), _transaction),
        change("commit a set of ten", lambda w: w.transactions.commit_all("s", "t", "key", w.several), _several),
        change("first note of a writer's time", _noted, _marks),
        change("note of a writer's time", _noted_again, _marks, _noted),
        change("remove a writer", lambda w: w.marks.service.remove_writer("s", "t", "a"), _marks, _noted),
        change("register a subscriber", _subscribed, _retained),
        change("publish a subscriber's position", _publish, _retained, _subscribed),
        change("create a key-value table", _create_table),
        change("delete a key-value table", _delete_table, _table),
        change("create a reader group", _create_group),
        change("update a reader group", _update_group, _with_group),
        change("delete a reader group", _delete_group, _with_group),
    ),
    "workflows": (
        workflow("delete a scope with one stream of two epochs", _delete_scope),
        workflow("create a stream of two segments", _create),
        workflow("update: another tag", lambda w: _update(w, tags=("b",))),
        workflow("update: another rate", lambda w: w.streams.update_stream("s", "t", _rate())),
        workflow("update: minimum raised by two", _raise_minimum),
        workflow("truncate over two segments into one", _truncate),
        workflow("scale: a segment into two", _scale),
        workflow("seal three segments", _seal),
        workflow("delete two epochs", _delete, _sealed),
        workflow("delete two epochs after a truncation", _delete, _truncated, _sealed),
        workflow("commit one transaction", _of("commit_transaction"), _transaction),
        workflow("commit ten transactions", _commit_several, _several),
        workflow("commit one transaction of an older epoch", _of("commit_transaction"), _transaction, _scaled),
        workflow("abort one transaction", _of("abort_transaction"), _transaction),
        workflow("create a key-value table of four segments", _create_table),
        workflow("delete a key-value table of four segments", _delete_table, _table),
        workflow("create a reader group that subscribes to a stream", _create_group),
        workflow("update a reader group that subscribes to a stream", _update_group, _with_group),
        workflow("delete a reader group that subscribes to a stream", _delete_group, _with_group),
    ),
    "reports": (
        change("of a segment that is replaced already", _report(-1, "hot", splits=2)),
        change("hot: splits", _report(0, "hot", splits=2)),
        change("cold, its neighbours are not", _report(0, "cold")),
        change("cold, and so is a neighbour: merges", _report(0, "cold"), _report(1, "cold")),
    ),
    "ticks": (
        change("resend-intents, nothing to send", _resend),
        change("resend-intents, one message lost", _resend, _lost),
        change("transactions, nothing due", _expire, _transaction),
        change("transactions, a lease is over", _expire, _transaction, _lease_over),
        change("transactions, one is forgotten", _expire, _transaction, _committed, _day_over),
        change("failed-stores, all three are well", _look, _stores),
        change("watermarks, no writer notes its time", _tick_marks, _marks),
        change("watermarks, the first of a stream", _tick_marks, _marks, _noted),
        change("watermarks, the next", _tick_marks, _marks, _noted, _tick_marks, _noted_again),
        change("retention, nothing due", _retain, _retained),
        change("retention, a cut", _retain, _retained, _a_period_later),
        change("retention, a cut and a truncation", _retain, _retained, _full),
        change("retention, a cut with a subscriber", _retain, _retained, _subscribed, _a_period_later),
    ),
}
