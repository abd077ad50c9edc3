"""The segments of a stream over time: when each began and ended, its key range, and its bytes.

Made from a page of the stream's epochs, newest first, by walking back from the segments of the newest one. Times are
milliseconds since the Unix epoch, lengths are in bytes. Pure functions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.api.segments import ScaledSegment
from headrace.api.streams import EpochHistory, EpochView
from headrace.model.segments import segment_epoch

SEGMENTS_DRAWN_MAX = 2_500
"""Segments of one picture. A page of the API has up to about 9,000, too many to tell apart."""


@dataclass(frozen=True, slots=True)
class Span:
    """A segment as far as a page of history knows it.

    `began_ms` is None if it began before the page, `ended_ms` if it was not sealed by the end of the page. `length` is
    None if it is not known.
    """

    segment_id: int
    low: float
    high: float
    began_ms: int | None
    ended_ms: int | None
    length: int | None

    def bytes_per_s(self, now_ms: int) -> float | None:
        """The mean rate from its begin to its end, or to `now_ms`; None if it is not known."""
        if self.began_ms is None or self.length is None:
            return None
        return self.length * 1000 / max(1, (now_ms if self.ended_ms is None else self.ended_ms) - self.began_ms)

    def density(self, now_ms: int) -> float | None:
        """The mean rate per unit of the key space: that of a whole stream with as many bytes for each key."""
        rate = self.bytes_per_s(now_ms)
        return None if rate is None else rate / (self.high - self.low)

    def time_of(self, offset: int, now_ms: int) -> int | None:
        """About when the byte at `offset` was written, as if the rate had been constant; None if it is not known."""
        if self.began_ms is None:
            return None
        end_ms = now_ms if self.ended_ms is None else self.ended_ms
        share = 1.0 if not self.length else min(1.0, max(0.0, offset / self.length))
        return round(self.began_ms + share * (end_ms - self.began_ms))


@dataclass(frozen=True, slots=True)
class Change:
    """The begin of an epoch. `splits` are replaced segments with several successors, `merges` new ones that follow
    several."""

    epoch: int
    time_ms: int
    low: float
    high: float
    splits: int
    merges: int

    @property
    def words(self) -> str:
        """For example "epoch 3: 2 splits, 1 merge"."""
        parts = [
            f"{count} {what}{'' if count == 1 else 's'}"
            for count, what in ((self.splits, "split"), (self.merges, "merge"))
            if count
        ]
        return f"epoch {self.epoch}: {', '.join(parts) or 'segments replaced'}"


@dataclass(frozen=True, slots=True)
class SpanPage:
    """A window of the history: segments that existed in `[begin_ms, end_ms)`, and the epochs that began in it.

    `older_until` is the epoch at which the next older window ends, None if this window has the first epoch. The window
    ends now if `is_newest`.
    """

    spans: tuple[Span, ...]
    changes: tuple[Change, ...]
    begin_ms: int
    end_ms: int
    older_until: int | None
    is_newest: bool
    first_epoch: int
    last_epoch: int

    def by_id(self) -> dict[int, Span]:
        return {span.segment_id: span for span in self.spans}


def spans_of(history: EpochHistory, tails: Mapping[int, int], now_ms: int, until: int | None = None) -> SpanPage:
    """The window of `history`, a page of epochs; `tails` are the lengths of the active segments.

    With `until`, the number of the first epoch of the page, the window ends where that epoch begins.
    """
    epochs = _as_many_as_drawn(history)
    current = {segment.segment_id: segment for segment in history.segments}
    is_newest = until is None or epochs[0].epoch != until or len(epochs) == 1
    end_ms = max(now_ms if is_newest else epochs[0].time_ms, *(epoch.time_ms + 1 for epoch in epochs[not is_newest :]))
    lengths: dict[int, int | None] = dict(tails)
    if not is_newest:
        _step_back(current, lengths, epochs.pop(0))
    spans = {
        identifier: Span(identifier, segment.low, segment.high, None, None, lengths.get(identifier))
        for identifier, segment in current.items()
    }
    for epoch in epochs:
        for segment in epoch.created:
            spans[segment.segment_id] = replace(spans[segment.segment_id], began_ms=epoch.time_ms)
        if epoch is epochs[-1]:
            break  # Its replaced segments ended where the window begins.
        for gone in epoch.replaced:
            spans[gone.segment_id] = Span(gone.segment_id, gone.low, gone.high, None, epoch.time_ms, gone.length)
    changes = [_change(epoch) for epoch in reversed(epochs) if epoch.replaced]
    return SpanPage(
        tuple(sorted(spans.values(), key=lambda span: (segment_epoch(span.segment_id), span.low))),
        tuple(changes),
        epochs[-1].time_ms,
        end_ms,
        epochs[-1].epoch or None,
        is_newest,
        epochs[-1].epoch,
        epochs[0].epoch,
    )


def _as_many_as_drawn(history: EpochHistory) -> list[EpochView]:
    """The newest epochs of the page, at least two if it has them, that have at most SEGMENTS_DRAWN_MAX segments."""
    epochs: list[EpochView] = []
    count = len(history.segments)
    for epoch in history.epochs:
        if len(epochs) > 1 and count > SEGMENTS_DRAWN_MAX:
            break
        epochs.append(epoch)
        count += len(epoch.replaced)
    return epochs


def _step_back(current: dict[int, ScaledSegment], lengths: dict[int, int | None], epoch: EpochView) -> None:
    """Changes the segments of an epoch to those of the epoch before it, and notes the lengths of those it replaced."""
    for created in epoch.created:
        current.pop(created.segment_id, None)
        lengths.pop(created.segment_id, None)
    for gone in epoch.replaced:
        current[gone.segment_id] = gone
        lengths[gone.segment_id] = gone.length


def segments_of_key(page: SpanPage, position: float) -> list[Span]:
    """The segments that a position of the key space had one after the other, oldest first."""
    return [span for span in page.spans if span.low <= position < span.high]


def _change(epoch: EpochView) -> Change:
    return Change(
        epoch.epoch,
        epoch.time_ms,
        min(segment.low for segment in epoch.replaced),
        max(segment.high for segment in epoch.replaced),
        splits=_overlapping_several(epoch.replaced, epoch.created),
        merges=_overlapping_several(epoch.created, epoch.replaced),
    )


def _overlapping_several(segments: Sequence[ScaledSegment], others: Sequence[ScaledSegment]) -> int:
    """How many of the segments share keys with several of the others, which do not overlap each other."""
    lows = sorted(other.low for other in others)
    highs = sorted(other.high for other in others)
    return sum(bisect_left(lows, segment.high) - bisect_right(highs, segment.low) > 1 for segment in segments)
