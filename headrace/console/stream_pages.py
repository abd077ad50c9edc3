"""The page of a stream and its parts: header, key space over time, groups, transactions, retention, live events.

Each part is read again by itself. The intervals keep a page below two requests to the API a second.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.cli.outcome import time_text
from headrace.cli.parameters import ScopedName
from headrace.client import EventBatch, SegmentRange, StreamCut
from headrace.codec.places import parse_number, parse_segment, segment_text
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.console.console_state import ConsoleState, named, text_parameter
from headrace.console.event_text import event_page
from headrace.console.group_watch import GROUPS_PER_STREAM_MAX
from headrace.console.key_space_layout import hidden_segments, lay_out
from headrace.console.key_space_svg import Links, Picture, Position, draw, legend, window_text
from headrace.console.live_views import Followed
from headrace.console.segment_spans import SpanPage, segments_of_key, spans_of
from headrace.console.store_reach import AWAY, EPOCHS_MEASURED_MAX, STORE_PATIENCE_S
from headrace.console.stream_query import EPOCH_CHOICES, StreamQuery, segment_address
from headrace.model.errors import CorruptError, InvalidRequestError, UnavailableError
from headrace.model.limits import EVENT_HEADER_BYTES, EVENT_TIME_MS_MIN
from headrace.model.routing import routing_key_position

HEADER_S, MAP_S, TRANSACTIONS_S, RETENTION_S, GROUPS_S = 15, 30, 15, 60, 10
TRANSACTIONS_SHOWN_MAX = 100
TRANSACTIONS_IN_PART_MAX = 10
SUBSCRIBERS_SHOWN_MAX = 20
TABLE_ROWS_MAX = 300
EVENT_READ_BYTES_MAX = 16 * 1024 * 1024


class Intervals(NamedTuple):
    """Seconds after which each part of the page is read again."""

    header: int = HEADER_S
    map: int = MAP_S
    transactions: int = TRANSACTIONS_S
    retention: int = RETENTION_S
    groups: int = GROUPS_S


class StreamPages:
    """The handlers. They run in threads."""

    def __init__(self, console: ConsoleState) -> None:
        self._console = console

    def routes(self) -> list[Route]:
        base = "/streams/{scope}/{name}"
        return [
            Route(base, self.stream),
            Route(f"{base}/header", self.header),
            Route(f"{base}/map", self.map),
            Route(f"{base}/groups", self.groups),
            Route(f"{base}/open-transactions", self.open_transactions),
            Route(f"{base}/retention", self.retention),
            Route(f"{base}/cut", self.cut),
            Route(f"{base}/live", self.live),
            Route(f"{base}/event", self.event),
            Route(f"{base}/transactions", self.transactions),
            Route("/live/{view}", self.look),
            Route("/live/{view}/paused", self.paused),
            Route("/live/{view}/resumed", self.resumed),
        ]

    def stream(self, request: Request) -> Response:
        query = StreamQuery.of(request, named(request))
        return self._console.page(
            request,
            "stream.html",
            every=Intervals(),
            choices=EPOCH_CHOICES,
            command=query.command,
            **self._header(query.stream),
            **self._map(query),
        )

    def header(self, request: Request) -> Response:
        return self._console.page(request, "stream_header.html", **self._header(named(request)))

    def map(self, request: Request) -> Response:
        return self._console.page(request, "stream_map.html", **self._map(StreamQuery.of(request, named(request))))

    def groups(self, request: Request) -> Response:
        stream = named(request)
        views = self._console.groups.of_stream(stream)
        with ThreadPoolExecutor(GROUPS_PER_STREAM_MAX) as pool:  # each may wait for a store
            facts = list(pool.map(self._console.groups.look, views[:GROUPS_PER_STREAM_MAX]))
        return self._console.page(
            request, "stream_groups.html", facts=facts, stream=stream, hidden=len(views) - len(facts)
        )

    def open_transactions(self, request: Request) -> Response:
        stream = named(request)
        return self._console.page(
            request, "stream_transactions.html", **self._transactions(stream, TRANSACTIONS_IN_PART_MAX), stream=stream
        )

    def transactions(self, request: Request) -> Response:
        stream = named(request)
        completed = self._console.admin.transactions.list_completed(*stream)
        return self._console.page(
            request, "transactions.html", **self._transactions(stream), stream=stream, completed=completed
        )

    def retention(self, request: Request) -> Response:
        stream, admin = named(request), self._console.admin
        view = admin.get_stream(*stream)
        if view.retention is None and view.epoch > EPOCHS_MEASURED_MAX:
            # Without cuts of the policy the controller would read all epochs from the head on.
            return self._console.page(request, "stream_retention.html", stream=stream, retention=None, epoch=view.epoch)
        described = self._console.reach.answer(lambda: admin.retention.describe(*stream))
        subscribers = []
        if described.subscribers:
            for subscriber in admin.subscribers.list(*stream)[:SUBSCRIBERS_SHOWN_MAX]:
                unread = self._console.reach.behind(stream, subscriber.offsets, newest_epoch=view.epoch)
                subscribers.append((subscriber, unread))
        subscribers.sort(key=lambda pair: -math.inf if pair[1] is None else -pair[1])
        return self._console.page(
            request, "stream_retention.html", stream=stream, retention=described, subscribers=subscribers
        )

    def cut(self, request: Request) -> Response:
        """The stream cut at the chosen place, to be copied."""
        query = StreamQuery.of(request, named(request))
        cut = self._console.reach.cut_at(query.stream, query.start)
        return self._console.page(request, "stream_cut.html", q=query, cut=cut_words(cut), text=stream_cut_text(cut))

    def live(self, request: Request) -> Response:
        query = StreamQuery.of(request, named(request))
        followed = Followed(query.stream, query.segment_id, query.needle, query.start)
        return self._console.page(request, "live.html", view=self._console.views.open(followed), q=query)

    def look(self, request: Request) -> Response:
        view = request.path_params["view"]
        glance = self._console.views.look(view)
        followed = self._console.views.followed(view)
        position = cut_words(glance.position) if isinstance(glance.position, StreamCut) else f"byte {glance.position:,}"
        return self._console.page(
            request, "live_part.html", glance=glance, view=view, stream=followed.stream, position=position
        )

    def paused(self, request: Request) -> Response:
        view = request.path_params["view"]
        self._console.views.followed(view)
        return self._console.page(request, "live_paused.html", view=view)

    def resumed(self, request: Request) -> Response:
        view = request.path_params["view"]
        self._console.views.followed(view)
        return self._console.page(request, "live_status.html", view=view)

    def event(self, request: Request) -> Response:
        """One event on a page of its own, found by its segment and its bytes."""
        stream = named(request)
        segment_id = parse_segment(text_parameter(request, "segment"))
        start = parse_number(text_parameter(request, "offset"))
        length = parse_number(text_parameter(request, "length"))
        if length > EVENT_READ_BYTES_MAX:
            raise InvalidRequestError(f"the console reads events of at most {EVENT_READ_BYTES_MAX} bytes")
        part = SegmentRange(*stream, segment_id, 0.0, 1.0, start, start + length)
        reach = self._console.reach
        is_reached = reach.to_stream(stream)
        self._check_written(part, is_reached=is_reached)
        try:
            batch = reach.store_answer(lambda: self._first_batch(part))
        except CorruptError as error:
            raise _no_event(part, "none begins at the first byte and ends with the last one") from error
        if batch is None:
            raise _no_event(part, "they are 0")
        if len(batch.events) > 1 or batch.end_offset < part.end:  # a batch may be shorter than the range
            raise _no_event(part, f"the first one ends at byte {start + EVENT_HEADER_BYTES + len(batch.events[0])}")
        return self._console.page(
            request,
            "event.html",
            stream=stream,
            segment_id=segment_id,
            offset=start,
            size=len(batch.events[0]),
            shown=event_page(batch.events[0]),
        )

    def _first_batch(self, part: SegmentRange) -> EventBatch | None:
        with self._console.client.range_reader(part, give_up_after_s=STORE_PATIENCE_S) as reader:
            return reader.read_batch()

    def _check_written(self, part: SegmentRange, *, is_reached: bool) -> None:
        """Raises InvalidRequestError if the segment ends before the range, and UnavailableError if only a store that is
        not reached has all of it."""
        if not is_reached:
            ask = partial(self._console.admin.chunks, part.scope, part.stream, part.segment_id)
            chunks = self._console.reach.answer(lambda: ask(from_offset=part.start, to_offset=part.end))
            if chunks.stored_until >= part.end:
                return
        end = self._console.reach.segment_end(ScopedName(part.scope, part.stream), part.segment_id).offset
        if part.end > end:
            raise _no_event(part, f"the segment ends at byte {end}")
        if not is_reached:
            raise UnavailableError(f"the event is not in S3 yet, which takes some 5 to 10 s, and {AWAY}")

    def _header(self, stream: ScopedName) -> dict[str, Any]:
        view = self._console.admin.get_stream(*stream)
        return {
            "stream": stream,
            "view": view,
            "kept": self._console.kept(stream, view),
            "growth": self._console.growth(stream) if view.segments else None,
        }

    def _map(self, query: StreamQuery) -> dict[str, Any]:
        admin, stream = self._console.admin, query.stream
        before = None if query.until is None else query.until + 1
        history = admin.epoch_history(*stream, before=before, limit=query.epochs + 1)
        tail = self._console.reach.answer_or_none(lambda: admin.stream_cut(*stream, at="latest"))
        newest = () if query.until is not None else (segment.segment_id for segment in history.segments)
        is_open = frozenset(newest if tail is None else tail.offsets).__contains__
        page = spans_of(history, {} if tail is None else tail.offsets, self._console.clock.now_ms(), query.until)
        rectangles = lay_out(page)
        key_position = None if query.key is None else routing_key_position(query.key)
        links = Links(lambda span: segment_address(query, span.segment_id, is_open=is_open(span.segment_id)), query.at)
        picture = Picture(str(stream), page, rectangles, self._positions(stream), key_position, query.segment_id, links)
        spans = segments_of_key(page, key_position) if key_position is not None else list(page.spans)
        return {
            "q": query,
            "picture": Markup(draw(picture)),
            "page": page,
            "window": window_text(page),
            "hidden": hidden_segments(rectangles),
            "rows": [
                (span, segment_address(query, span.segment_id, is_open=is_open(span.segment_id)))
                for span in reversed(spans[-TABLE_ROWS_MAX:])
            ],
            "left_out": max(0, len(spans) - TABLE_ROWS_MAX),
            "key_position": key_position,
            "legend": list(legend()),
            "is_open": is_open,
            "sizes_known": tail is not None,
            "newer": _newer(page, query),
        }

    def _positions(self, stream: ScopedName) -> list[Position]:
        """The head, the watermark, and the groups that the page has looked at."""
        admin, groups = self._console.admin, self._console.groups
        head = admin.stream_cut(*stream, at="earliest")
        positions = [Position("head", "truncated: before the head of the stream", head.offsets)]
        watermark = admin.watermarks.newest(*stream).watermark
        if watermark is not None:
            offsets = {place.segment.segment_id: place.offset for place in watermark.cut}
            positions.append(Position("watermark", f"watermark {_event_time(watermark.lower_time)}", offsets))
        for name, cut in groups.cuts_in(stream)[:GROUPS_PER_STREAM_MAX]:
            label = name.name if name.scope == stream.scope else str(name)
            positions.append(Position("group", label, cut.offsets))
        return positions

    def _transactions(self, stream: ScopedName, shown: int = TRANSACTIONS_SHOWN_MAX) -> dict[str, Any]:
        transactions = self._console.admin.transactions.list_open(*stream)
        transactions.sort(key=lambda transaction: transaction.creation_time_ms)
        return {
            "open": transactions[:shown],
            "count": len(transactions),
            "now_ms": self._console.clock.now_ms(),
        }


def _no_event(part: SegmentRange, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"bytes {part.start} to {part.end} of segment {segment_text(part.segment_id)} are not one event: {reason}. "
        "The list of events of the stream has a link to each"
    )


def cut_words(cut: StreamCut) -> str:
    """A cut as the command line takes it."""
    return ",".join(f"{segment_text(identifier)}:{offset}" for identifier, offset in cut.positions)


def _event_time(time: int) -> str:
    """The time of a watermark. Applications choose its unit; most choose milliseconds since 1970."""
    return time_text(time) if EVENT_TIME_MS_MIN <= time <= 4 * EVENT_TIME_MS_MIN else str(time)


def _newer(page: SpanPage, query: StreamQuery) -> str | None:
    """The address of the window after this one, None if this is the newest."""
    if page.is_newest:
        return None
    until = page.last_epoch + 1 + query.epochs
    return query.address(until=until)
