"""Segment stores are killed with -9 under a writer of the public client, and `headrace up` brings them back."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from headrace.adapters.system_clock import SystemClock
from headrace.client import ScalingPolicy, connect
from headrace.doctor.examination import examine_deployment
from headrace.doctor.findings import Finding, Verdict
from headrace.model.cluster import STARTS_KEPT, StoreState

KEYS = 11
EVENTS = 30_000
KILL_AT = (6_000, 14_000, 22_000)
SCALE_AT = 10_000


def test_nothing_is_lost_doubled_or_reordered(running: dict[str, Any]):
    stores = [store["id"] for store in running["segmentStores"]]
    pids = {store["id"]: store["pid"] for store in running["segmentStores"]}
    with connect(running["endpoints"]["http"]) as headrace:
        headrace.admin.create_scope("crash")
        headrace.admin.create_stream("crash", "events", scaling=ScalingPolicy.fixed(2))
        scale = threading.Thread(target=_split_first_segment, args=(headrace,))
        with headrace.writer("crash", "events") as writer:
            for number in range(EVENTS):
                writer.write(f"{number % KEYS} {number}".encode(), routing_key=str(number % KEYS))
                if number == SCALE_AT:
                    scale.start()
                if number in KILL_AT:
                    # Each store once by the process id it was started with; then the first acknowledgement after it
                    # proves that the store came back.
                    if stores:
                        os.kill(pids[stores.pop()], signal.SIGKILL)
                    writer.flush()
            writer.flush()
            assert writer.acknowledged_events == EVENTS
        scale.join()
        tail = headrace.admin.stream_cut("crash", "events", at="latest")
        read: dict[bytes, list[int]] = defaultdict(list)
        with headrace.reader("crash", "events", start="earliest", end=tail) as reader:
            for event in reader:
                key, position = event.event.split()
                read[key].append(int(position))
    assert read == {b"%d" % key: list(range(key, EVENTS, KEYS)) for key in range(KEYS)}
    assert not stores


def _split_first_segment(headrace: Any) -> None:
    first = headrace.admin.segments("crash", "events", at="latest")[0]
    low, high = first.key_range.low, first.key_range.high
    middle = (low + high) / 2
    headrace.admin.scale_stream("crash", "events", seal=[first.segment_id], ranges=[(low, middle), (middle, high)])


def test_the_doctor_names_a_store_that_starts_again_and_again(running: dict[str, Any], tmp_path: Path):
    """It serves at the moment when the doctor looks."""
    url = running["endpoints"]["http"]
    with connect(url) as headrace:

        def starts() -> int:
            [store] = [each for each in headrace.admin.cluster.get().stores if each.store_id == "store-1"]
            return len(store.starts_ms) if store.state is StoreState.SERVING else 0

        assert "store-1" not in _stores(headrace, url).evidence
        killed: set[int | None] = {None}
        for number in range(1, STARTS_KEPT):
            # On a busy machine a lease may run out. Then the store registers again, which counts as a start.
            while (pid := _pid(tmp_path, "store-1")) in killed or starts() < number:
                time.sleep(0.05)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        while starts() != STARTS_KEPT:
            time.sleep(0.05)
        stores = _stores(headrace, url)
    assert stores.verdict is Verdict.WARNING
    assert f"started again and again: store-1 ({STARTS_KEPT} times in " in stores.evidence


def _pid(directory: Path, store_id: str) -> int | None:
    state = json.loads((directory / "local-stack.json").read_text())
    pids: dict[str, int | None] = {store["id"]: store["pid"] for store in state["segmentStores"]}
    return pids[store_id]


def _stores(headrace: Any, url: str) -> Finding:
    findings = examine_deployment(headrace, url, SystemClock())
    return next(finding for finding in findings if finding.check == "stores")
