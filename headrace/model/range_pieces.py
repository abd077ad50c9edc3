"""Ranges of bytes split into pieces that begin and end between two events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.model.limits import PIECES_PER_RANGE_MAX


def pieces_at_best(start: int, end: int, bytes_max: int | None) -> int:
    """The number of pieces if each is split where it is best; boundaries that are far apart make fewer."""
    return 1 if bytes_max is None else min(-(-(end - start) // bytes_max), PIECES_PER_RANGE_MAX)


def split_targets(start: int, end: int, bytes_max: int | None) -> list[int]:
    """Where the range is split at best, ascending: it then has pieces of equal size, none above `bytes_max`.

    A range gets at most PIECES_PER_RANGE_MAX pieces. None means one piece.
    """
    length = end - start
    pieces = pieces_at_best(start, end, bytes_max)
    return [start + length * piece // pieces for piece in range(1, pieces)]


def split_pieces(
    start: int, end: int, bytes_max: int | None, boundary: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Contiguous pieces of about equal size, not much above `bytes_max` where boundaries are known.

    `boundary` is called for some of the `split_targets`. It returns an event boundary at or after a target. If it
    returns `end` or more, the piece ends with the range.
    """
    begin = start
    for target in split_targets(start, end, bytes_max):
        if target <= begin:
            continue  # the last boundary was further away than a whole piece
        stop = boundary(target)
        if stop >= end:
            break
        yield begin, stop
        begin = stop
    yield begin, end
