"""The one door to randomness: whatever is random here comes from a seed that is printed, and can be repeated."""

import random as default_random  # noqa: TID251
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251

__all__ = ["Random", "seed_range", "seeded_default_random"]


@contextmanager
def seeded_default_random(seed: int) -> Iterator[None]:
    """Seed the generator that the code under test uses: also those of its functions that are default arguments."""
    state = default_random.getstate()
    default_random.seed(seed)
    try:
        yield
    finally:
        default_random.setstate(state)


def seed_range(text: str) -> range:
    """Seeds as the command line has them. Raises ArgumentTypeError."""
    first, _, last = text.partition("-")
    if not first.isdecimal() or (text != first and not last.isdecimal()):
        raise ArgumentTypeError(f"{text} are no seeds: give one like 7, or a range like 1-20")
    return range(int(first), int(last or first) + 1)
