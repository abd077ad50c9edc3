"""The scale that gives a stream a number of equal segments.

One request may split and merge the same keys: Pravega and `epochs.scaled_epoch` only compare the space that the sealed
and the new segments cover. One step is therefore always enough, also from 3 to 2 segments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.scaling import ScalePlan
from headrace.model.segments import KeyRange

BOUND_TOLERANCE: Final = 1e-9
"""A bound of a segment that is nearer to an equal part's bound counts as that bound. Bounds from
splits of splits have other last bits than a division of the whole key space; no segment is replaced because of that."""


def even_plan(segments: Mapping[int, KeyRange], count: int) -> ScalePlan | None:
    """The scale from the active `segments`, by id, to `count` segments of equal width.

    Segments that are equal parts already are kept; all others are replaced. None if nothing is to be replaced.

    Raises:
        InvalidRequestError: `count` is not from 1 to SEGMENTS_PER_STREAM_MAX.
    """
    if not 1 <= count <= SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(
            f"a stream has 1 to {SEGMENTS_PER_STREAM_MAX} segments, not {count}",
            details={"segments": count, "segments_max": SEGMENTS_PER_STREAM_MAX},
            code="too_many_segments",
        )
    known = sorted({bound for one in segments.values() for bound in (one.low, one.high)})
    bounds = [_near(known, index / count) for index in range(count + 1)]
    wanted = [KeyRange(low, high) for low, high in pairwise(bounds)]
    present = set(segments.values())
    kept = present.intersection(wanted)
    sealed = tuple(sorted(identifier for identifier, key_range in segments.items() if key_range not in kept))
    if not sealed:
        return None
    return ScalePlan(sealed, tuple(one for one in wanted if one not in kept))


def _near(known: Sequence[float], bound: float) -> float:
    """The bound in `known` that counts as `bound`, or `bound` itself."""
    index = bisect_left(known, bound)
    nearest = min(known[max(0, index - 1) : index + 1], key=lambda one: abs(one - bound))
    return nearest if abs(nearest - bound) <= BOUND_TOLERANCE else bound
