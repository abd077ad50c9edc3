"""A real process under load is told to stop: in order when tier 2 answers, at once when it does not."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import wire

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
SEGMENT, WRITER = "scope/stream/0.#epoch.0", 4
BLOCK = 2_000
ENOUGH = 40
"""Acknowledgements after which the store is told to stop."""


async def _receive(reader: asyncio.StreamReader) -> wire.WireCommand:
    type_code, length = wire.decode_header(await asyncio.wait_for(reader.readexactly(8), WAIT_S))
    return wire.decode(type_code, memoryview(await asyncio.wait_for(reader.readexactly(length), WAIT_S)))


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
    """A connection with the writer set up; the number of its last stored event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for command in (wire.Hello(17, 5), wire.CreateSegment(1, SEGMENT, 0, 0), wire.SetupAppend(2, WRITER, SEGMENT)):
        writer.write(wire.encode(command))
        reply = await _receive(reader)
    assert isinstance(reply, wire.AppendSetup), reply
    return reader, writer, reply.last_event_number


def _block(number: int) -> bytes:
    return b"%08d" % number + bytes(BLOCK - 8)


async def _load(port: int, enough: asyncio.Event) -> int:
    """Append until the store closes the connection; the last acknowledged number."""
    reader, writer, _ = await _connect(port)
    sent = acknowledged = 0
    try:
        while True:
            while sent < acknowledged + 8:
                sent += 1
                writer.write(wire.encode(wire.AppendBlockEnd(WRITER, BLOCK, _block(sent), 1, sent, 3)))
            reply = await _receive(reader)
            assert isinstance(reply, wire.DataAppended), reply
            acknowledged = reply.event_number
            if acknowledged >= ENOUGH:
                enough.set()
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()
        return acknowledged


async def _found(port: int) -> list[int]:
    """The numbers of all blocks of the segment, in the order of their offsets."""
    reader, writer, last = await _connect(port)
    data = b""
    while len(data) < last * BLOCK:
        writer.write(wire.encode(wire.ReadSegment(SEGMENT, len(data), 1 << 20, "", 4)))
        reply = await _receive(reader)
        assert isinstance(reply, wire.SegmentRead), reply
        data += reply.data
    writer.close()
    return [int(data[position : position + 8]) for position in range(0, len(data), BLOCK)]


async def _stopped_under_load(port: int, stop: Callable[[], int]) -> tuple[int, int]:
    """Exit code, and the last number that was acknowledged."""
    enough = asyncio.Event()
    load = asyncio.ensure_future(_load(port, enough))
    load.add_done_callback(lambda _: enough.set())
    await enough.wait()
    assert not load.done(), "the store ended before it was told to"
    code = await asyncio.to_thread(stop)
    return code, await load


async def test_shutdown_under_load_leaves_nothing_on_the_volume(make_store, tmp_path: Path) -> None:
    store = make_store(flush_age_s=3600, log_level="INFO")
    store.start()
    code, acknowledged = await _stopped_under_load(store.port, store.stop)
    assert code == 0
    log = (tmp_path / "store.log").read_text()
    assert log.count("event=last_snapshot") == log.count("clean=True") == 3
    shutil.rmtree(tmp_path / "data")
    store.start()
    found = await _found(store.port)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= acknowledged
    assert store.stop() == 0


@pytest.mark.parametrize(("deadline_s", "ending"), [(3600, "stop_at_once"), (0, "stop")])
async def test_shutdown_without_tier_2_ends_in_time_and_loses_nothing(
    make_store, aws_emulator, tmp_path: Path, deadline_s, ending
) -> None:
    store = make_store(flush_age_s=3600, stop_deadline_s=deadline_s)
    store.start()

    def stop() -> int:
        """AWS falls silent no earlier: some seconds later the lease is over, and no append is acknowledged."""
        aws_emulator.send_signal(signal.SIGSTOP)
        return getattr(store, ending)()

    try:
        code, acknowledged = await _stopped_under_load(store.port, stop)
    finally:
        aws_emulator.send_signal(signal.SIGCONT)
    assert code == 1
    assert "event=stop_cut_short" in (tmp_path / "store.log").read_text()
    store.start()
    found = await _found(store.port)
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= acknowledged
    assert store.stop() == 0


def test_a_store_says_how_it_is(make_store) -> None:
    store = make_store(health_port=0, log_level="INFO")
    store.start()
    port = int(store.logged().partition("event=health_open ")[2].partition("port=")[2].split()[0])
    assert _get(port, "/health") == (200, {"status": "ok", "store": "store-0"})
    assert _get(port, "/ready") == (200, {"status": "ready", "store": "store-0", "containers": [0, 1, 2]})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        assert b"headrace_ready 1.0" in page.read()
    assert store.stop() == 0


def _get(port: int, path: str) -> tuple[int, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as page:
        return page.status, json.load(page)
