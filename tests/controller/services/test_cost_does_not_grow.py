"""A deployment of 100,000 streams and a stream of 10,000 epochs cost in requests what one of few does.

The scenarios are those of the table of costs. The large metadata are built straight into the store in memory.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from cost_scenarios import SECTIONS
from cost_world import CostWorld, Scenario, bring_into_last_epoch, create_stream
from costs import Meter
from store_meter import Bill

from headrace.adapters.memory.metadata_store import _Partition, _Stored
from headrace.metadata.history_records import (
    SealedSegment,
    create_epoch,
    sealed_segments_body,
    sealed_segments_key,
    shard_of_segment,
)
from headrace.metadata.record_layout import stream_partition
from headrace.metadata.scope import listing_body, listing_partition
from headrace.metadata.stream import current_key, stream_body
from headrace.metadata.truncation import truncation_body, truncation_key
from headrace.model.epochs import Epoch
from headrace.model.errors import InvalidRequestError
from headrace.model.names import segment_name
from headrace.model.segments import StreamSegment, equal_ranges, segment_id
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.truncation import Truncation
from headrace.ports.metadata_store import Create, Replace
from headrace.ports.segment_stores import SegmentScaleRate

pytestmark = pytest.mark.xdist_group("cost_does_not_grow")
"""The large worlds are made once per worker, so all tests stay on one."""

FEW_EPOCHS, MANY_EPOCHS = 16, 10_000
"""Multiples of the epochs in one record of sealed segments, so that both streams stand at the same place of one."""

MANY_STREAMS = 100_000
FOLLOWING_WHAT_LIES_BEFORE = {"truncate over two segments into one"}
"""What these cost follows what lies between the head and a cut: everything, if nothing was truncated."""

BOUNDED = {"segments between head and tail"}
"""Refused where too many epochs lie between: to be asked for in pieces."""

DELETIONS = {
    "delete two epochs",
    "delete two epochs after a truncation",
    "delete a scope with one stream of two epochs",
}
"""These cost what they delete, the records of all epochs among it."""

ALL = [scenario for scenarios in SECTIONS.values() for scenario in scenarios if scenario.name not in DELETIONS]


def _epoch(number: int, start_ms: int, before: Epoch | None) -> Epoch:
    """Two halves, with numbers as if both had been replaced in every epoch."""
    segments = tuple(
        StreamSegment(segment_id(number, 2 * number + half), key_range)
        for half, key_range in enumerate(equal_ranges(2))
    )
    return Epoch(number, start_ms + number, segments, before.segments if before else ())


def _lengthen_history(world: CostWorld, epochs: int) -> None:
    """As if the stream, just created, had gone through so many epochs; 20 bytes in each segment."""
    stored = world.records.get("s", "t")
    before = stored.stream.epoch
    shards: dict[Any, dict[int, SealedSegment]] = {}
    for number in range(1, epochs + 1):
        epoch = _epoch(number, before.creation_time_ms - number + 1, before)
        world.bare_store.write(*create_epoch(stored.stream, epoch))
        for segment in epoch.replaced:
            sealed = shards.setdefault(shard_of_segment(segment.segment_id), {})
            sealed[segment.segment_id] = SealedSegment(20, number)
        before = epoch
    for shard, entries in shards.items():
        world.bare_store.write(Create(sealed_segments_key("s", "t", shard), sealed_segments_body(entries)))
    fields = {name: getattr(stored.stream, name) for name in type(stored.stream).__slots__}
    stream = type(stored.stream)(**{**fields, "epoch": before, "recorded_epoch": before.number})
    world.bare_store.write(Replace(current_key("s", "t"), stream_body(stream), stored.version))
    for name in [segment_name("s", "t", former.segment_id) for former in before.segments]:
        world.bare_segment_stores.create_segment(name, SegmentScaleRate(2, 100))
    world.clock.advance(epochs)


def _truncate(world: CostWorld) -> None:
    """As if everything before the newest epoch had been truncated away."""
    epoch = world.records.get("s", "t").stream.epoch
    cut = StreamCut.of("s", "t", {segment.segment_id: 0 for segment in epoch.segments})
    truncation = Truncation(PlacedCut(cut, epoch.segments), epoch.number, 20 * 2 * epoch.number)
    world.bare_store.write(Create(truncation_key("s", "t"), truncation_body(truncation)))


def _crowd() -> dict[str, Any]:
    """Partitions of many other streams, in the store's own form: writing them one by one would take minutes."""
    listing, current = '{"format":1,"tags":[]}', "{}"
    assert listing_body(()) == {"format": 1, "tags": []}
    names = [f"x{number:06d}" for number in range(MANY_STREAMS)]
    partitions: dict[str, Any] = {
        stream_partition("s", name): _Partition({"current": _Stored(3, current)}, ["current"]) for name in names
    }
    partitions[listing_partition("s")] = _Partition({name: _Stored(0, listing) for name in names}, names)
    return partitions


class LargeWorlds:
    """Worlds that are all alike, made once and copied: the other streams, and the history of the one that is asked."""

    def __init__(self, epochs: int, crowd: dict[str, Any], *, truncated: bool) -> None:
        world = CostWorld()
        create_stream(world)
        _lengthen_history(world, epochs)
        if truncated:
            _truncate(world)
        bring_into_last_epoch(world)
        self._world = world
        self._crowd = crowd

    def world(self) -> CostWorld:
        made, like = CostWorld(), self._world
        made.before, made.tails = like.before, like.tails
        made.clock.advance(like.clock.now_ms() - made.clock.now_ms())
        own = {name: _copy(partition) for name, partition in like.bare_store._partitions.items()}
        partitions = made.bare_store._partitions
        partitions.update(self._crowd)
        for name, partition in own.items():
            known = partitions.get(name)
            partitions[name] = _merged(known, partition) if known else partition
        stores, other = made.bare_segment_stores, like.bare_segment_stores
        for name, value in vars(other).items():
            if isinstance(value, dict):
                setattr(stores, name, deepcopy(value))
        return made


def _copy(partition: Any) -> Any:
    """Records are replaced, never changed."""
    return _Partition(dict(partition.records), list(partition.sorts))


def _merged(first: Any, second: Any) -> Any:
    records = first.records | second.records
    return _Partition(records, sorted(records))


@pytest.fixture(scope="module")
def crowd() -> dict[str, Any]:
    return _crowd()


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "truncated"])
def pair(request: pytest.FixtureRequest, crowd: dict[str, Any]) -> tuple[LargeWorlds, LargeWorlds, bool]:
    """Worlds of a small deployment, and of a large one; whether the streams were truncated."""
    small = LargeWorlds(FEW_EPOCHS, {}, truncated=request.param)
    return small, LargeWorlds(MANY_EPOCHS, crowd, truncated=request.param), request.param


def _bills(worlds: LargeWorlds, scenario: Scenario) -> list[tuple[int, ...]]:
    """Requests of the work, and of the same question asked again."""
    world = worlds.world()
    act = scenario.prepare(world)
    meter = Meter(world)
    times = 2 if scenario.is_question else 1
    return [_requests(meter.measured(act)) for _ in range(times)]


def _requests(bill: Bill) -> tuple[int, ...]:
    return bill.reads, bill.writes, bill.messages, bill.store


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_requests_are_as_many_as_for_few(pair: tuple[LargeWorlds, LargeWorlds, bool], scenario: Scenario):
    small, large, truncated = pair
    if scenario.name in BOUNDED and not truncated:
        with pytest.raises(InvalidRequestError):
            _bills(large, scenario)
        return
    expected, found = _bills(small, scenario), _bills(large, scenario)
    if scenario.name in FOLLOWING_WHAT_LIES_BEFORE and not truncated:
        assert found[0] > expected[0], "what follows the history is named as such"
    else:
        assert found == expected


def test_the_large_deployment_is_large(pair: tuple[LargeWorlds, LargeWorlds, bool]):
    _, large, _ = pair
    world = large.world()
    assert len(world.bare_store._partitions) > MANY_STREAMS
    assert world.records.get("s", "t").stream.epoch.number == MANY_EPOCHS + 1
    assert len(world.streams.list_streams("s", 1_000).items) == 1_000
