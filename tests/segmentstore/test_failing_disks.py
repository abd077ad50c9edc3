"""A disk that is full or breaks stops every container for good: what was not durable is never acknowledged, and what
was acknowledged is there after a restart."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys

import pytest
from store_world import World

from headrace import wire
from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.model.errors import UnavailableError

pytestmark = pytest.mark.anyio

SEGMENTS = [f"scope/stream/{number}.#epoch.0" for number in range(6)]
WRITER = 5
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


class FailingFile:
    def __init__(self, disk, file):
        self._disk = disk
        self._file = file
        self.size_bytes = file.size_bytes
        self.read = file.read
        self.close = file.close

    def write(self, position, parts):
        self._disk.before("write")
        self._file.write(position, parts)

    def sync(self):
        self._disk.before("sync")
        self._file.sync()

    def write_durably(self, position, parts):
        self.write(position, parts)
        self.sync()


class FailingDisk:
    """A real directory with the faults of the memory disk."""

    def __init__(self, directory):
        self._disk = DiskJournalDisk(directory)
        self.before = lambda _step: None
        self.names = self._disk.names
        self.remove = self._disk.remove
        self.space = self._disk.space
        self.close = self._disk.close

    def create(self, name, size_bytes):
        self.before("create")
        self._disk.create(name, size_bytes)

    def open(self, name):
        return FailingFile(self, self._disk.open(name))

    def rename(self, old, new):
        self.before("rename")
        self._disk.rename(old, new)


@pytest.fixture(params=["memory", "directory"])
def disk(request, tmp_path):
    if request.param == "memory":
        yield MemoryJournalDisk()
        return
    disk = FailingDisk(tmp_path / "journal")
    yield disk
    disk.close()


@pytest.mark.parametrize(
    ("step", "error"),
    [("write", FULL), ("write", BROKEN), ("sync", BROKEN), ("sync", FULL), ("create", FULL), ("rename", BROKEN)],
    ids=lambda value: value if isinstance(value, str) else errno.errorcode[value.errno],
)
async def test_nothing_is_acknowledged_after_a_failure(world: World, disk, step, error, monkeypatch):
    world.disk = disk
    world.file_bytes = 64 << 10  # new files are needed often
    data = bytes(range(250)) * 40
    acknowledged = [0]

    async def append_until_closed(client):
        try:
            while acknowledged[0] < 1000:
                number = acknowledged[0] + 1
                reply = await client.call(wire.AppendBlockEnd(WRITER, len(data), data, 1, number, 9))
                if isinstance(reply, wire.WrongHost):
                    return
                assert isinstance(reply, wire.DataAppended), reply
                acknowledged[0] = number
                if acknowledged[0] == 20:
                    break_disk()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return

    def break_disk():
        def before(now):
            if now == step:
                raise error

        disk.before = before
        # Without tiering no file becomes free, so that the journal needs a new one.
        monkeypatch.setattr(world.chunks, "put", refuse)

    async def refuse(name, parts):
        raise UnavailableError(f"no answer about {name}")

    failures = world.failures
    async with world.running(graceful=False) as running:
        client, other = await running.connect(), await running.connect()
        await client.create(SEGMENTS[0])
        for segment in SEGMENTS[1:]:
            await other.create(segment)
        await client.set_up(SEGMENTS[0], WRITER)
        await append_until_closed(client)
        container, cause = failures[0]
        assert error.strerror in str(cause)
        assert container not in running.store.owned
        # The disk works again, but a failed journal stays failed, and so do the others on this disk.
        disk.before = lambda _step: None
        monkeypatch.undo()
        for segment in SEGMENTS:
            reply = await other.call(wire.SealSegment(3, segment))
            assert isinstance(reply, wire.WrongHost | wire.ErrorMessage), reply
            other = await running.connect()
        assert isinstance(running.journal.failure, UnavailableError)
        assert sorted(number for number, _ in failures) == list(range(world.container_count))
    assert acknowledged[0] >= 20
    async with world.running() as running:
        client = await running.connect()
        stored = await client.set_up(SEGMENTS[0], WRITER)
        assert stored >= acknowledged[0]
        assert await client.read_all(SEGMENTS[0]) == data * stored
        for segment in SEGMENTS:
            reply = await client.call(wire.SealSegment(3, segment))
            assert isinstance(reply, wire.SegmentSealed | wire.SegmentIsSealed), reply


REAL_LIMIT = """
import resource, sys, threading
from pathlib import Path
from headrace.adapters.disk import DiskJournalDisk
from headrace.model.errors import UnavailableError
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

disk = DiskJournalDisk(Path(sys.argv[1]))
journal = Journal(disk, lambda: 7, lambda call: call(), file_bytes=1 << 20)
journal.start()
ledger = OneCopyLedgers(journal).open(0, int(sys.argv[2]))
found = sum(1 for _ in ledger.recover())
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
outcomes, reached = [], threading.Semaphore(0)

def done(error):
    outcomes.append(error)
    reached.release()

try:
    for _ in range(100):
        ledger.append([b'x' * 8_000], done)
        reached.acquire()
except UnavailableError as error:
    refused = error
durable = outcomes.index(next(filter(None, outcomes)))
assert all(isinstance(error, UnavailableError) for error in outcomes[durable:]), outcomes
assert 'File too large' in str(refused)
print(found, durable)
journal.close()
"""


def test_a_write_that_the_system_refuses_half_way(tmp_path):
    """A limit on the size of files, so that the system itself takes some bytes of a write and refuses the rest."""
    found_before = 0
    for epoch in range(1, 4):
        command = [sys.executable, "-c", REAL_LIMIT, str(tmp_path), str(epoch)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        found, durable = map(int, told)
        assert found == found_before
        assert 30 < durable < 40  # about 300 kB
        found_before += durable


def test_what_was_left_unfinished_is_removed(tmp_path):
    disk = DiskJournalDisk(tmp_path)
    disk.create("spare-0000000000000001", 8192)
    disk.close()
    (tmp_path / "spare-0000000000000002.unfinished").write_bytes(bytes(5000))
    disk = DiskJournalDisk(tmp_path)
    assert disk.names() == ["spare-0000000000000001"]
    assert not list(tmp_path.glob("*.unfinished"))
    disk.close()


def test_a_file_that_cannot_be_made_whole_leaves_nothing(tmp_path, monkeypatch):
    disk = DiskJournalDisk(tmp_path)

    def full(_descriptor):
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            disk.create("spare-0000000000000001", 8192)
    assert not [path for path in tmp_path.iterdir() if path.name != ".lock"]
    disk.close()
