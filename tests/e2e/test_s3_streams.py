"""Stores are killed, lose their disk or pause: a stream that S3 acknowledges has each event once, and in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

from headrace.client import EventWriter, Headrace, ScalingPolicy, connect
from headrace.deployment_defaults import CONTAINER_COUNT
from headrace.local.running import running_stack
from headrace.model.log_classes import ContainerLayout, LogClass
from headrace.model.names import segment_name

EVENTS = 2_000
KEYS = 7
S3_CONTAINERS = 2
NEVER_FLUSHED = {"HEADRACE_FLUSH_AGE_S": "3600", "HEADRACE_SNAPSHOT_EVERY_S": "3600"}
"""Tier 2 gets nothing, so that what is read comes from the log."""


def test_a_lost_disk_loses_no_acknowledged_event(tmp_path: Path):
    with (
        running_stack(tmp_path, segment_stores=1, s3_containers=S3_CONTAINERS, environment=NEVER_FLUSHED) as running,
        connect(running["endpoints"]["http"]) as headrace,
    ):
        headrace.admin.create_scope("s3")
        view = headrace.admin.create_stream("s3", "events", scaling=ScalingPolicy.fixed(3), acknowledged_by=LogClass.S3)
        assert view.acknowledged_by is LogClass.S3
        layout = ContainerLayout(CONTAINER_COUNT, S3_CONTAINERS)
        for each in headrace.admin.segments("s3", "events", at="latest"):
            name = segment_name("s3", "events", each.segment_id)
            assert layout.class_of(layout.container_of_segment(name)) is LogClass.S3
        with headrace.writer("s3", "events") as writer:
            for number in range(EVENTS):
                writer.write(b"%d" % number, routing_key=str(number % KEYS))
            writer.flush()
            assert writer.acknowledged_events == EVENTS
            (store,) = running["segmentStores"]
            directory = Path(store["dataDir"])
            directory.rename(directory.with_name("gone"))
            os.kill(store["pid"], signal.SIGKILL)
            shutil.rmtree(directory.with_name("gone"))
            for number in range(EVENTS, 2 * EVENTS):
                writer.write(b"%d" % number, routing_key=str(number % KEYS))
            writer.flush()
        headrace.admin.seal_stream("s3", "events")
        read: dict[int, list[int]] = {key: [] for key in range(KEYS)}
        with headrace.reader("s3", "events", start="earliest") as reader:
            for event in reader:
                read[int(event.event) % KEYS].append(int(event.event))
    assert read == {key: list(range(key, 2 * EVENTS, KEYS)) for key in range(KEYS)}


FLIGHT_EVENTS = 12_000
KILL_AT = (2_000, 7_000)
SCALE_AT = 4_000
TRANSACTION_AT = 5_000
PAUSE_AT = 9_000
IN_TRANSACTION = 300
POLL_S = 0.2


@pytest.mark.nightly
def test_events_in_flight_are_stored_once_in_order(tmp_path: Path):
    """Both stores are killed while events are in flight, then one pauses until the other has taken over.

    Each of the other logs is on one disk and waits for its store. Those of this stream do not.
    """
    with (
        running_stack(tmp_path, segment_stores=2, s3_containers=S3_CONTAINERS) as running,
        connect(running["endpoints"]["http"]) as headrace,
    ):
        headrace.admin.create_scope("s3")
        headrace.admin.create_stream("s3", "events", scaling=ScalingPolicy.fixed(2), acknowledged_by=LogClass.S3)
        pids = [store["pid"] for store in running["segmentStores"]]
        with headrace.writer("s3", "events") as writer:
            for number in range(FLIGHT_EVENTS):
                writer.write(b"%d %d" % (number % KEYS, number), routing_key=str(number % KEYS))
                if number in KILL_AT:
                    os.kill(pids.pop(), signal.SIGKILL)
                if number == SCALE_AT:
                    _split_first_segment(headrace)
                if number == TRANSACTION_AT:
                    writer.flush()
                    _commit_transaction(headrace)
                if number == PAUSE_AT:
                    writer.flush()
                    _pause_an_owner(headrace, tmp_path / "local-stack.json", writer)
            writer.flush()
            assert writer.acknowledged_events == FLIGHT_EVENTS + 4 * KEYS
        headrace.admin.seal_stream("s3", "events")
        read: dict[bytes, list[int]] = defaultdict(list)
        with headrace.reader("s3", "events", start="earliest") as reader:
            for event in reader:
                key, position = event.event.split()
                read[key].append(int(position))
    assert read.pop(b"t") == list(range(IN_TRANSACTION))
    assert sorted(read.pop(b"p")) == list(range(4 * KEYS))
    assert read == {b"%d" % key: list(range(key, FLIGHT_EVENTS, KEYS)) for key in range(KEYS)}


def _split_first_segment(headrace: Headrace) -> None:
    first = headrace.admin.segments("s3", "events", at="latest")[0]
    low, high = first.key_range.low, first.key_range.high
    middle = (low + high) / 2
    headrace.admin.scale_stream("s3", "events", seal=[first.segment_id], ranges=[(low, middle), (middle, high)])


def _commit_transaction(headrace: Headrace) -> None:
    with headrace.transactional_writer("s3", "events") as writer:
        transaction = writer.begin()
        for number in range(IN_TRANSACTION):
            transaction.write(b"t %d" % number, routing_key="t")
        transaction.commit(wait=True)


def _pause_an_owner(headrace: Headrace, state_file: Path, writer: EventWriter) -> None:
    """Pause the owner of a segment with an event in flight, until the other store serves this segment."""
    segment = headrace.admin.segments("s3", "events", at="latest")[0].segment_id
    layout = ContainerLayout(CONTAINER_COUNT, S3_CONTAINERS)
    container = layout.container_of_segment(segment_name("s3", "events", segment))
    before = headrace.admin.cluster.containers().containers[container]
    stores = json.loads(state_file.read_text())["segmentStores"]
    pid = next(store["pid"] for store in stores if store["id"] == before.claimed_by)
    os.kill(pid, signal.SIGSTOP)
    try:
        for key in range(4 * KEYS):
            writer.write(b"p %d" % key, routing_key=str(key))
        while headrace.admin.cluster.containers().containers[container].claimed_by == before.claimed_by:
            time.sleep(POLL_S)
    finally:
        os.kill(pid, signal.SIGCONT)
