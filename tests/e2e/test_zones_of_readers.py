"""A real stack: a reader in another zone than the store gets history from S3, and the tail from the store."""

from __future__ import annotations

import re
import time
import urllib.request
from pathlib import Path

from headrace.client import Headrace, ScalingPolicy, connect
from headrace.local.running import running_stack

EVENT_BYTES = 100_000
EVENTS = 120
LATER = 3
ENVIRONMENT = {
    "HEADRACE_FLUSH_AGE_S": "0.2",
    "HEADRACE_HEALTH_PORT": "0",
    "HEADRACE_ZONE_NETWORKS": "use1-az2=127.0.0.0/8",
}


def _metrics_url(directory: Path) -> str:
    """Of the only store, which logs the port that the system chose for it."""
    lines = [path.read_text(errors="replace") for path in directory.rglob("*.log")]
    ports = [port for text in lines for port in re.findall(r"event=health_open \S+ port=(\d+)", text)]
    return f"http://127.0.0.1:{ports[-1]}/metrics"


def _sent_bytes(url: str) -> float:
    with urllib.request.urlopen(url, timeout=30) as answer:
        page = answer.read().decode()
    found = re.search(r'^headrace_client_sent_bytes_total\{zone="use1-az2"\} (\S+)$', page, re.MULTILINE)
    assert found is not None, page
    return float(found[1])


def _write(headrace: Headrace, first: int, count: int) -> None:
    with headrace.writer("shop/orders") as writer:
        for number in range(first, first + count):
            writer.write(b"%0*d" % (EVENT_BYTES - 8, number))


def _read(headrace: Headrace) -> list[int]:
    end = headrace.admin.stream_cut("shop", "orders", at="latest")
    with headrace.reader("shop/orders", end=end) as reader:
        return [int(event.event[-8:]) for event in reader]


def test_history_crosses_no_zone_and_the_tail_does(tmp_path: Path):
    with running_stack(tmp_path, segment_stores=1, environment=ENVIRONMENT) as running:
        url = running["endpoints"]["http"]
        metrics = _metrics_url(tmp_path)
        with connect(url) as headrace:
            headrace.admin.create_scope("shop")
            headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
            _write(headrace, 0, EVENTS)
            history = EVENTS * EVENT_BYTES
            while headrace.admin.chunks("shop", "orders", 0, from_offset=0, to_offset=history).stored_until < history:
                time.sleep(0.1)
            before = _sent_bytes(metrics)
            assert _read(headrace) == list(range(EVENTS))
            assert _sent_bytes(metrics) - before > history, "without a zone of its own all comes from the store"
        with connect(url, zone="use1-az2") as headrace:
            before = _sent_bytes(metrics)
            assert _read(headrace) == list(range(EVENTS))
            assert _sent_bytes(metrics) - before < history / 100
            _write(headrace, EVENTS, LATER)
            assert _read(headrace) == list(range(EVENTS + LATER))
