"""One store of two processes: real ones, on one volume, under their supervisor."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import wire
from headrace.model.names import container_of_segment
from segmentstore_fargate.layout import was_served

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
CONTAINERS = 4
READY = re.compile(r"ready store=store-0\.(\d) host=127\.0\.0\.1 port=(\d+) containers=([\d,]+)\n")


@pytest.fixture
def supervise(make_store) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a supervisor on the test's volume; nothing of it outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        environment = make_store(processes=2, container_count=CONTAINERS, cache_bytes=128 << 20).environment
        command = [sys.executable, "-c", _SUPERVISOR]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate()


_SUPERVISOR = """
import os, sys
from segmentstore_fargate.config import process_environments
from segmentstore_fargate.supervised import STORE_COMMAND, Supervisor
sys.exit(Supervisor(STORE_COMMAND, process_environments(os.environ), pause_s=0).run())
"""


def _ready(process: subprocess.Popen[str], count: int) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Port and containers of the next `count` processes that are ready, by their number."""
    assert process.stdout is not None
    found = {}
    for _ in range(count):
        line = process.stdout.readline()
        match = READY.fullmatch(line)
        assert match is not None, line
        found[int(match[1])] = int(match[2]), tuple(map(int, match[3].split(",")))
    return found


async def _ask(port: int, *commands: wire.WireCommand) -> list[wire.WireCommand]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    replies = []
    for command in (wire.Hello(17, 5), *commands):
        writer.write(wire.encode(command))
        type_code, length = wire.decode_header(await asyncio.wait_for(reader.readexactly(8), WAIT_S))
        replies.append(wire.decode(type_code, memoryview(await reader.readexactly(length))))
    writer.close()
    return replies[1:]


def _segment_of(container: int) -> str:
    names = (f"scope/stream/{number}.#epoch.0" for number in range(1000))
    return next(name for name in names if container_of_segment(name, CONTAINERS) == container)


async def _write(port: int, container: int) -> None:
    segment = _segment_of(container)
    create, set_up = wire.CreateSegment(1, segment, 0, 0), wire.SetupAppend(2, 9, segment)
    replies = await _ask(port, create, set_up, wire.AppendBlockEnd(9, 3, b"abc", 1, 1, 3))
    assert isinstance(replies[2], wire.DataAppended), replies


async def _length(port: int, container: int) -> int:
    (info,) = await _ask(port, wire.GetStreamSegmentInfo(4, _segment_of(container)))
    assert isinstance(info, wire.StreamSegmentInfo), info
    return info.write_offset


async def test_each_process_has_its_containers_and_survives_the_others(supervise, tmp_path: Path) -> None:
    supervisor = supervise()
    processes = _ready(supervisor, 2)
    assert was_served(tmp_path / "data"), "or its supervisor could give up a volume with events"
    assert {number: containers for number, (_, containers) in processes.items()} == {0: (0, 2), 1: (1, 3)}
    for port, containers in processes.values():
        await _write(port, containers[0])
    first_port = processes[0][0]
    (refused,) = await _ask(first_port, wire.GetStreamSegmentInfo(4, _segment_of(1)))
    assert isinstance(refused, wire.WrongHost)
    os.kill(_holder(tmp_path / "data" / "process-1" / "journal"), signal.SIGKILL)
    second_port = _ready(supervisor, 1)[1][0]
    assert await _length(second_port, 1) == 3
    assert await _length(first_port, 0) == 3
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(WAIT_S) == 0


def _holder(journal: Path) -> int:
    """The process that has this journal open."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                opened = [os.readlink(link) for link in (entry / "fd").iterdir()]
            except OSError:
                continue
            if any(name.startswith(f"{journal}/") for name in opened):
                return int(entry.name)
    raise AssertionError(f"nobody has {journal} open")


@pytest.mark.nightly
def test_a_volume_of_two_processes_is_not_taken_by_one(supervise, make_store, tmp_path: Path) -> None:
    supervisor = supervise()
    _ready(supervisor, 2)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(WAIT_S) == 0
    store = make_store(container_count=CONTAINERS)
    refused = subprocess.run(
        [sys.executable, "-m", "segmentstore_fargate"],
        env=store.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "HEADRACE_PROCESSES" in refused.stderr
