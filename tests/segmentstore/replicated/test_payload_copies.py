"""Payloads of 64 KiB and more are not copied on their way from an owner's cache to the disk of a replica.

The addresses of all buffers are recorded that `sendmsg`, the receiving transport and `pwritev` get. The only bytes that
a replica copies are those that came together with the header of an entry, when it did not yet know the entry's size.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from held_disk import HeldDisk
from replica_sockets import PATIENT, identity
from replicated_world import LOG, ReplicatedWorld, opened, until

from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.tcp.listener import bind_socket
from headrace.adapters.tcp.replica_links import TcpReplicaLinks
from headrace.adapters.tcp.replica_listener import ReplicaListener
from headrace.adapters.tcp.replica_protocol import CHUNK_BYTES, MessageAssembler
from headrace.codec.data_frames import FRAME_HEADER_BYTES
from headrace.model.container_logs import ReplicaId
from headrace.model.replica_placement import ReplicaAddress
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.containers.operation_log import OperationLog, OrderingClock
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions

pytestmark = pytest.mark.anyio

HEADERS_BYTES_MAX = 4096
"""Buffers that are not longer are headers of messages and files, pulses and the like."""

Range = tuple[int, int]
"""Addresses: the first one, and the one behind the last."""


class TcpNetwork:
    """The nodes of a `ReplicatedWorld` over real sockets."""

    def __init__(self) -> None:
        self._addresses: dict[ReplicaId, ReplicaAddress] = {}
        self._listeners: dict[ReplicaId, tuple[ReplicaListener, asyncio.Task[None]]] = {}

    def serve(self, sessions: ReplicaSessions) -> None:
        bound = bind_socket("127.0.0.1", 0)
        self._addresses[sessions.replica] = ReplicaAddress("127.0.0.1", bound.getsockname()[1])
        listener = ReplicaListener(sessions, identity(sessions.replica), times=PATIENT)
        self._listeners[sessions.replica] = listener, asyncio.ensure_future(listener.start(bound))

    def links(self, replica: ReplicaId) -> TcpReplicaLinks:
        return TcpReplicaLinks(identity(replica), self._addresses.get, times=PATIENT)

    def kill(self, _replica: ReplicaId) -> None:
        """The listeners end with the world."""

    async def close(self) -> None:
        for listener, started in self._listeners.values():
            await started
            await listener.close()


class RecordedMemory:
    """The memory that was handed to the kernel, or filled by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Range] = []
        self.received: list[Range] = []
        self.written: list[Range] = []
        self.copied_when_received = 0
        self._kept: list[memoryview] = []
        send, write = socket.socket.sendmsg, os.pwritev
        writable, received, make_room = (
            getattr(MessageAssembler, name) for name in ("writable", "received", "_make_room")
        )

        def sendmsg(sock: socket.socket, buffers: Sequence[memoryview]) -> int:
            count = send(sock, buffers)
            self.sent += _taken(buffers, count)
            return count

        def pwritev(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int) -> int:
            count = write(descriptor, buffers, position, flags)
            if any(buffers[0][:64]):  # new files are filled with zeros
                self.written += _taken(buffers, count)
            return count

        def note_received(assembler: MessageAssembler, count: int) -> None:
            buffer = writable(assembler)
            self.received.append(_range(buffer[:count]))
            self._kept.append(buffer)  # so that its addresses are used for nothing else
            received(assembler, count)

        def note_copied(assembler: MessageAssembler, *arguments: Any) -> None:
            before = assembler.copied_bytes
            make_room(assembler, *arguments)
            self.copied_when_received += assembler.copied_bytes - before

        monkeypatch.setattr(socket.socket, "sendmsg", sendmsg)
        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(MessageAssembler, "received", note_received)
        monkeypatch.setattr(MessageAssembler, "_make_room", note_copied)


def _range(buffer: Any) -> Range:
    start = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] if len(buffer) else 0
    return start, start + len(buffer)


def _taken(buffers: Sequence[memoryview], count: int) -> list[Range]:
    """The first `count` bytes of these buffers, without headers."""
    found = []
    for buffer in buffers:
        start, end = _range(buffer)
        if len(buffer) > HEADERS_BYTES_MAX and count > 0:
            found.append((start, min(end, start + count)))
        count -= len(buffer)
    return found


def _size(ranges: Sequence[Range]) -> int:
    return sum(end - start for start, end in ranges)


def _outside(ranges: Sequence[Range], memory: Sequence[Range]) -> int:
    """The bytes of `ranges` that lie outside of `memory`. Ranges of received memory may follow each other closely."""
    joined: list[Range] = []
    for start, end in sorted(memory):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    inside = sum(max(0, min(end, top) - max(start, low)) for start, end in ranges for low, top in joined)
    return _size(ranges) - inside


@pytest.mark.parametrize("length", [64 << 10, 200_000, 1_000_000])
async def test_payloads_are_not_copied(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    world, network = ReplicatedWorld(), TcpNetwork()
    world.network = network  # type: ignore[assignment]
    owner = await world.start("a")
    replica = await world.start("b", DiskJournalDisk(tmp_path))  # type: ignore[arg-type]
    try:
        ledger = await opened(world, "a")
        await until(lambda: ledger.unacknowledged_fill == 0 and replica.sessions.log(LOG).session is not None)
        pool = BlockPool(32 << 20, 2 << 20)
        log = OperationLog(ledger, OrderingClock(ManualClock()), pool=pool)
        memory = RecordedMemory(monkeypatch)
        # The memory of an entry may be used again when the own journal has it. A link copies what it did not send yet.
        held = HeldDisk(owner.disk)
        entries, blocks = 10, []
        for number in range(entries):
            data = pool.reserve(length)
            assert data is not None
            data.fill([memoryview(Random(number).randbytes(length))])
            blocks += [_range(part) for part in data.parts]
            log.append_framed([b"head", *data.parts], 4 + length, lambda _error: None, data)
            await until(lambda: replica.sessions.log(LOG).durable_end == ledger.next_entry > 0)
            assert replica.sessions.log(LOG).durable_end >= number + 1
        held.release()
        await log.durable()
        assert _size(memory.sent) == entries * length
        assert _outside(memory.sent, blocks) == 0
        written = memory.written  # by the replica: the disk of the owner is in memory
        assert _size(written) == entries * (FRAME_HEADER_BYTES + 4 + length)
        copied = _outside(written, memory.received)
        assert copied <= memory.copied_when_received <= entries * CHUNK_BYTES
    finally:
        for node in list(world.nodes.values()):
            await world.stop(node)
        await network.close()
