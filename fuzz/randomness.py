"""The one door to randomness: whatever is random here comes from a seed that is printed, and can be repeated."""

from random import Random  # noqa: TID251

__all__ = ["Random"]
