"""Limits for log lines that a peer or an outage can cause at will, so that they do not fill the log."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

LOGGED_EVERY_S: Final = 10.0
"""How often a line of one kind is logged, unless its limit says otherwise."""


class LogLimit:
    """Allows one line in `every_s` seconds for each kind of line. There are few kinds: they are remembered."""

    def __init__(self, every_s: float = LOGGED_EVERY_S) -> None:
        self._every_s = every_s
        self._logged_s: dict[Hashable, float] = {}

    def allows(self, now_s: float, kind: Hashable = None) -> bool:
        """Whether a line of this kind may be logged now, at `now_s` of a monotonic clock. True counts as logged."""
        last_s = self._logged_s.get(kind)
        if last_s is not None and now_s - last_s < self._every_s:
            return False
        self._logged_s[kind] = now_s
        return True
