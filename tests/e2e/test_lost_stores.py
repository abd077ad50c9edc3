"""Three stores keep three copies: stores of a running stack lose their disks one after the other, and no event is lost,
doubled or reordered."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.client import ScalingPolicy, connect
from headrace.deployment_defaults import CONTAINER_COUNT
from headrace.local.resources import aws_environment
from headrace.local.running import running_stack
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import COPIES

KEYS = 7
EVENTS = 30_000
LOST_AT = (5_000, 15_000)
WAIT_S = 120.0
POLL_S = 0.2


@pytest.fixture
def segment_stores() -> int:
    return 3


@pytest.mark.nightly
def test_stores_that_lose_their_disks_lose_no_event(running: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    for name, value in aws_environment(running["endpoints"]["aws"]).items():
        monkeypatch.setenv(name, value)
    read: dict[bytes, list[int]] = defaultdict(list)
    with connect(running["endpoints"]["http"]) as headrace:
        headrace.admin.create_scope("copies")
        headrace.admin.create_stream("copies", "events", scaling=ScalingPolicy.fixed(4))
        reading = threading.Thread(target=_read_all, args=(running, read))
        reading.start()
        with headrace.writer("copies", "events") as writer:
            for number in range(EVENTS):
                writer.write(f"{number % KEYS} {number}".encode(), routing_key=str(number % KEYS))
                if number in LOST_AT:
                    _lose(running["segmentStores"][LOST_AT.index(number)])
                    writer.flush()
                    _until_complete(running)
            writer.flush()
            assert writer.acknowledged_events == EVENTS
        headrace.admin.seal_stream("copies", "events")
        reading.join(WAIT_S)
        assert not reading.is_alive()
    assert read == {b"%d" % key: list(range(key, EVENTS, KEYS)) for key in range(KEYS)}


@pytest.mark.nightly
def test_volumes_may_go_after_an_orderly_stop(tmp_path: Path):
    """Tier 2 has everything then, and the records of the logs say so."""
    written: list[int] = []
    for life in range(2):
        with contextlib.ExitStack() as stack:
            running = stack.enter_context(running_stack(tmp_path, segment_stores=COPIES))
            headrace = stack.enter_context(connect(running["endpoints"]["http"]))
            if not life:
                headrace.admin.create_scope("copies")
                headrace.admin.create_stream("copies", "events", scaling=ScalingPolicy.fixed(4))
            with headrace.writer("copies", "events") as writer:
                for number in range(1_000 * life, 1_000 * (life + 1)):
                    writer.write(b"%d" % number, routing_key=str(number % KEYS))
                    written.append(number)
            if life:
                headrace.admin.seal_stream("copies", "events")
                with headrace.reader("copies", "events") as reader:
                    assert sorted(int(event.event) for event in reader) == written
        for store in running["segmentStores"]:
            shutil.rmtree(store["dataDir"])


def _lose(store: dict[str, Any]) -> None:
    """Kill a store and remove its disk. The new process finds an empty directory."""
    directory = Path(store["dataDir"])
    gone = directory.with_name(directory.name + "-gone")
    directory.rename(gone)
    os.kill(store["pid"], signal.SIGKILL)
    shutil.rmtree(gone)


def _read_all(running: dict[str, Any], read: dict[bytes, list[int]]) -> None:
    with (
        connect(running["endpoints"]["http"]) as headrace,
        headrace.reader("copies", "events", start="earliest") as reader,
    ):
        for event in reader:
            key, number = event.event.split()
            read[key].append(int(number))


def _until_complete(running: dict[str, Any]) -> None:
    """Every log has three members again, none of which is on a lost disk."""
    store = DynamoMetadataStore(running["table"])
    records = ContainerLogRecords(store)
    deadline_s = time.monotonic() + WAIT_S
    while True:
        logs = [stored.log for stored in records.read_many(range(CONTAINER_COUNT)).values()]
        alive = {bytes.fromhex(each.lease.replica_id) for each in ClusterRecords(store).leases()}
        if all(log is not None and len(log.members) == COPIES and alive >= set(log.members) for log in logs):
            return
        assert time.monotonic() < deadline_s, logs
        time.sleep(POLL_S)
