"""The identity of a journal: 16 random bytes in a file of their own, written before the journal's first file.

It is lost with the volume. A store that comes back on an empty volume therefore has another identity, and no process
takes its missing entries for knowledge.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from headrace.model.errors import CorruptError
from headrace.ports.journal_disk import JournalDisk
from headrace.segmentstore.log.journal.journal_format import REPLICA_ID_BYTES, LostRecordsError
from headrace.segmentstore.log.journal.journal_scan import read_around

IDENTITY_NAME: Final = "journal-id"
_UNFINISHED_NAME: Final = "new-journal-id"
_MAGIC: Final = b"HRREPLID"
_VERSION: Final = 1
_FIELDS: Final = struct.Struct(">8sI16s")
_CHECKSUM: Final = struct.Struct(">I")
_FILE_BYTES: Final = _FIELDS.size + _CHECKSUM.size


def load_identity(disk: JournalDisk) -> bytes | None:
    """Load the identity; None if the journal has none yet.

    Raises:
        LostRecordsError: the file is damaged.
        CorruptError: the file is of an unknown version.
    """
    names = disk.names()
    if _UNFINISHED_NAME in names:
        disk.remove(_UNFINISHED_NAME)
    if IDENTITY_NAME not in names:
        return None
    file = disk.open(IDENTITY_NAME)
    try:
        content = read_around(file, 0, _FILE_BYTES).content
    finally:
        file.close()
    fields = content[: _FIELDS.size]
    if len(content) != _FILE_BYTES or content[_FIELDS.size :] != _CHECKSUM.pack(crc32c(fields)):
        raise LostRecordsError(
            f"{IDENTITY_NAME} of the journal is damaged: restore it or take the volume out of service"
        )
    magic, version, replica_id = _FIELDS.unpack(fields)
    if magic != _MAGIC or version != _VERSION:
        raise CorruptError(
            f"{IDENTITY_NAME} of the journal has format {magic!r} version {version}, known is {_VERSION}: start the "
            "release that wrote it"
        )
    return bytes(replica_id)


def create_identity(disk: JournalDisk, random_64: Callable[[], int]) -> bytes:
    """Create the identity of a journal that has none, durably.

    Raises:
        OSError: the volume has no room.
    """
    try:
        return _create_identity(disk, random_64)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # The volume is full, for example of files that were set aside. An operator knows which of them may go.
        raise OSError(
            errno.ENOSPC,
            f"the volume has no room for {IDENTITY_NAME}, which has {_FILE_BYTES} bytes: free one block of the volume "
            "or enlarge it, then start the store again",
        ) from error


def _create_identity(disk: JournalDisk, random_64: Callable[[], int]) -> bytes:
    replica_id = b"".join(random_64().to_bytes(8, "big") for _ in range(REPLICA_ID_BYTES // 8))
    fields = _FIELDS.pack(_MAGIC, _VERSION, replica_id)
    disk.create(_UNFINISHED_NAME, _FILE_BYTES)
    file = disk.open(_UNFINISHED_NAME)
    try:
        file.write_durably(0, [fields + _CHECKSUM.pack(crc32c(fields))])
    finally:
        file.close()
    disk.rename(_UNFINISHED_NAME, IDENTITY_NAME)
    return replica_id
