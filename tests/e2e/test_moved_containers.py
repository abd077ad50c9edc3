"""Stores of a running stack are told to stop under a writer and a reader: their containers move away and come back, and
neither notices more than a pause."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from headrace.client import ScalingPolicy, connect

KEYS = 11
EVENTS = 12_000
STOP_AT = (3_000, 7_000)
WAIT_S = 90.0
POLL_S = 0.2


@pytest.mark.nightly
def test_moving_containers_loses_doubles_and_reorders_no_event(running: dict[str, Any]):
    stores = {store["id"]: store["pid"] for store in running["segmentStores"]}
    read: dict[bytes, list[int]] = defaultdict(list)
    with connect(running["endpoints"]["http"]) as headrace:
        headrace.admin.create_scope("moves")
        headrace.admin.create_stream("moves", "events", scaling=ScalingPolicy.fixed(4))
        assert _owners(headrace) == set(stores)
        reading = threading.Thread(target=_read_all, args=(running, read))
        reading.start()
        with headrace.writer("moves", "events") as writer:
            for number in range(EVENTS):
                writer.write(f"{number % KEYS} {number}".encode(), routing_key=str(number % KEYS))
                if number in STOP_AT:
                    store_id, pid = stores.popitem()
                    os.kill(pid, signal.SIGTERM)
                    writer.flush()
                    _until_back(headrace, store_id)
            writer.flush()
            assert writer.acknowledged_events == EVENTS
        headrace.admin.seal_stream("moves", "events")
        reading.join(WAIT_S)
        assert not reading.is_alive()
        assert {each.state for each in headrace.admin.cluster.get().stores} == {"SERVING"}
    assert read == {b"%d" % key: list(range(key, EVENTS, KEYS)) for key in range(KEYS)}


def _read_all(running: dict[str, Any], read: dict[bytes, list[int]]) -> None:
    """With a client of its own, at the tail until the stream is sealed."""
    with (
        connect(running["endpoints"]["http"]) as headrace,
        headrace.reader("moves", "events", start="earliest") as reader,
    ):
        for event in reader:
            key, number = event.event.split()
            read[key].append(int(number))


def _owners(headrace: Any) -> set[str | None]:
    """Who serves containers now; complete only when each has its store."""
    containers = headrace.admin.cluster.containers().containers
    return {each.claimed_by if each.state == "SERVED" else None for each in containers}


def _until_back(headrace: Any, store_id: str) -> None:
    """The store was replaced by a new process, and every container is served again, some by it."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        started = {each.store_id: each.incarnation for each in headrace.admin.cluster.get().stores}
        owners = _owners(headrace)
        if started[store_id] > 1 and None not in owners and store_id in owners:
            return
        assert time.monotonic() < deadline_s, (started, owners)
        time.sleep(POLL_S)
