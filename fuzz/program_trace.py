"""The last steps of a random program, which are printed if it fails."""

from __future__ import annotations

from collections import deque
from typing import Final

STEPS_KEPT: Final = 30


class Trace:
    """What happened last, the oldest first."""

    def __init__(self) -> None:
        self._steps: deque[str] = deque(maxlen=STEPS_KEPT)
        self.count = 0

    def note(self, text: str) -> None:
        self.count += 1
        self._steps.append(f"{self.count:6}  {text}")

    def text(self) -> str:
        return "\n".join(self._steps)
