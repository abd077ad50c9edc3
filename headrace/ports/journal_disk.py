"""The disk under the journal: a directory of fixed-size files, written by position and made durable on demand.

What was written but not synced may be lost, or kept in any part, when power fails. Implementations raise OSError; the
journal turns a failed write or sync into the end of all containers, never into a retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DiskSpace(NamedTuple):
    """Of the volume that the directory is on: others may use it too."""

    total_bytes: int
    free_bytes: int


class JournalFile(Protocol):
    """One open file of a fixed size; calls may come from any thread, one at a time but for reads of what was synced."""

    @property
    def size_bytes(self) -> int: ...

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write all the parts one after the other from `position` on; durable only after `sync`."""
        ...

    def sync(self) -> None:
        """Return once everything written before is durable."""
        ...

    def write_durably(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write as `write`, and return once these bytes are durable. What was written before still needs `sync`."""
        self.write(position, parts)
        self.sync()

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def close(self) -> None: ...


class JournalDisk(Protocol):
    """The directory of the files; held by one process at a time."""

    def names(self) -> list[str]:
        """The names of all files, in name order."""
        ...

    def create(self, name: str, size_bytes: int) -> None:
        """Make a file of zeros whose every block has been written, durably; nothing of that name existed."""
        ...

    def open(self, name: str) -> JournalFile: ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, durably and atomically."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that does not exist is fine."""
        ...

    def space(self) -> DiskSpace:
        """How large the volume is, and how much of it is free; takes no time worth a thread."""
        ...
