"""Whether the disk of a store stalls: a commit of its journal does not end, and no error says so.

An owner goes on without its own disk for a while, because two other members acknowledge. But it keeps the memory of
each entry until its own journal has it, and a takeover needs the own replica. So such a store should own nothing.
"""

from __future__ import annotations

from typing import Final

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
