"""The segment ranges between two stream cuts, with one request to the controller for thousands of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from headrace.api.plans import OnTruncation, RangeToPlan
from headrace.client.administration.admin import AsyncAdmin, CutLike
from headrace.client.ranges.segment_ranges import SegmentRange, joined_ranges, ranges_to_read, segment_ranges
from headrace.model.errors import InvalidRequestError, TruncatedError, UnauthorizedError, UnavailableError
from headrace.model.limits import PIECES_PER_PLAN_MAX, RANGES_PER_PLAN_MAX
from headrace.model.stream_cut_ranges import pieces_at_best
from headrace.model.stream_cuts import StreamCut

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
    """See `AsyncHeadrace.segment_ranges`."""
    if bytes_max is not None and bytes_max < 1:
        raise InvalidRequestError(f"bytes_max is positive, not {bytes_max}")
    for cut in (start, end):
        if cut is not None:
            cut.check_belongs_to(scope, stream)
    if end is not None:
        await refuse_invalid_cut(admin, end)
    _, found = await ranges_between(admin, scope, stream, start, end)
    ranges = ranges_to_read(found)
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
    found: list[SegmentRange] = []
    while True:
        try:
            batch = await admin.next_cut(
                scope, stream, position, end=end, on_truncation=on_truncation if begin is None else "fail"
            )
        except TruncatedError:
            if begin is None or on_truncation == "fail":
                raise
            begin, position, found = None, start, []
            continue
        begin = begin or batch.start
        found += segment_ranges(batch)
        if batch.reached_end:
            return begin, joined_ranges(found)
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
