"""Files of the journal on a real disk: which calls of the system make bytes durable."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.adapters.disk import DiskJournalDisk, DiskJournalFile

FILE_BYTES = 1 << 20


@pytest.fixture
def file(tmp_path) -> Iterator[DiskJournalFile]:
    disk = DiskJournalDisk(tmp_path)
    disk.create("journal", FILE_BYTES)
    file = disk.open("journal")
    yield file
    file.close()
    disk.close()


class Calls:
    """Notes the calls of the system. A write takes at most `taken_bytes_max` bytes."""

    def __init__(self, monkeypatch, taken_bytes_max=FILE_BYTES):
        self.noted: list[str] = []
        self._write, self._sync = os.pwritev, os.fdatasync
        self._taken_bytes_max = taken_bytes_max
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwritev(self, descriptor, parts, position, flags=0):
        self.noted.append("durable write" if flags & os.RWF_DSYNC else "write")
        first = b"".join(parts)[: self._taken_bytes_max]
        return self._write(descriptor, [first], position, flags)

    def fdatasync(self, descriptor):
        self.noted.append("sync")
        self._sync(descriptor)


def test_a_durable_write_is_one_call(file, monkeypatch):
    calls = Calls(monkeypatch)
    file.write_durably(10, [b"ab", b"cd"])
    assert calls.noted == ["durable write"]
    assert file.read(9, 6) == b"\0abcd\0"


def test_each_part_of_a_durable_write_is_durable(file, monkeypatch):
    calls = Calls(monkeypatch, taken_bytes_max=3)
    file.write_durably(0, [b"ab", b"cd", b"e"])
    assert calls.noted == ["durable write", "durable write"]
    assert file.read(0, 5) == b"abcde"


def test_very_many_parts_are_synced_once(file, monkeypatch):
    calls = Calls(monkeypatch)
    parts = [bytes([number % 251]) * 3 for number in range(3000)]
    file.write_durably(0, parts)
    assert calls.noted == ["write", "write", "write", "sync"]
    assert file.read(0, 9000) == b"".join(parts)


def test_a_write_alone_syncs_nothing(file, monkeypatch):
    calls = Calls(monkeypatch)
    file.write(0, [b"ab"])
    assert calls.noted == ["write"]
