"""A stream as planning sees it, through the Python client.

Synchronous: Spark calls from plain threads. Requests that fail with something that can pass are repeated for
`patience_s` seconds inside, because an error that reaches Spark ends a query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from headrace.api.plans import LostBytes, OnTruncation, RangePlan, RangeToPlan
from headrace.api.streams import StreamSummary, StreamView
from headrace.client.headrace import Headrace
from headrace.client.ranges.range_bytes import Listing
from headrace.client.ranges.segment_ranges import SegmentRange, joined_ranges, plan_requests, segment_ranges
from headrace.model.errors import InvalidRequestError, TruncatedError
from headrace.model.limits import RANGES_PER_PLAN_MAX
from headrace.model.stream_cuts import StreamCut
from headrace.spark.lost_bytes import log_skipped, truncated_while_planning
from headrace.spark.options import ReadOptions, check_cut_text
from headrace.spark.range_filters import BoundaryQuestion, question_above, question_below
from headrace.spark.stream_access import At, Batch, PlannedRange, Positions, Unread


class ClientStreamAccess:
    """A stream that Spark reads, through a client. Not picklable."""

    def __init__(
        self,
        client: Headrace,
        scope: str,
        stream: str,
        on_truncation: OnTruncation,
        links: bool,
        *,
        ships_tokens: bool,
    ) -> None:
        self._client = client
        self._admin = client.admin
        self._tokens = client.admin.delegation_tokens
        self._trust = client.admin.trust
        self._ships_tokens = ships_tokens
        self._scope, self._stream = scope, stream
        self._on_truncation = on_truncation
        self._links = links

    def cut(self, at: At) -> Positions:
        return self._admin.stream_cut(self._scope, self._stream, at=at).offsets

    def cut_at(self, time_ms: int) -> Positions:
        time = datetime.fromtimestamp(time_ms / 1000, UTC)
        return self._client.stream_cut_at(self._scope, self._stream, time).offsets

    def next_batch(
        self,
        start: Positions | None,
        end: Positions | None,
        *,
        bytes_max: int | None = None,
        strict_key_order: bool = False,
    ) -> Batch:
        try:
            cut = self._admin.next_cut(
                self._scope,
                self._stream,
                start,
                end=end,
                bytes_max=bytes_max,
                strict_key_order=strict_key_order,
                on_truncation=self._on_truncation,
            )
        except TruncatedError as error:
            raise truncated_while_planning(error) from error
        if cut.lost:
            log_skipped(self._scope, self._stream, cut.lost, cut.lost_bytes)
        return Batch(
            segment_ranges(cut),
            cut.start.offsets,
            cut.end.offsets,
            cut.reached_end,
            cut.left_bytes,
            cut.lost,
            cut.lost_bytes,
        )

    def is_before(self, cut: Positions, other: Positions) -> bool:
        try:
            self._admin.next_cut(self._scope, self._stream, cut, end=other, bytes_max=1, on_truncation="fail")
        except InvalidRequestError:
            return False
        except TruncatedError:  # The controller compares the cuts first.
            return True
        return True

    def distance_bytes(self, start: Positions, end: Positions | None) -> int:
        return self._admin.stream_cut_distance(self._scope, self._stream, start, end)

    def between(self, start: Positions, end: Positions) -> Sequence[SegmentRange]:
        ranges: list[SegmentRange] = []
        reached_end = False
        while not reached_end:
            batch = self.next_batch(start, end)
            ranges += batch.ranges
            start, reached_end = batch.end, batch.reached_end
        return joined_ranges(ranges)

    def unread(self, start: Positions) -> Unread:
        end = self.cut("latest")
        ranges: list[SegmentRange] = []
        lost: list[LostBytes] = []
        reached_end = False
        while not reached_end:
            cut = self._admin.next_cut(self._scope, self._stream, start, end=end, on_truncation="skip")
            ranges += segment_ranges(cut)
            lost += cut.lost
            start, reached_end = cut.end.offsets, cut.reached_end
        return Unread(joined_ranges(ranges), lost)

    def planned(self, ranges: Sequence[SegmentRange], piece_bytes: int) -> Sequence[PlannedRange]:
        pieces: list[PlannedRange] = []
        for some in plan_requests(ranges, piece_bytes):
            wanted = [RangeToPlan(part.segment_id, part.start, part.end, piece_bytes) for part in some]
            for part, plan in zip(some, self._range_plans(wanted, links=self._links), strict=True):
                pieces += _pieces(part, plan)
        if self._ships_tokens and any(map(_needs_store, pieces)):
            token = self._tokens.to_read(self._scope, self._stream)
            uses_tls = any(piece.endpoint is not None and piece.endpoint.tls_name for piece in pieces)
            trust = self._trust.shipped() if uses_tls else None
            pieces = [replace(piece, token=token, trust=trust) if _needs_store(piece) else piece for piece in pieces]
        return pieces

    def bounded(self, ranges: Sequence[SegmentRange], low: int, high: int) -> Sequence[SegmentRange]:
        starts = self._boundaries([(part, question_below(part, low)) for part in ranges])
        ends = self._boundaries([(part, question_above(part, high)) for part in ranges])
        return [
            replace(part, start=starts.get(part.segment_id, part.start), end=ends.get(part.segment_id, part.end))
            for part in ranges
        ]

    def _boundaries(self, asked: Sequence[tuple[SegmentRange, BoundaryQuestion | None]]) -> dict[int, int]:
        """The answers that are known, by segment. Questions of one request must not overlap."""
        questions = [(part.segment_id, question) for part, question in asked if question is not None]
        boundaries: dict[int, int] = {}
        for first in range(0, len(questions), RANGES_PER_PLAN_MAX):
            some = questions[first : first + RANGES_PER_PLAN_MAX]
            wanted = [
                RangeToPlan(segment, question.start, question.end, -(-(question.end - question.start) // 2))
                for segment, question in some
            ]
            for plan in self._range_plans(wanted, links=False):
                if len(plan.pieces) > 1:
                    boundaries[plan.segment_id] = plan.pieces[0].end
        return boundaries

    def _range_plans(self, wanted: Sequence[RangeToPlan], *, links: bool) -> Sequence[RangePlan]:
        try:
            return self._admin.range_plans(self._scope, self._stream, wanted, links=links)
        except TruncatedError as error:
            raise truncated_while_planning(error) from error

    def cut_of_text(self, text: str) -> Positions:
        return check_cut_text(text, self._scope, self._stream)


def _pieces(part: SegmentRange, plan: RangePlan) -> Iterator[PlannedRange]:
    for piece in plan.pieces:
        listing = None if piece.stored_until is None else Listing(piece.chunks, piece.stored_until)
        yield PlannedRange(replace(part, start=piece.start, end=piece.end), listing, plan.endpoint)


def _needs_store(piece: PlannedRange) -> bool:
    """Links are enough for what is in S3."""
    return piece.listing is None or piece.listing.stored_until < piece.part.end


class ClientStreams:
    """The streams of a deployment, through a client."""

    def __init__(self, options: ReadOptions, links: bool) -> None:
        self._client = Headrace(
            options.controller, auth=options.auth, retry_s=options.patience_s, network=options.network
        )
        self._on_truncation = options.on_truncation
        self._patience_s = options.patience_s
        self._ships_tokens = links
        self._links = links and options.read_history_from == "s3"

    def summaries(self, scope: str, pattern: str) -> Sequence[StreamSummary]:
        streams = (stream for stream in self._client.admin.list_streams(scope) if not stream.stream.startswith("_"))
        return sorted(
            (each for each in streams if re.fullmatch(pattern, each.stream)), key=lambda summary: summary.stream
        )

    def view(self, scope: str, name: str) -> StreamView:
        return self._client.admin.get_stream(scope, name)

    def group_cuts(self, scope: str, group: str) -> Sequence[StreamCut]:
        patience_s = self._patience_s
        with self._client.reader_group(scope, group, initialize=False, give_up_after_s=patience_s) as opened:
            return opened.recorded_cuts()

    def stream(self, scope: str, name: str) -> ClientStreamAccess:
        return ClientStreamAccess(
            self._client, scope, name, self._on_truncation, self._links, ships_tokens=self._ships_tokens
        )

    def close(self) -> None:
        self._client.close()


def open_streams(options: ReadOptions, *, links: bool = True) -> ClientStreams:
    """The streams behind the controller that the options name; close them when done.

    Without `links` plans have none, which saves the controller 0.5 ms of processor time for each, and no delegation
    tokens. So they hold nothing that is secret.
    """
    return ClientStreams(options, links)
