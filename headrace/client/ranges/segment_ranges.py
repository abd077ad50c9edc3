"""Ranges of bytes of segments between two stream cuts: values that other processes can read, and their listing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.api.plans import OnTruncation, RangeToPlan
from headrace.api.segments import RangesBetween
from headrace.client.administration.admin import AsyncAdmin, CutLike
from headrace.model.errors import InvalidRequestError, TruncatedError, UnauthorizedError, UnavailableError
from headrace.model.limits import PIECES_PER_PLAN_MAX, RANGES_PER_PLAN_MAX
from headrace.model.stream_cut_ranges import pieces_at_best
from headrace.model.stream_cuts import StreamCut


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The bytes `[start, end)` of a segment between two stream cuts; `start == end` when it has none there.

    Both are offsets between two events. `[low, high)` is the segment's key range. `predecessors` and `successors` name
    segments between the same two cuts; a segment with successors is sealed and ends at `end`: if its range
    was split, at that of the last piece.

    The value can be pickled: another process reads it with `Headrace.range_reader`.
    """

    scope: str
    stream: str
    segment_id: int
    low: float
    high: float
    start: int
    end: int
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()

    @property
    def length_bytes(self) -> int:
        return self.end - self.start


def segment_ranges(between: RangesBetween) -> list[SegmentRange]:
    """The ranges of an answer of the controller, also those without bytes."""
    return [
        SegmentRange(
            between.start.scope,
            between.start.stream,
            part.segment_id,
            part.low,
            part.high,
            part.start_offset,
            part.end_offset,
            part.predecessors,
            part.successors,
        )
        for part in between.ranges
    ]


def joined_ranges(ranges: Iterable[SegmentRange]) -> list[SegmentRange]:
    """The ranges of consecutive batches as those between the first cut and the last one, in the order of their ids."""
    joined: dict[int, SegmentRange] = {}
    for part in ranges:
        before = joined.get(part.segment_id)
        if before is not None:
            part = replace(
                part,
                start=before.start,
                predecessors=before.predecessors or part.predecessors,
                successors=before.successors or part.successors,
            )
        joined[part.segment_id] = part
    return [joined[identifier] for identifier in sorted(joined)]


def ranges_to_read(ranges: Iterable[SegmentRange]) -> list[SegmentRange]:
    """The ranges that hold bytes, predecessors before successors."""
    return sorted((part for part in ranges if part.length_bytes > 0), key=lambda part: part.segment_id)


# The segment ranges between two stream cuts, with one request to the controller for thousands of them.

# Refuses stream cuts at which a reader would skip events or wait for ever.

_REFUSED: Final = ("invalid_stream_cut", "stream_recreated")
"""Codes of errors for cuts that no reader can use, however long it waits."""


async def refuse_invalid_cut(admin: AsyncAdmin, cut: StreamCut) -> None:
    """Asks the controller: a reader beyond the tail would wait there, and skip what is written up to it.

    Truncated bytes are for the reads to skip or to report. While a store is away the cut cannot be checked, and
    callers whose policy does not have this route may not ask.

    Raises:
        InvalidRequestError: code "invalid_stream_cut" or "stream_recreated".
    """
    try:
        await admin.check_stream_cut(cut.scope, cut.stream, cut, retry_s=0.0)
    except InvalidRequestError as problem:
        if problem.specific_code in _REFUSED:
            raise
    except (TruncatedError, UnauthorizedError, UnavailableError):
        pass


async def list_ranges(
    admin: AsyncAdmin,
    scope: str,
    stream: str,
    start: StreamCut | None,
    end: StreamCut | None,
    bytes_max: int | None = None,
) -> list[SegmentRange]:
    """Lists what is between two cuts as ranges. Raises as `AsyncHeadrace.segment_ranges`."""
    if bytes_max is not None and bytes_max < 1:
        raise InvalidRequestError(f"bytes_max is positive, not {bytes_max}")
    for cut in (start, end):
        if cut is not None:
            cut.check_belongs_to(scope, stream)
    if end is not None:
        await refuse_invalid_cut(admin, end)
    _, spans = await ranges_between(admin, scope, stream, start, end)
    ranges = ranges_to_read(spans)
    if bytes_max is None:
        return ranges
    pieces: list[SegmentRange] = []
    for parts in plan_requests(ranges, bytes_max):
        wanted = [RangeToPlan(part.segment_id, part.start, part.end, bytes_max) for part in parts]
        plans = await admin.range_plans(scope, stream, wanted, links=False)
        for part, plan in zip(parts, plans, strict=True):
            pieces += (replace(part, start=piece.start, end=piece.end) for piece in plan.pieces)
    return pieces


async def ranges_between(
    admin: AsyncAdmin,
    scope: str,
    stream: str,
    start: CutLike,
    end: StreamCut | None,
    *,
    on_truncation: OnTruncation = "fail",
) -> tuple[StreamCut, list[SegmentRange]]:
    """Returns the cut at which the ranges begin, and the ranges, also those without bytes.

    With "skip" both cuts are moved forward to the head where they are before it. If the stream is truncated again in
    the meantime, the ranges are listed again: those of later batches would not follow those of earlier ones.
    """
    begin: StreamCut | None = None
    position: CutLike = start
    ranges: list[SegmentRange] = []
    while True:
        try:
            batch = await admin.next_cut(
                scope, stream, position, end=end, on_truncation=on_truncation if begin is None else "fail"
            )
        except TruncatedError:
            if begin is None or on_truncation == "fail":
                raise
            begin, position, ranges = None, start, []
            continue
        begin = begin or batch.start
        ranges += segment_ranges(batch)
        if batch.reached_end:
            return begin, joined_ranges(ranges)
        position = batch.end


def plan_requests(ranges: Sequence[SegmentRange], piece_bytes: int) -> Iterator[list[SegmentRange]]:
    """The ranges in order, as many at a time as one request for range plans may have."""
    together: list[SegmentRange] = []
    pieces = 0
    for part in ranges:
        own = pieces_at_best(part.start, part.end, piece_bytes)
        if together and (len(together) == RANGES_PER_PLAN_MAX or pieces + own > PIECES_PER_PLAN_MAX):
            yield together
            together, pieces = [], 0
        together.append(part)
        pieces += own
    if together:
        yield together
