"""The journal disk in memory as the double of a real one."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

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
