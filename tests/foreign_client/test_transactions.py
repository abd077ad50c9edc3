"""Transactions of Pravega's own client: committed, aborted, found by id, and overtaken by a scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import foreign_client
import pytest

from headrace.client import Headrace, ScalingPolicy

pytestmark = pytest.mark.xdist_group("foreign_client")

EVENTS = 200


def test_transactions(start: Callable[..., foreign_client.Child], ours: Headrace):
    ours.admin.create_stream("s", "transactional", scaling=ScalingPolicy.fixed(2))
    child = start(foreign_client.life_of_transactions, "s", "transactional", EVENTS)
    assert child.hear() == "begun"
    left, right = ours.admin.segments("s", "transactional")
    ours.admin.scale_stream(
        "s", "transactional", seal=[left.segment_id, right.segment_id], ranges=[(0.0, 0.25), (0.25, 1.0)]
    )
    child.say("scaled")
    assert child.hear()["open"] == [True, False, False, True, False]
    read: list[bytes] = []
    with ours.reader("s", "transactional", start="earliest") as reader:
        while len(read) < EVENTS + 1:
            batch = reader.read_batch(60)
            assert batch is not None, f"only {len(read)} events came"
            read += [bytes(event) for event in batch.events]
    assert foreign_client.numbers_by_key(read) == {
        "0": [*range(0, EVENTS, 5), EVENTS],
        **{str(key): list(range(key, EVENTS, 5)) for key in range(1, 5)},
    }


def test_their_reader_reads_what_our_transactions_committed(foreign: Callable[..., Any], ours: Headrace):
    """Three of ours, of which a scale overtakes two; one is never committed."""
    ours.admin.create_stream("s", "our-transactions", scaling=ScalingPolicy.fixed(1))
    with ours.transactional_writer("s", "our-transactions") as writer:
        first, second, dropped = (writer.begin() for _ in range(3))
        for number in range(30):
            first.write(b"a %d" % number, routing_key="a")
            second.write(b"b %d" % number, routing_key="b")
            dropped.write(b"a 999", routing_key="a")
        (segment,) = ours.admin.segments("s", "our-transactions")
        ours.admin.scale_stream("s", "our-transactions", seal=[segment.segment_id], ranges=[(0.0, 0.5), (0.5, 1.0)])
        third = writer.begin()
        for number in range(30, 40):
            third.write(b"a %d" % number, routing_key="a")
        dropped.abort()
        first.commit()
        second.commit()
        third.commit(wait=True)
    read = foreign(foreign_client.read_events, "s", "our-transactions", "group-of-our-transactions", 70)
    assert foreign_client.numbers_by_key(read) == {"a": list(range(40)), "b": list(range(30))}
