"""Random histories of streams."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import strategies as st

from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.segments import KeyRange
from headrace.model.transactions import must_roll, roll_of

SLOTS = 8


"""Bounds of ranges are multiples of 1 / SLOTS, so that a test can look at the key space slot by slot."""


START_MS = 1_000


Histories = Callable[..., st.SearchStrategy[list[Epoch]]]
"""A strategy: `histories(scales_max=6)` gives lists of epochs."""


@st.composite
def random_histories(draw: st.DrawFn, scales_max: int = 6) -> list[Epoch]:
    """The epochs of a stream under random splits and merges, also of segments that are not neighbours, and rolls."""
    first = draw(st.sampled_from([1, 2, 4]))
    epochs = [Epoch.first(first, draw(st.integers(0, 5)), START_MS)]
    for _ in range(draw(st.integers(0, scales_max))):
        current = epochs[-1]
        older = [epoch for epoch in epochs if must_roll(current, epoch.reference_epoch)]
        rolls: bool = bool(older) and draw(st.booleans())
        if rolls:
            roll = roll_of(current, draw(st.sampled_from(older)), current.creation_time_ms + draw(st.integers(-5, 5)))
            epochs += [roll.passed, roll.following]
            continue
        replaced = draw(st.lists(st.sampled_from(current.segments), min_size=1, max_size=4, unique=True))
        new: list[KeyRange] = []
        for low, high in _runs([segment.key_range for segment in replaced]):
            inner = st.integers(int(low * SLOTS) + 1, int(high * SLOTS) - 1)
            cuts = draw(st.lists(inner, max_size=2, unique=True)) if high - low > 1 / SLOTS else []
            bounds = sorted([low, high, *(cut / SLOTS for cut in cuts)])
            new += [KeyRange(left, right) for left, right in pairwise(bounds)]
        now_ms = epochs[-1].creation_time_ms + draw(st.integers(-5, 5))
        epochs.append(scaled_epoch(current, [segment.segment_id for segment in replaced], new, now_ms))
    return epochs


def _runs(ranges: list[KeyRange]) -> list[tuple[float, float]]:
    """Maximal intervals, by slots: not the implementation under test."""
    slots = {slot for key_range in ranges for slot in range(int(key_range.low * SLOTS), int(key_range.high * SLOTS))}
    starts = [slot for slot in sorted(slots) if slot - 1 not in slots]
    ends = [slot + 1 for slot in sorted(slots) if slot + 1 not in slots]
    return [(start / SLOTS, end / SLOTS) for start, end in zip(starts, ends, strict=True)]
