"""Saturated load on a real store process with a small cache: its memory, log and unstored bytes stay bounded.

Writers send as fast as they are acknowledged, readers follow at the tail, or within a bounded distance from it, and
truncate behind themselves. Every byte that a reader gets is held against what was written there; in the end nothing may
be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import tempfile
from pathlib import Path
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.connections import SocketConnection
from fuzz.randomness import Random
from fuzz.store_process import StoreProcess, store_process
from headrace import wire
from headrace.adapters.system_clock import SystemClock

SEGMENTS: Final = 4
CACHE_BYTES: Final = 64 << 20
RESIDENT_BYTES_MAX: Final = CACHE_BYTES + (150 << 20)
JOURNAL_FILE_BYTES: Final = 32 << 20
JOURNAL_BYTES_MAX: Final = 24 * JOURNAL_FILE_BYTES
"""What a cache of unstored data, two checkpoints of 64 MiB and spare files take, and as much again for slow tier 2."""

BLOCK_BYTES: Final = (1_000, 400_000)
IN_FLIGHT: Final = 8
TRUNCATE_EVERY_BYTES: Final = 32 << 20
BEHIND_BYTES_MAX: Final = 1 << 30
"""A reader that memory has left behind reads from tier 2, here more slowly than is written; the disk is not endless."""

SAMPLE_EVERY_S: Final = 0.25
_HEADER: Final = struct.Struct(">QQI")
_NOISE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 20


class _Stream:
    """One segment, its writer and its reader. Block n is a header and a piece of the noise that follows from n."""

    def __init__(self, number: int, store: StoreProcess, noise: bytes, random: Random, behind_bytes_max: int) -> None:
        self.name = f"scope/soak/{number}.#epoch.0"
        self.length = 0
        self._number = number
        self._store = store
        self._noise = memoryview(noise)
        self._random = random
        self._behind_bytes_max = behind_bytes_max
        self._read = 0
        self.waits = 0

    @property
    def unread_bytes(self) -> int:
        """What the reader has not read yet of what was acknowledged."""
        return self.length - self._read

    @property
    def unread_bytes_max(self) -> int:
        """Of a writer that waits; what was in flight when it began to may come on top."""
        return self._behind_bytes_max + IN_FLIGHT * (BLOCK_BYTES[1] + _HEADER.size)

    async def write(self, until_s: float, clock: SystemClock) -> None:
        connection = await SocketConnection.open(self._store.port)
        await _expect(connection, wire.CreateSegment(1, self.name, 0, 0), wire.SegmentCreated)
        await _expect(connection, wire.SetupAppend(2, self._number, self.name), wire.AppendSetup)
        sent = acknowledged = -1
        while clock.monotonic_s() < until_s or acknowledged < sent:
            near = self.unread_bytes <= self._behind_bytes_max
            while near and sent - acknowledged < IN_FLIGHT and clock.monotonic_s() < until_s:
                sent += 1
                block = self._block(sent, self._random.randint(*BLOCK_BYTES))
                connection.send(wire.AppendBlockEnd(self._number, len(block), block, 1, sent, 3))
            if acknowledged == sent:
                self.waits += 1
                await asyncio.sleep(SAMPLE_EVERY_S)
                continue
            reply = await connection.receive()
            if not isinstance(reply, wire.DataAppended):
                raise WrongStateError(f"an append to {self.name} was answered {reply}")
            acknowledged, self.length = reply.event_number, reply.current_segment_write_offset
        await _expect(connection, wire.SealSegment(4, self.name), wire.SegmentSealed)
        connection.close()

    async def read(self) -> None:
        """Up to the end of the sealed segment."""
        connection = await SocketConnection.open(self._store.port)
        pending, number, truncated = bytearray(), 0, 0
        while True:
            reply = await connection.call(wire.ReadSegment(self.name, self._read, _READ_BYTES, "", 5))
            if isinstance(reply, wire.NoSuchSegment):
                await asyncio.sleep(SAMPLE_EVERY_S)  # it is being made
                continue
            if not isinstance(reply, wire.SegmentRead) or reply.offset != self._read:
                raise WrongStateError(f"a read of {self.name} at {self._read} was answered {str(reply)[:300]}")
            self._read += len(reply.data)
            pending += reply.data
            number = self._check(pending, number)
            if self._read - truncated >= TRUNCATE_EVERY_BYTES:
                truncated = self._read - len(pending)
                await _expect(connection, wire.TruncateSegment(6, self.name, truncated), wire.SegmentTruncated)
            if reply.end_of_segment:
                break
        connection.close()
        if self._read != self.length or pending:
            raise WrongStateError(f"{self.name} ends at {self._read}, {self.length} bytes were acknowledged")

    def _block(self, number: int, length: int) -> bytes:
        return _HEADER.pack(self._number, number, length) + self._piece(number, length)

    def _piece(self, number: int, length: int) -> bytes:
        start = number * 7919 % (_NOISE_BYTES - length)
        return bytes(self._noise[start : start + length])

    def _check(self, pending: bytearray, number: int) -> int:
        """Take whole blocks off the begin; the number of the next one."""
        position = 0
        while len(pending) - position >= _HEADER.size:
            who, found, length = _HEADER.unpack_from(pending, position)
            if (who, found) != (self._number, number) or length > BLOCK_BYTES[1]:
                raise WrongStateError(f"{self.name} has block {found} of {who}, expected {number}")
            end = position + _HEADER.size + length
            if end > len(pending):
                break
            if pending[position + _HEADER.size : end] != self._piece(number, length):
                raise WrongStateError(f"block {number} of {self.name} is not as it was written")
            position, number = end, number + 1
        del pending[:position]
        return number


def soak(seed: int, *, seconds: float, behind_bytes_max: int = BEHIND_BYTES_MAX) -> str:
    """What was reached by writers that wait for readers who are further behind than that.

    Raises:
        WrongStateError: a bound was broken, or bytes are missing or wrong.
    """
    settings = {
        "cache_bytes": CACHE_BYTES,
        "journal_file_bytes": JOURNAL_FILE_BYTES,
        "flush_age_s": 1,
        "garbage_every_s": 20,  # what the readers truncate must go, or an hour of load fills the disk
        "garbage_grace_s": 30,
    }
    with (
        tempfile.TemporaryDirectory(prefix="headrace-soak-") as directory,
        store_process(Path(directory), settings) as store,
    ):
        store.start()
        summary = asyncio.run(_soak(store, Path(directory) / "data" / "journal", seed, seconds, behind_bytes_max))
        if not store.stop():
            raise WrongStateError("the store did not shut down cleanly")
        return summary


async def _soak(store: StoreProcess, journal: Path, seed: int, seconds: float, behind_bytes_max: int) -> str:
    clock = SystemClock()
    started_s = clock.monotonic_s()
    random = Random(seed)
    noise = random.randbytes(_NOISE_BYTES)
    streams = [
        _Stream(number, store, noise, Random(random.random()), behind_bytes_max) for number in range(1, SEGMENTS + 1)
    ]
    resident, logged = [0], [0]

    async def watch() -> None:
        while True:
            resident.append(_resident_bytes(store.pid))
            logged.append(_file_bytes(journal))
            if resident[-1] > RESIDENT_BYTES_MAX:
                raise WrongStateError(f"the store has {resident[-1]} bytes resident, allowed are {RESIDENT_BYTES_MAX}")
            if logged[-1] > JOURNAL_BYTES_MAX:
                raise WrongStateError(f"the journal takes {logged[-1]} bytes, allowed are {JOURNAL_BYTES_MAX}")
            for stream in streams:
                if stream.unread_bytes > stream.unread_bytes_max:
                    raise WrongStateError(
                        f"the writer of {stream.name} is {stream.unread_bytes} bytes ahead of its reader"
                    )
            await asyncio.sleep(SAMPLE_EVERY_S)

    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(watch())
        works = [group.create_task(stream.write(started_s + seconds, clock)) for stream in streams]
        works += [group.create_task(stream.read()) for stream in streams]
        await asyncio.wait(works)
        watcher.cancel()
    took_s = clock.monotonic_s() - started_s
    total = sum(stream.length for stream in streams)
    return (
        f"{total >> 20} MiB in {took_s:.0f} s, {total / took_s / 1e6:.0f} MB/s; at most {max(resident) >> 20} MiB "
        f"resident (cache {CACHE_BYTES >> 20} MiB), journal at most {max(logged) >> 20} MiB; writers waited "
        f"{sum(stream.waits for stream in streams)} times for their readers"
    )


async def _expect(connection: SocketConnection, command: wire.WireCommand, reply: type[wire.WireCommand]) -> None:
    found = await connection.call(command)
    if not isinstance(found, reply):
        raise WrongStateError(f"{command} was answered {found}")


def _resident_bytes(pid: int) -> int:
    """What the system counts for the process; 0 once it is gone."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) << 10 if found else 0


def _file_bytes(directory: Path) -> int:
    total = 0
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has another name by now
            total += path.stat().st_size
    return total
