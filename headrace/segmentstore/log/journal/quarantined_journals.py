"""Journals in quarantine: the names of their files begin with `aside-`, and no process reads them.

A journal that lost records which it cannot name is not the same replica any more. Its files stay on the volume so that
an operator can look at them, but only one set, and only while the volume has much room.
"""

from __future__ import annotations

from typing import Final

from headrace.ports.journal_disk import JournalDisk
from headrace.segmentstore.log.journal.replica_identity import IDENTITY_NAME

_QUARANTINE_PREFIX: Final = "aside-"
_JOURNAL_PREFIX: Final = "journal-"
_QUARANTINED_IDENTITY: Final = _QUARANTINE_PREFIX + IDENTITY_NAME

FREE_PARTS: Final = 4
"""The files in quarantine are removed when less than this part of the volume is free."""


def quarantine(disk: JournalDisk) -> None:
    """Rename the files of the journal, and remove an earlier set.

    The identity is first. From then on the other files belong to no journal, and a process that finds such files
    continues here (`finish_quarantine`).
    """
    _remove(disk)
    if IDENTITY_NAME in disk.names():
        disk.rename(IDENTITY_NAME, _QUARANTINED_IDENTITY)
    _rename_files(disk)
    make_room(disk)


def finish_quarantine(disk: JournalDisk) -> None:
    """Continue if an earlier process ended while it put a journal into quarantine."""
    names = disk.names()
    if _QUARANTINED_IDENTITY in names and IDENTITY_NAME not in names:
        _rename_files(disk)


def make_room(disk: JournalDisk) -> None:
    """Remove the files in quarantine if little of the volume is free."""
    total_bytes, free_bytes = disk.space()
    if free_bytes < total_bytes // FREE_PARTS:
        _remove(disk)


def _rename_files(disk: JournalDisk) -> None:
    for name in disk.names():
        if name.startswith(_JOURNAL_PREFIX):
            disk.rename(name, _QUARANTINE_PREFIX + name)


def _remove(disk: JournalDisk) -> None:
    for name in disk.names():
        if name.startswith(_QUARANTINE_PREFIX):
            disk.remove(name)
