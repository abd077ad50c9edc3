"""kill -9 of a process that reads in a group: its segments come back by themselves, and no event is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from headrace.client import GroupReaderOptions, GroupStream, ReaderGroupConfiguration, ScalingPolicy, connect

EVENTS = 300
LEASE_S = 2.0
READER = f"""
import sys
from headrace.client import GroupReaderOptions, connect

with connect(sys.argv[1]) as headrace, headrace.reader_group("shop", "mail") as group:
    with group.reader("killed", GroupReaderOptions(lease_s={LEASE_S})) as reader:
        for event in reader:
            print(event.event.decode(), flush=True)
"""


@pytest.mark.nightly
def test_segments_of_a_killed_process_come_back(running: dict[str, Any]) -> None:
    url = running["endpoints"]["http"]
    with connect(url) as headrace:
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(4))
        with headrace.writer("shop", "orders") as writer:
            for number in range(EVENTS):
                writer.write(str(number).encode(), f"key-{number % 20}")
        end = headrace.admin.stream_cut("shop", "orders")
        reads = ReaderGroupConfiguration((GroupStream("shop", "orders", end=end),))
        headrace.admin.reader_groups.create("shop", "mail", reads)
        group = headrace.reader_group("shop", "mail")
        child = subprocess.Popen([sys.executable, "-c", READER, url], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            first = [int(child.stdout.readline()) for _ in range(10)]
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            first += [int(line) for line in child.stdout or () if line.endswith("\n")]
            if child.stdout is not None:
                child.stdout.close()
        assert "killed" in group.readers()
        with group.reader("other", GroupReaderOptions(lease_s=LEASE_S)) as reader:
            second = [int(event.event) for event in reader]
        assert set(first) | set(second) == set(range(EVENTS))
        assert len(second) == len(set(second))
        assert "killed" not in group.readers()
