"""Randomness without a stream: every decision is a hash of (seed, kind, actor, counter).

Leaving out one fault therefore does not change what is drawn for any other decision. This makes a run shrinkable.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeVar

_Choice = TypeVar("_Choice")
_BITS: Final = 64
_UNIT: Final = 1 << _BITS
_MASK: Final = _UNIT - 1


class Draws:
    """The decisions of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._states: dict[tuple[str, int], int] = {}

    def number(self, kind: str, actor: int = 0) -> int:
        """64 bits: the next ones for this kind of decision of this actor."""
        key = (kind, actor)
        state = self._states.get(key)
        if state is None:
            text = f"{self.seed}|{kind}|{actor}"
            state = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
        # One step of SplitMix64: the counter is in the state, which grows by a constant.
        state = self._states[key] = (state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def below(self, limit: int, kind: str, actor: int = 0) -> int:
        """A number from 0 to `limit` - 1."""
        return self.number(kind, actor) * limit >> _BITS

    def between(self, low: int, high: int, kind: str, actor: int = 0) -> int:
        """A number from `low` to `high`."""
        return low + (self.number(kind, actor) * (high - low + 1) >> _BITS)

    def happens(self, probability: float, kind: str, actor: int = 0) -> bool:
        """Whether something of this probability happens. Nothing is drawn for an impossible event."""
        return probability > 0 and self.number(kind, actor) < probability * _UNIT

    def fraction(self, kind: str, actor: int = 0) -> float:
        """A number in [0, 1)."""
        return self.number(kind, actor) / _UNIT

    def one_of(self, choices: Sequence[_Choice], kind: str, actor: int = 0) -> _Choice:
        return choices[self.number(kind, actor) * len(choices) >> _BITS]

    def heavy_tail(self, typical: int, longest: int, kind: str, actor: int = 0) -> int:
        """Mostly about `typical`, sometimes up to `longest`."""
        unit = (self.number(kind, actor) + 1) / _UNIT
        return min(longest, int(typical * (0.5 + 0.3 / unit**0.7)))
