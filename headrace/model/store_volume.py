"""The volume of a store: the space of its logs, and whether its disk stalls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The space on a store's volume: the share of each container, and the rule for copying old files of the log.
#
# A container may use its share of half of the space. As soon as less than half of the log is needed, the needed entries
# of old files are copied and the files are deleted. So the log takes at most twice the bytes that the containers need.
# A container that lags slows down only its own clients, and the other containers have space.

FILES_KEPT_FREE: Final = 3
"""Files of the space that clients cannot use. One is for the rest of the file that is being written. In the two
others a store with a full volume writes checkpoints, truncation points and copies, which free other files."""

COPY_FROM_FILES: Final = 8
"""Files of a log with fewer files are not copied: a new checkpoint of an idle container frees them."""


@dataclass(frozen=True, slots=True)
class LogSpace:
    """The sizes of one log.

    `log_bytes` counts all entries, also those that are not needed. `volume_bytes` is the size of the files with spare
    ones, `room_bytes` the most that the files may take, `file_bytes` the size of one file.
    """

    log_bytes: int
    volume_bytes: int
    room_bytes: int
    file_bytes: int

    @property
    def client_bytes(self) -> int:
        """The size of the log at which clients must wait; at least one file, even on a small volume."""
        return max(self.room_bytes - FILES_KEPT_FREE * self.file_bytes, self.file_bytes)

    @property
    def fill(self) -> float:
        """The used part of the space for clients; clients wait from 1 on."""
        return self.log_bytes / self.client_bytes

    @property
    def is_exhausted(self) -> bool:
        """Whether the store may only write entries that free other files."""
        return self.log_bytes >= self.client_bytes + self.file_bytes

    def container_bytes_max(self, containers: int) -> int:
        """The bytes of the log that each of `containers` containers may use."""
        return self.client_bytes // (2 * max(containers, 1))


def room_bytes(total_bytes: int, free_bytes: int, volume_bytes: int, logs_on_volume: int) -> int:
    """The bytes that the files of one log may take: an equal share of the volume, or less if others take more."""
    return min(total_bytes // logs_on_volume, volume_bytes + free_bytes)


def copying_pays(log_bytes: int, needed_bytes: int, files: int, copy_from_files: int) -> bool:
    """Whether to copy the needed entries of the oldest file. Copying all files then writes less than it frees."""
    return files >= copy_from_files and 2 * needed_bytes <= log_bytes


# Whether the disk of a store stalls: a commit of its journal does not end, and no error says so.
#
# An owner goes on without its own disk for a while, because two other members acknowledge. But it keeps the memory of
# each entry until its own journal has it, and a takeover needs the own replica. So such a store should own nothing.

STALLED_AFTER_S: Final = 10.0
"""A commit that takes longer has met a disk that stalls. The longest stalls of a healthy volume are a few seconds."""

TRUSTED_AFTER_S: Final = 60.0
"""After a stall the disk must do without another one for this long, so that containers do not come and go with it."""


class DiskWatch:
    """Judges one disk by the commit that is under way whenever it is looked at."""

    def __init__(self) -> None:
        self._commit: int | None = None
        self._since_s = 0.0
        self._stalled_s: float | None = None

    def commit_age_s(self, now_s: float) -> float:
        """For how long the commit that was seen last has been under way; 0 if none is."""
        return 0.0 if self._commit is None else now_s - self._since_s

    def has_stalled(self, commit: int | None, now_s: float) -> bool:
        """Whether the disk stalls, or did so not long ago. `commit` is the number of the one that is under way."""
        if commit != self._commit:
            self._commit, self._since_s = commit, now_s
        if self.commit_age_s(now_s) >= STALLED_AFTER_S:
            self._stalled_s = now_s
        return self._stalled_s is not None and now_s - self._stalled_s < TRUSTED_AFTER_S
