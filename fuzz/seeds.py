"""The option `--seeds` of the searches."""

from __future__ import annotations

from argparse import ArgumentTypeError


def seed_range(text: str) -> range:
    """Seeds as the command line has them. Raises ArgumentTypeError."""
    first, _, last = text.partition("-")
    if not first.isdecimal() or (text != first and not last.isdecimal()):
        raise ArgumentTypeError(f"{text} are no seeds: give one like 7, or a range like 1-20")
    return range(int(first), int(last or first) + 1)
