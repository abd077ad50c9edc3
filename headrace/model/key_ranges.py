"""Sets of key ranges: equal parts of the key space, and checks that ranges cover a space exactly once.

Bounds are compared as exact doubles: two ranges are adjacent only if they share exactly the same bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from headrace.model.errors import InvalidRequestError
from headrace.model.segments import KeyRange

KEY_SPACE = KeyRange(0.0, 1.0)


def equal_ranges(count: int) -> tuple[KeyRange, ...]:
    """`count` ranges of equal width that cover the key space; the bounds are i / count, the last exactly 1.0."""
    bounds = [index / count for index in range(count + 1)]
    return tuple(KeyRange(low, high) for low, high in itertools.pairwise(bounds))


def merged(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """The same space as maximal ranges, in order.

    Raises:
        InvalidRequestError: two ranges overlap.
    """
    merging: list[KeyRange] = []
    for current in sorted(ranges):
        last = merging[-1] if merging else None
        if last is not None and current.low < last.high:
            raise InvalidRequestError(
                f"the key ranges overlap between {current.low} and {min(current.high, last.high)}",
                details={"low": current.low, "high": min(current.high, last.high)},
                code="invalid_key_ranges",
            )
        if last is not None and current.low == last.high:
            merging[-1] = KeyRange(last.low, current.high)
        else:
            merging.append(current)
    return tuple(merging)


def covers_key_space_once(ranges: Sequence[KeyRange]) -> bool:
    """Whether the ranges cover [0, 1) without gaps and overlaps."""
    try:
        return merged(ranges) == (KEY_SPACE,)
    except InvalidRequestError:
        return False


def check_same_space(old: Iterable[KeyRange], new: Iterable[KeyRange]) -> None:
    """Check that the new ranges cover exactly the key space of the old ones, without overlaps.

    Raises:
        InvalidRequestError: code "invalid_key_ranges".
    """
    wanted, offered = merged(old), merged(new)
    if wanted != offered:
        raise InvalidRequestError(
            f"the new key ranges cover {_text(offered)}, but the segments to seal cover {_text(wanted)}: "
            "choose ranges that fill exactly the same space",
            details={"sealed": [[r.low, r.high] for r in wanted], "new": [[r.low, r.high] for r in offered]},
            code="invalid_key_ranges",
        )


def _text(ranges: Sequence[KeyRange]) -> str:
    return ", ".join(f"[{one.low}, {one.high})" for one in ranges[:10]) or "nothing"
