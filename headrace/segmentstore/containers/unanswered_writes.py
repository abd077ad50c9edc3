"""Writes of segments' records and runs that the metadata store has not answered: they may take effect later.

They may do so when the segment is removed, and what they create would then count as a segment of this name. So its last
records are removed when they are there. A later owner of the container need not wait: the writes check the claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.model.errors import FencedError
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import UNANSWERED_WRITE_S, ItemRefusedError, WriteConflictError


class UnansweredWrites:
    """The unanswered writes of one container."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s: dict[str, float] = {}

    @contextmanager
    def noted(self, *names: str) -> Iterator[None]:
        """Around a write under these names: if it fails or is cancelled, it may take effect later.

        A refused write has had no effect, and will have none.
        """
        try:
            yield
        except (WriteConflictError, ItemRefusedError, FencedError):
            raise
        except BaseException:
            self._until_s.update(dict.fromkeys(names, self._clock.monotonic_s() + UNANSWERED_WRITE_S))
            raise

    def names(self) -> frozenset[str]:
        """The names under which something may appear from now on."""
        now_s = self._clock.monotonic_s()
        self._until_s = {name: until_s for name, until_s in self._until_s.items() if until_s > now_s}
        return frozenset(self._until_s)
