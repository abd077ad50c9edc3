"""The order of events: a heap of (time, tie), with ties in seeded order, and pauses of stores."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable
from typing import Final

from simulation.draws import Draws

MS: Final = 1_000
"""Virtual time is counted in microseconds."""

SECOND: Final = 1_000 * MS

_TIES: Final = 1 << 31

Action = Callable[[], None]


class Scheduler:
    """Runs actions at their virtual time. An action of a store that is paused runs when the pause ends."""

    def __init__(self, draws: Draws) -> None:
        self.now = 0
        self.events = 0
        self.digest = 0
        self._draws = draws
        self._heap: list[tuple[int, int, int, int, str, Action]] = []
        self._sequence = 0
        self._paused_until: dict[int, int] = {}
        self._ties: dict[int, int] = {}

    def after(self, delay: int, kind: str, action: Action, store: int = -1) -> None:
        """Run `action` after `delay` microseconds, as an event of `store`."""
        self._sequence += 1
        tie = self._ties.get(store)
        if tie is None:
            tie = self._draws.below(_TIES, "tie", store)
        # A linear congruence modulo a power of two: its high bits decide, since those change most.
        self._ties[store] = tie = (tie * 1_103_515_245 + 12_345) % _TIES
        time = self.now + delay if delay > 0 else self.now
        heapq.heappush(self._heap, (time, tie, self._sequence, store, kind, action))

    def pause(self, store: int, duration: int) -> None:
        """Nothing of this store runs for a while."""
        self._paused_until[store] = max(self._paused_until.get(store, 0), self.now + duration)

    def resume_all(self) -> None:
        self._paused_until.clear()

    def is_paused(self, store: int) -> bool:
        return self._paused_until.get(store, 0) > self.now

    def step(self) -> bool:
        """Run the next event. False if there is none."""
        if not self._heap:
            return False
        time, _, sequence, store, kind, action = heapq.heappop(self._heap)
        if time > self.now:
            self.now = time
        if self._paused_until:
            until = self._paused_until.get(store, 0)
            if until > self.now:
                heapq.heappush(self._heap, (until, sequence, sequence, store, kind, action))
                return True
        self.events += 1
        self.digest = zlib.crc32(kind.encode(), (self.digest + self.now * 31 + store) & 0xFFFFFFFF)
        action()
        return True

    def note(self, text: str) -> None:
        """Make something that happened part of the digest, which the determinism test compares."""
        self.digest = zlib.crc32(text.encode(), self.digest)

    def run_until(self, time: int, stop: Callable[[], bool] | None = None) -> None:
        """Run all events up to a time, or until `stop` says so after one of them."""
        heap, step = self._heap, self.step
        while heap and heap[0][0] <= time:
            step()
            if stop is not None and stop():
                return
        self.now = max(self.now, time)
