"""How the room on a store's volume is shared by its containers, and when old files of the log are worth copying.

A container may hold its share of half of the room. Old files are copied, without entries that are not needed, as soon
as less than half of the log is needed. So the log takes at most twice what the containers hold: however many of them
lag, each is slowed down alone, and the others find room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FILES_KEPT_FREE: Final = 3
"""Of the room, not for clients: the rest of the file that is written, and two files in which a store whose volume is
full writes what frees other files (checkpoints, truncation points, copies)."""

COPY_FROM_FILES: Final = 8
"""A log of fewer files is left alone: idle containers move on by themselves, with a new checkpoint."""


@dataclass(frozen=True, slots=True)
class LogSpace:
    """`log_bytes` is the log with all that is not needed in it, `volume_bytes` what its files take, spare ones too.
    `room_bytes` is what the files may take, `file_bytes` the size of one of them."""

    log_bytes: int
    volume_bytes: int
    room_bytes: int
    file_bytes: int

    @property
    def client_bytes(self) -> int:
        """How long the log may be before clients wait; at least a file, however small the volume is."""
        return max(self.room_bytes - FILES_KEPT_FREE * self.file_bytes, self.file_bytes)

    @property
    def fill(self) -> float:
        """At 1 clients wait."""
        return self.log_bytes / self.client_bytes

    @property
    def is_exhausted(self) -> bool:
        """Whether only what frees other files may be written."""
        return self.log_bytes >= self.client_bytes + self.file_bytes

    def container_bytes_max(self, containers: int) -> int:
        """How much of the log each of so many containers may hold."""
        return self.client_bytes // (2 * max(containers, 1))


def room_bytes(total_bytes: int, free_bytes: int, volume_bytes: int, logs_on_volume: int) -> int:
    """What the files of one of the logs on a volume may take: an equal share of it, or what is left by others."""
    return min(total_bytes // logs_on_volume, volume_bytes + free_bytes)


def copying_pays(log_bytes: int, needed_bytes: int, files: int, copy_from_files: int) -> bool:
    """Whether to copy what is needed of the oldest file: copying all of them writes less than it makes room for."""
    return files >= copy_from_files and 2 * needed_bytes <= log_bytes
