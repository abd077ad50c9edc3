"""One stream, two kinds of clients: what one writes the other reads, in order, once, in the same segments."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_client
import pytest
from foreign_client import numbered, numbers_by_key

from headrace.client import Headrace, ScalingPolicy

pytestmark = pytest.mark.xdist_group("foreign_client")

KEYS = 11


def in_order(count: int) -> dict[str, list[int]]:
    return {str(key): list(range(key, count, KEYS)) for key in range(KEYS)}


def read_by_ours(ours: Headrace, stream: str) -> list[Any]:
    tail = ours.admin.stream_cut("s", stream, at="latest")
    with ours.reader("s", stream, start="earliest", end=tail) as reader:
        return list(reader)


def test_what_they_write_we_read(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "theirs", scaling=ScalingPolicy.fixed(4))
    foreign(foreign_client.write_events, "s", "theirs", numbered(KEYS, range(1000)))
    read = read_by_ours(ours, "theirs")
    assert numbers_by_key(event.event for event in read) == in_order(1000)


def test_a_routing_key_leads_all_clients_to_the_same_segment(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "keys", scaling=ScalingPolicy.fixed(8))
    keys = [f"key-{number}" for number in range(200)]
    foreign(foreign_client.write_events, "s", "keys", [(key.encode(), key) for key in keys])
    theirs = {event.event: event.segment_id for event in read_by_ours(ours, "keys")}
    with ours.writer("s", "keys") as writer:
        writer.write_batch([f"our {key}".encode() for key in keys], keys)
    both = {event.event: event.segment_id for event in read_by_ours(ours, "keys")}
    assert {key: both[f"our {key}".encode()] for key in keys} == {key: theirs[key.encode()] for key in keys}
    assert len(set(theirs.values())) == 8


def test_their_writer_finds_each_of_64_segments(foreign: Callable[..., Any], ours: Headrace):
    """Its core panics for some keys of a stream of more: see docs/using/pravega-clients.md."""
    ours.admin.create_stream("s", "many", scaling=ScalingPolicy.fixed(64))
    keys = [f"key-{number}" for number in range(2000)]
    foreign(foreign_client.write_events, "s", "many", [(key.encode(), key) for key in keys])
    read = read_by_ours(ours, "many")
    assert sorted(event.event.decode() for event in read) == sorted(keys)
    assert len({event.segment_id for event in read}) == 64


def test_what_we_write_they_read(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "ours", scaling=ScalingPolicy.fixed(3))
    events = numbered(KEYS, range(1000))
    with ours.writer("s", "ours") as writer:
        writer.write_batch([event for event, _ in events], [key for _, key in events])
    read = foreign(foreign_client.read_events, "s", "ours", "group-ours", len(events))
    assert numbers_by_key(read) == in_order(1000)


def test_their_large_event_is_one_event_between_the_others(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "large", scaling=ScalingPolicy.fixed(1))
    large = os.urandom(1 << 20) * 9
    foreign(foreign_client.write_events, "s", "large", [(b"1", "k"), (large, "k"), (b"2", "k"), (b"3", "k")])
    assert foreign(foreign_client.read_events, "s", "large", "group-large", 4) == [b"1", large, b"2", b"3"]


def test_our_large_event_is_one_event_between_the_others(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "our-large", scaling=ScalingPolicy.fixed(1))
    large = os.urandom(1 << 20) * 17
    events = [b"1", large, b"2", large, b"3"]
    with ours.writer("s", "our-large") as writer:
        writer.write_batch(events, "k")
    assert [event.event for event in read_by_ours(ours, "our-large")] == events
    assert foreign(foreign_client.read_events, "s", "our-large", "group-our-large", len(events)) == events


def test_a_reader_hands_over_to_another(foreign: Callable[..., Any], ours: Headrace):
    ours.admin.create_stream("s", "handed", scaling=ScalingPolicy.fixed(2))
    events = numbered(KEYS, range(400))
    with ours.writer("s", "handed") as writer:
        writer.write_batch([event for event, _ in events], [key for _, key in events])
    seen = foreign(foreign_client.hand_over, "s", "handed", "group-handed", len(events))
    assert len(seen["first"]) == 100
    assert numbers_by_key([*seen["first"], *seen["second"]]) == in_order(400)
    assert seen["cut"] == ours.admin.stream_cut("s", "handed", at="latest").offsets


def test_readers_in_two_processes_share_a_stream(start: Callable[..., foreign_client.Child], ours: Headrace):
    ours.admin.create_stream("s", "shared", scaling=ScalingPolicy.fixed(4))
    readers = [start(foreign_client.read_for_ever, "s", "shared", "group-shared", name) for name in ("a", "b")]
    events = numbered(KEYS, range(600))
    read: list[list[bytes]] = [[], []]
    with ours.writer("s", "shared") as writer:
        for first in range(0, len(events), 100):
            some = events[first : first + 100]
            writer.write_batch([event for event, _ in some], [key for _, key in some])
            writer.flush()
            while sum(map(len, read)) < first + 100:
                speaker, said = foreign_client.Child.hear_any(readers)
                read[speaker] += said
    assert sorted([*read[0], *read[1]]) == sorted(event for event, _ in events)
    for its in read:
        assert all(numbers == sorted(numbers) for numbers in numbers_by_key(its).values())


def test_their_reader_at_the_tail_gets_what_comes(start: Callable[..., foreign_client.Child], ours: Headrace):
    ours.admin.create_stream("s", "tail", scaling=ScalingPolicy.fixed(1))
    with ours.writer("s", "tail") as writer:
        writer.write(b"before")
        writer.flush()
        child = start(foreign_client.read_at_the_tail, "s", "tail", "group-tail", 20)
        assert child.hear() == "waiting"
        for number in range(20):
            writer.write(b"%d" % number)
            writer.flush()
    assert child.hear() == [b"%d" % number for number in range(20)]


def test_their_writer_and_reader_follow_a_scale(
    start: Callable[..., foreign_client.Child], foreign: Callable[..., Any], ours: Headrace
):
    ours.admin.create_stream("s", "scaled", scaling=ScalingPolicy.fixed(1))
    child = start(foreign_client.write_on_demand, "s", "scaled")
    for first in range(0, 600, 100):
        child.say(numbered(KEYS, range(first, first + 100)))
        assert child.hear() == "flushed"
        if first == 200:
            ours.admin.scale_stream("s", "scaled", seal=[0], ranges=[(0.0, 0.5), (0.5, 1.0)])
    child.say(None)
    child.hear()
    assert numbers_by_key(event.event for event in read_by_ours(ours, "scaled")) == in_order(600)
    read = foreign(foreign_client.read_events, "s", "scaled", "group-scaled", 600)
    assert numbers_by_key(read) == in_order(600)


def test_killed_stores_lose_and_double_no_event_of_their_client(
    stack: dict[str, Any], start: Callable[..., foreign_client.Child], foreign: Callable[..., Any], ours: Headrace
):
    """They wait up to 10 s between attempts, so all stores die at once.

    Their reader makes a fixed number of attempts, and on a busy machine the stores may take longer to come back. Then
    one that is made afterwards has to read everything.
    """
    ours.admin.create_stream("s", "killed", scaling=ScalingPolicy.fixed(4))
    writer = start(foreign_client.write_on_demand, "s", "killed")
    reader = start(foreign_client.read_events, "s", "killed", "group-killed", 2000)
    for first in range(0, 2000, 500):
        writer.say(numbered(KEYS, range(first, first + 500)))
        if first == 1000:
            for store in stack["segmentStores"]:
                os.kill(store["pid"], signal.SIGKILL)
        assert writer.hear() == "flushed"
    writer.say(None)
    writer.hear()
    assert numbers_by_key(event.event for event in read_by_ours(ours, "killed")) == in_order(2000)
    try:
        read = reader.hear()
    except AssertionError as error:
        if not any(text in str(error) for text in foreign_client.GAVE_UP):
            raise
        read = foreign(foreign_client.read_events, "s", "killed", "group-killed-later", 2000)
    assert numbers_by_key(read) == in_order(2000)


@pytest.mark.nightly
def test_a_stopped_store_loses_and_doubles_no_event_of_theirs(
    stack: dict[str, Any], start: Callable[..., foreign_client.Child], foreign: Callable[..., Any], ours: Headrace
):
    """Its containers move to the other store, and some come back.

    A reader group of theirs keeps the address of its state for its life: one that is made afterwards reads everything.
    """
    ours.admin.create_stream("s", "moved", scaling=ScalingPolicy.fixed(4))
    writer = start(foreign_client.write_on_demand, "s", "moved")
    state = json.loads((Path(stack["dataDir"]).parents[1] / "local-stack.json").read_text())
    before = ours.admin.cluster.containers()
    for first in range(0, 2000, 500):
        writer.say(numbered(KEYS, range(first, first + 500)))
        if first == 1000:
            os.kill(state["segmentStores"][0]["pid"], signal.SIGTERM)
        assert writer.hear() == "flushed"
    writer.say(None)
    writer.hear()
    after = ours.admin.cluster.containers()
    assert after.map_version is not None
    assert before.map_version is not None
    assert after.map_version > before.map_version
    assert numbers_by_key(event.event for event in read_by_ours(ours, "moved")) == in_order(2000)
    read = foreign(foreign_client.read_events, "s", "moved", "group-moved", 2000)
    assert numbers_by_key(read) == in_order(2000)
