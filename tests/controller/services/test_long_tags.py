"""A stream with long tags: they are not part of the record that every operation checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import pytest
from costs import Meter
from interruptions import (
    after_each_sleep,
    assert_crashes_lose_and_double_nothing,
    assert_two_at_once_do_it_once,
    work_on_request,
)
from soundness import assert_sound
from stream_world import StreamWorld

from headrace.metadata.stream import current_key, stream_tags_key
from headrace.metadata.stream_records import StreamRecords
from headrace.model.errors import CorruptError
from headrace.model.limits import TAG_CHARACTERS_MAX, TAGS_BYTES_MAX, TAGS_PER_STREAM_MAX
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.metadata_store import Delete

SEGMENTS = 1_000
UNIT_BYTES = 1_024

LARGEST = tuple(chr(0x100 + number) * TAG_CHARACTERS_MAX for number in range(TAGS_PER_STREAM_MAX))
"""As many bytes of tags as are allowed, two for each character, and six in a record."""

LONG, OTHERS = (("a" * 200, "b" * 200), ("b" * 200, "c" * 200))


def _tags_records(world: StreamWorld) -> list[str]:
    return sorted(sort for partition, sort in world.everything() if partition == "stream/s/t" and "tags/" in sort)


def _current_bytes(world: StreamWorld) -> int:
    return len(json.dumps(dict(world.record(current_key("s", "t")).body)))


def _tags(world: StreamWorld) -> tuple[str, ...]:
    return StreamRecords(world.bare_store).get("s", "t").stream.configuration.tags


@pytest.fixture
def tagged(world: StreamWorld) -> StreamWorld:
    world.create(segments=SEGMENTS, tags=LARGEST)
    return world


def test_the_current_record_fits_in_one_write_unit(tagged: StreamWorld):
    assert sum(len(tag.encode()) for tag in LARGEST) == TAGS_BYTES_MAX
    assert _tags(tagged) == tuple(sorted(LARGEST))
    assert _current_bytes(tagged) <= UNIT_BYTES


@pytest.mark.parametrize(
    ("call", "read_units_max"),
    [
        pytest.param(lambda world, _known: world.begin(), 2, id="begin"),
        pytest.param(lambda world, known: world.transactions.ping_transaction("s", "t", known, 60_000), 1, id="ping"),
        pytest.param(lambda world, known: world.transactions.commit_transaction("s", "t", known), 3, id="commit"),
        pytest.param(lambda world, known: world.transactions.abort_transaction("s", "t", known), 2, id="abort"),
    ],
)
def test_tags_do_not_make_a_transaction_dearer(
    tagged: StreamWorld, call: Callable[[Any, int], object], read_units_max: int
):
    known = tagged.begin()
    bill = Meter(tagged).measured(lambda: call(tagged, known))
    assert 0 < bill.write_units <= 12
    assert bill.read_units <= read_units_max


def test_tags_do_not_make_a_run_of_commits_dearer(world: StreamWorld):
    """Nor a scale. Each process has read the tags once."""
    bills, meter = [], Meter(world)
    no_tags: tuple[str, ...] = ()
    for stream, tags in (("t", no_tags), ("tagged", LARGEST)):
        world.create(stream, tags=tags)
        world.scale([1], [0.5, 1.0], stream)
        for _ in range(2):
            world.drain_transactions()
            world.transactions.commit_transaction("s", stream, world.begin(stream))
        bills.append(copy(meter.measured(world.drain_transactions)))
        halves = [0.0, 0.25, 0.5]
        bills.append(copy(meter.measured(partial(world.scale, [0], halves, stream))))
    commit, scale, tagged_commit, tagged_scale = bills
    assert (tagged_commit.write_units, tagged_commit.read_units) == (commit.write_units, commit.read_units)
    assert (tagged_scale.write_units, tagged_scale.read_units) == (scale.write_units, scale.read_units)


def test_short_tags_are_part_of_the_current_record(world: StreamWorld):
    world.create(tags=("blue", "green"))
    assert _tags_records(world) == []
    assert _tags(world) == ("blue", "green")


def test_tags_are_read_once_by_each_process(world: StreamWorld):
    world.create(tags=LONG)
    records = StreamRecords(world.store)
    world.calls.counts.clear()
    for reads in (2, 3, 4):
        assert records.get("s", "t").stream.configuration.tags == LONG
        assert world.calls.counts["read"] == reads


def test_an_update_replaces_the_tags_record_only_if_tags_change(world: StreamWorld):
    world.create(tags=LONG)
    first = _tags_records(world)
    world.update(tags=LONG, rollover_size_bytes=1 << 30)
    assert _tags_records(world) == first
    assert _tags(world) == LONG
    world.update(tags=OTHERS)
    assert _tags_records(world) == ["tags/0000000000/0000000002"]
    assert _tags(world) == OTHERS
    world.update(tags=("short",))
    assert _tags_records(world) == []
    assert _tags(world) == ("short",)


def test_tags_that_are_missing_are_corrupt(world: StreamWorld):
    world.create(tags=LONG)
    world.bare_store.write(Delete(stream_tags_key("s", "t", 0, 0), None))
    with pytest.raises(CorruptError, match="tags 0 of s/t are missing"):
        StreamRecords(world.bare_store).get("s", "t")


@pytest.mark.parametrize("again", [False, True])
def test_a_stream_that_changes_amid_the_read_is_read_whole(world: StreamWorld, again: bool):
    world.create(tags=LONG)

    def change() -> None:
        if again:
            world.seal()
            world.delete()
            world.create(tags=OTHERS)
        else:
            world.update(tags=OTHERS)

    records = StreamRecords(world.store)
    world.calls.interrupt_at(1, change)
    stored = records.get("s", "t")
    assert stored.stream.configuration.tags == OTHERS
    assert stored == world.records.get("s", "t")


# Races


def _listed(world: StreamWorld, tag: str) -> list[str]:
    return [summary.stream for summary in world.streams.list_streams("s", 100, tag=tag).items]


def _outcome(world: StreamWorld) -> Any:
    """What is stored of the tags, whether the lists agree with it, and that nothing is left over."""
    stored = StreamRecords(world.bare_store).find("s", "t")
    tags = stored.stream.configuration.tags if stored else ()
    expected = [] if stored is None or stored.tags_version is None else [stored.tags_version]
    assert [int(sort.rpartition("/")[2]) for sort in _tags_records(world)] == expected
    for tag in (*LONG, *OTHERS):
        assert _listed(world, tag) == (["t"] if tag in tags else [])
    return tags, stored.stream.state if stored else None


def _accept_creation(world: StreamWorld) -> None:
    world.streams.create_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2), tags=LONG))


def _accept_update(world: StreamWorld) -> None:
    world.create(tags=LONG)
    world.streams.update_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2), tags=OTHERS))


def _accept_deletion(world: StreamWorld) -> None:
    world.create(tags=LONG)
    world.seal()
    world.streams.delete_stream("s", "t")


WORKS = [
    pytest.param(_accept_creation, id="create"),
    pytest.param(_accept_update, id="update"),
    pytest.param(_accept_deletion, id="delete"),
]


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("accept", WORKS)
def test_crashes_lose_no_tags(accept: Callable[[StreamWorld], None], done: bool):
    assert assert_crashes_lose_and_double_nothing(work_on_request(accept, _outcome), done=done) >= 4


@pytest.mark.parametrize("accept", WORKS)
def test_two_processors_lose_no_tags(accept: Callable[[StreamWorld], None]):
    assert assert_two_at_once_do_it_once(work_on_request(accept, _outcome)) >= 4


def _make_again(world: StreamWorld) -> Any:
    """Another processor ends what is in hand, and the stream is made again with other tags of equal versions."""
    world.process()
    world.acknowledge()
    if world.records.find("s", "t") is not None:
        world.seal()
        world.delete()
    world.create(tags=OTHERS)
    world.update(tags=LONG)
    return _outcome(world)


@pytest.mark.parametrize("accept", WORKS)
def test_a_late_processor_keeps_the_tags_of_the_next_incarnation(accept: Callable[[StreamWorld], None]):
    slept = 0

    def run(world: StreamWorld) -> None:
        world.requests.process(body[0])

    body: list[Any] = []
    work = work_on_request(accept, _outcome)

    def accepted() -> StreamWorld:
        world = work.accept()
        body[:] = [world.in_hand.body]
        return world

    for position, world, expected in after_each_sleep(type(work)(accepted, run, _outcome), _make_again):
        slept += 1
        assert _outcome(world) == expected, f"asleep at call {position}"
        assert expected[0] == LONG
        assert_sound(world, may_leave_empty=True)
    assert slept >= 4
