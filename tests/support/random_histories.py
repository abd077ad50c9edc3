"""Histories of streams, as the controller lists their epochs: random ones, and regular ones of any size."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from headrace.api.segments import ScaledSegment
from headrace.api.streams import EpochHistory, EpochView, ReplacedSegment
from headrace.model.segments import segment_id

STARTED_MS = 1_800_000_000_000
GRID = 64


def _segments(epoch: int, number: int, bounds: Sequence[float]) -> tuple[ScaledSegment, ...]:
    return tuple(
        ScaledSegment(segment_id(epoch, number + index), low, high)
        for index, (low, high) in enumerate(itertools.pairwise(bounds))
    )


@st.composite
def histories(draw: st.DrawFn) -> list[EpochView]:
    """Epochs, oldest first: each replaces some neighbouring segments by others, after a short or a long time."""
    cuts = draw(st.lists(st.integers(1, GRID - 1), max_size=5, unique=True))
    current = list(_segments(0, 0, [0.0, *(cut / GRID for cut in sorted(cuts)), 1.0]))
    epochs = [EpochView(0, STARTED_MS, (), tuple(current))]
    number = len(current)
    for epoch in range(1, draw(st.integers(1, 12))):
        first = draw(st.integers(0, len(current) - 1))
        last = draw(st.integers(first + 1, len(current)))
        low, high = current[first].low, current[last - 1].high
        inside = [cut / GRID for cut in range(1, GRID) if low < cut / GRID < high]
        chosen = sorted(draw(st.lists(st.sampled_from(inside), max_size=4, unique=True))) if inside else []
        created = _segments(epoch, number, [low, *chosen, high])
        number += len(created)
        replaced = tuple(
            ReplacedSegment(segment.segment_id, segment.low, segment.high, 1_000) for segment in current[first:last]
        )
        time_ms = epochs[-1].time_ms + draw(st.sampled_from([1, 2, 50, 1_000, 60_000]))
        epochs.append(EpochView(epoch, time_ms, replaced, created))
        current[first:last] = created
    return epochs


def of_many_epochs(epochs: int, segments: int, *, step_ms: int = 1_000) -> list[EpochView]:
    """Each epoch replaces all segments by as many others."""
    bounds = [index / segments for index in range(segments + 1)]
    made = [EpochView(0, STARTED_MS, (), _segments(0, 0, bounds))]
    for epoch in range(1, epochs):
        replaced = tuple(
            ReplacedSegment(segment.segment_id, segment.low, segment.high, 1_000) for segment in made[-1].created
        )
        created = _segments(epoch, epoch * segments, bounds)
        made.append(EpochView(epoch, STARTED_MS + epoch * step_ms, replaced, created))
    return made


def history_page(history: Sequence[EpochView], before: int | None, limit: int) -> EpochHistory:
    """A page of the history, as the controller answers it."""
    newest = len(history) - 1 if before is None else min(before - 1, len(history) - 1)
    current: dict[int, ScaledSegment] = {}
    for epoch in history[: newest + 1]:
        for gone in epoch.replaced:
            del current[gone.segment_id]
        current |= {segment.segment_id: segment for segment in epoch.created}
    oldest = max(0, newest - limit + 1)
    page = tuple(history[index] for index in range(newest, oldest - 1, -1))
    segments = tuple(sorted(current.values(), key=lambda segment: segment.low))
    return EpochHistory(page, segments, oldest or None)
