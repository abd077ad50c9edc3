"""The one door to randomness: whatever is random here comes from a seed that is printed, and can be repeated."""

import random as default_random  # noqa: TID251
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251

__all__ = ["Random", "seeded_default_random"]


@contextmanager
def seeded_default_random(seed: int) -> Iterator[None]:
    """Seed the generator that the code under test uses: also those of its functions that are default arguments."""
    state = default_random.getstate()
    default_random.seed(seed)
    try:
        yield
    finally:
        default_random.setstate(state)
