"""`python -m benchmarks.commit_ways`: what it costs an event loop to have a small commit done by a thread.

Three ways take turns on one uvloop. A thread writes and syncs, as the journal does. The loop itself writes and syncs,
and stands still meanwhile. The loop writes, and the kernel syncs without a thread of the process (io_submit with
IOCB_CMD_FDSYNC, Linux 4.18 or newer) and reports that by an eventfd.

Each commit is 1 KiB over a file that was written before. They come one at a time with a pause of a millisecond, so that
threads and cores have gone to sleep, as at 10,000 events/s.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Protocol

import uvloop

from benchmarks.latencies import Latencies
from benchmarks.machine import machine_facts, versions
from benchmarks.results import Results, document

KIB: Final = 1024
FILE_BYTES: Final = 16 << 20
BLOCK: Final = bytes(KIB)
PAUSE_S: Final = 0.001
# The numbers of io_setup, io_destroy, io_submit and io_getevents, for which the C library has no functions.
SYSTEM_CALLS: Final = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
IOCB_CMD_FDSYNC: Final = 3
IOCB_FLAG_RESFD: Final = 1

Done = Callable[[], object]


class Way(Protocol):
    """Makes one block durable at a time. `done` is called on the event loop."""

    name: str

    def commit(self, position: int, done: Done) -> None: ...

    def close(self) -> None: ...


class ByThread:
    """The loop hands the block to a thread, which hands the outcome back."""

    name = "a thread writes and syncs"

    def __init__(self, file: int) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[int, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="commits")
        self._thread.start()

    def commit(self, position: int, done: Done) -> None:
        self._queue.put((position, done))

    def _run(self) -> None:
        while (commit := self._queue.get()) is not None:
            os.pwritev(self._file, [BLOCK], commit[0], os.RWF_DSYNC)
            self._loop.call_soon_threadsafe(commit[1])

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()


class ByLoop:
    """Nothing else runs on the loop until the block is durable."""

    name = "the loop writes and syncs"

    def __init__(self, file: int) -> None:
        self._file = file

    def commit(self, position: int, done: Done) -> None:
        os.pwritev(self._file, [BLOCK], position, os.RWF_DSYNC)
        done()

    def close(self) -> None:
        """Nothing is open."""


class _Iocb(ctypes.Structure):
    """`struct iocb` of linux/aio_abi.h, little-endian."""

    _fields_ = [
        ("data", ctypes.c_uint64), ("key", ctypes.c_uint32), ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16), ("priority", ctypes.c_int16), ("file", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64), ("length", ctypes.c_uint64), ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("result_file", ctypes.c_uint32),
    ]  # fmt: skip


class _IoEvent(ctypes.Structure):
    """`struct io_event` of linux/aio_abi.h."""

    _fields_ = [
        ("data", ctypes.c_uint64),
        ("iocb", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("more", ctypes.c_int64),
    ]


class ByKernel:
    """The loop writes into the page cache, and a thread of the kernel syncs."""

    name = "the loop writes, the kernel syncs"

    def __init__(self, file: int) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._system_call = ctypes.CDLL(None, use_errno=True).syscall
        io_setup, self._io_destroy, self._io_submit, self._io_getevents = SYSTEM_CALLS[platform.machine()]
        self._context = ctypes.c_ulong(0)
        self._checked(self._system_call(io_setup, 1, ctypes.byref(self._context)))
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._iocb = _Iocb(opcode=IOCB_CMD_FDSYNC, file=file, flags=IOCB_FLAG_RESFD, result_file=self._ended)
        self._list = (ctypes.POINTER(_Iocb) * 1)(ctypes.pointer(self._iocb))
        self._event = _IoEvent()
        self._done: Done | None = None
        self._loop.add_reader(self._ended, self._report)

    def commit(self, position: int, done: Done) -> None:
        os.pwrite(self._file, BLOCK, position)
        self._done = done
        self._checked(self._system_call(self._io_submit, self._context, 1, self._list))

    def _report(self) -> None:
        os.eventfd_read(self._ended)
        self._checked(self._system_call(self._io_getevents, self._context, 1, 1, ctypes.byref(self._event), None))
        if self._event.result < 0:
            raise OSError(-self._event.result, os.strerror(-self._event.result))
        assert self._done is not None, "one commit is under way"
        self._done()

    def _checked(self, result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def close(self) -> None:
        self._loop.remove_reader(self._ended)
        self._checked(self._system_call(self._io_destroy, self._context))
        os.close(self._ended)


async def measure(results: Results, directory: Path, seconds: float) -> None:
    """One round: every way for `seconds`, in turns of a tenth of it."""
    with tempfile.NamedTemporaryFile(dir=directory) as written:
        written.write(os.urandom(FILE_BYTES))
        written.flush()
        os.fsync(written.fileno())
        ways: list[Way] = [make(written.fileno()) for make in (ByThread, ByLoop, ByKernel)]
        taken_ns: dict[str, list[int]] = {way.name: [] for way in ways}
        for _ in range(10):
            for way in ways:
                taken_ns[way.name] += await _commits(way, seconds / 10)
        for way in ways:
            way.close()
    beside: str | None = None
    for name, each in taken_ns.items():
        latencies = Latencies.of_ns(each)
        for part, found_ms in (("p50", latencies.p50_ms), ("p99", latencies.p99_ms)):
            results.add(f"{name}, {part}", found_ms * 1e3, "us", beside=beside and f"{beside}, {part}")
        beside = beside or name


async def _commits(way: Way, seconds: float) -> list[int]:
    loop, taken_ns = asyncio.get_running_loop(), list[int]()
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s or not taken_ns:
        await asyncio.sleep(PAUSE_S)
        durable: asyncio.Future[int] = loop.create_future()
        started_ns = time.monotonic_ns()
        way.commit(
            len(taken_ns) * KIB % FILE_BYTES,
            lambda done=durable.set_result: done(time.monotonic_ns()),  # type: ignore[misc]
        )
        taken_ns.append(await durable - started_ns)
    return taken_ns


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commit_ways", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take medians of")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each way in a round")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for results and data")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    facts, results = machine_facts(), Results()
    for _ in range(options.rounds):
        uvloop.run(measure(results, options.output, options.seconds))
    settings = {"rounds": options.rounds, "seconds": options.seconds, "block_bytes": KIB, "pause_s": PAUSE_S}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    (options.output / "commit-ways.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
