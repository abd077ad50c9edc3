"""Journals that were set aside: their names begin with `aside-`, and no process reads them.

A journal that lost records which it cannot name is not the same replica any more. Its files stay on the volume so that
an operator can look at them, but only one set, and only while the volume has much room.
"""

from __future__ import annotations

from typing import Final

from headrace.ports.journal_disk import JournalDisk
from headrace.segmentstore.log.replica_identity import IDENTITY_NAME

_ASIDE_PREFIX: Final = "aside-"
_JOURNAL_PREFIX: Final = "journal-"
_ASIDE_IDENTITY: Final = _ASIDE_PREFIX + IDENTITY_NAME

FREE_PARTS: Final = 4
"""The files that were set aside are removed when less than this part of the volume is free."""


def set_aside(disk: JournalDisk) -> None:
    """Rename the files of the journal, and remove an earlier set.

    The identity is first. From then on the other files belong to no journal, and a process that finds such files
    continues here (`finish_set_aside`).
    """
    _remove(disk)
    if IDENTITY_NAME in disk.names():
        disk.rename(IDENTITY_NAME, _ASIDE_IDENTITY)
    _rename_files(disk)
    make_room(disk)


def finish_set_aside(disk: JournalDisk) -> None:
    """Continue if an earlier process ended while it set a journal aside."""
    names = disk.names()
    if _ASIDE_IDENTITY in names and IDENTITY_NAME not in names:
        _rename_files(disk)


def make_room(disk: JournalDisk) -> None:
    """Remove the files that were set aside if little of the volume is free."""
    total_bytes, free_bytes = disk.space()
    if free_bytes < total_bytes // FREE_PARTS:
        _remove(disk)


def _rename_files(disk: JournalDisk) -> None:
    for name in disk.names():
        if name.startswith(_JOURNAL_PREFIX):
            disk.rename(name, _ASIDE_PREFIX + name)


def _remove(disk: JournalDisk) -> None:
    for name in disk.names():
        if name.startswith(_ASIDE_PREFIX):
            disk.remove(name)
