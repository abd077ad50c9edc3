"""The journal disk in memory as the double of a real one."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.adapters.memory.journal_disk import SECTOR_BYTES, MemoryJournalDisk

FILES = [f"journal-{number}" for number in range(20)]


def test_the_power_goes_while_a_thread_writes():
    """A cut finds each file whole: as it was before an operation or after it."""
    disk, over = MemoryJournalDisk(), threading.Event()

    def write() -> None:
        while not over.is_set():
            for name in FILES:
                disk.create(name, 4096)
                disk.open(name).write(0, [bytes([1]) * 4096])
            for name in FILES:
                disk.open(name).sync()
                disk.rename(name, f"{name}.old")
                disk.remove(f"{name}.old")

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(write)
            try:
                for seed in range(300):
                    assert len(disk.cut_power(seed).names()) <= len(FILES)
            finally:
                over.set()
            working.result()
    finally:
        sys.setswitchinterval(usual)


def test_a_durable_write_syncs_its_own_bytes_only():
    disk = MemoryJournalDisk()
    disk.create("journal", 3 * SECTOR_BYTES)
    file = disk.open("journal")
    file.write(0, [b"a" * SECTOR_BYTES])
    file.write_durably(SECTOR_BYTES, [b"b" * SECTOR_BYTES])
    left = {disk.cut_power(seed).open("journal").read(0, 3 * SECTOR_BYTES) for seed in range(100)}
    second = {content[SECTOR_BYTES:] for content in left}
    assert second == {b"b" * SECTOR_BYTES + bytes(SECTOR_BYTES)}
    assert {content[:1] for content in left} == {b"a", b"\0"}


@pytest.mark.parametrize(("position", "length"), [(10, 20), (0, 20), (-20, 40), (10, SECTOR_BYTES)])
def test_a_part_of_an_unreadable_sector_is_not_written(position: int, length: int):
    """A kernel reads the rest of it first. A write of the whole sector makes it readable again."""
    disk = MemoryJournalDisk()
    disk.create("journal", 4 * SECTOR_BYTES)
    file = disk.open("journal")
    disk.make_unreadable("journal", SECTOR_BYTES)
    with pytest.raises(OSError, match="Input/output error"):
        file.write(SECTOR_BYTES + position, [b"x" * length])
    assert file.read(2 * SECTOR_BYTES, SECTOR_BYTES) == bytes(SECTOR_BYTES)
    file.write(SECTOR_BYTES, [b"y" * SECTOR_BYTES])
    file.write(SECTOR_BYTES + position, [b"x" * length])
    assert file.read(SECTOR_BYTES + position, length) == b"x" * length
