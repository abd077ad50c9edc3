"""`headrace stream describe`: everything about one stream on one page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace.api.retention import SubscriberView
from headrace.api.segments import EpochSegments
from headrace.api.streams import StreamView
from headrace.cli.actions import action
from headrace.cli.outcome import Outcome, Section, state_text, time_text
from headrace.cli.parameters import REQUESTS_AT_ONCE, ScopedName, StreamName, seconds
from headrace.cli.quantities import duration_text, rate_text, scaling_text, size_text
from headrace.cli.retention import retention_details, retention_document
from headrace.cli.session import Session
from headrace.cli.transaction import transaction_document
from headrace.codec.places import segment_text
from headrace.model.errors import InvalidRequestError, NotFoundError, TruncatedError
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import StreamCut

if TYPE_CHECKING:
    from headrace.client.synchronous.synchronous_admin import Admin


# The rate at which streams grow, from two samples of their tails. It counts bytes also across a scale.


class Growth(NamedTuple):
    """Bytes per second since the last sample, by segment id, and the tail of this sample."""

    bytes_per_s: Mapping[int, float]
    tail: StreamCut

    @property
    def total_bytes_per_s(self) -> float:
        return sum(self.bytes_per_s.values())


class _Sample(NamedTuple):
    at_s: float
    tail: StreamCut


class RateSampler:
    """Samples streams. The first sample of a stream has no rate. Safe for any number of threads."""

    def __init__(self, admin: Admin, now_s: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._now_s = now_s
        self._last: dict[ScopedName, _Sample] = {}

    def sample(self, stream: ScopedName) -> Growth | None:
        """Takes a sample; None for the first one of a stream, also after it was truncated or created again.

        Raises:
            NotFoundError: there is no such stream.
        """
        last = self._last.get(stream)
        if last is not None:
            try:
                return self._growth(stream, last)
            except (TruncatedError, InvalidRequestError, NotFoundError):
                self._last.pop(stream, None)
        self._last[stream] = _Sample(self._now_s(), self._admin.stream_cut(*stream))
        return None

    def _growth(self, stream: ScopedName, last: _Sample) -> Growth:
        written = self._admin.segments_between(*stream, last.tail)
        now_s = self._now_s()
        elapsed_s = max(now_s - last.at_s, 1e-9)
        self._last[stream] = _Sample(now_s, written.end)
        rates = {span.segment_id: (span.end_offset - span.start_offset) / elapsed_s for span in written.ranges}
        return Growth(rates, written.end)


INTERVAL_S_DEFAULT = 1.0
BAR_WIDTH = 32


class Lag(NamedTuple):
    """A subscriber, and the bytes between its position and the tail."""

    subscriber: SubscriberView
    bytes: int


def add_to(app: typer.Typer) -> None:
    """Adds the action to the application of streams."""
    action(
        app,
        "describe",
        examples=["headrace stream describe shop/orders", "headrace stream describe shop/orders --interval 10"],
    )(describe)


def describe(
    session: Session,
    stream: StreamName,
    interval: Annotated[
        float,
        typer.Option(
            parser=seconds, metavar="SECONDS", help="how long to watch the stream for its rates; 0: show no rates"
        ),
    ] = INTERVAL_S_DEFAULT,
) -> Outcome:
    """Show a stream with its segments, rates, retention, subscribers and open transactions."""
    admin = session.client.admin
    view = admin.get_stream(*stream)
    growth = None if view.segments == 0 else _growth(session, stream, interval)
    segments = admin.epoch_segments(*stream)
    retention = admin.retention.describe(*stream)
    lags = [
        Lag(each, admin.stream_cut_distance(*stream, from_cut=each.offsets)) for each in admin.subscribers.list(*stream)
    ]
    transactions = admin.transactions.list_open(*stream)
    document = {
        "scope": stream.scope,
        "stream": stream.name,
        "state": view.state,
        "epoch": view.epoch,
        "bytesPerS": None if growth is None else round(growth.total_bytes_per_s, 1),
        "segments": [_segment_document(segments, index, growth) for index in range(len(segments.segments))],
        "retention": retention_document(retention),
        "subscribers": [
            {"subscriber": lag.subscriber.subscriber, "lagBytes": lag.bytes, "updatedMs": lag.subscriber.updated_ms}
            for lag in lags
        ],
        "openTransactions": [transaction_document(transaction) for transaction in transactions],
    }
    details = [
        ("stream", str(stream)),
        ("state", state_text(view.state)),
        ("scaling", scaling_text(view.scaling)),
        *([("rate", rate_text(growth.total_bytes_per_s))] if growth is not None else []),
        ("tags", view.tags),
        ("created", time_text(view.creation_time_ms)),
        *(pair for pair in retention_details(retention) if pair[0] not in ("subscribers", "retention set")),
    ]
    sections = [
        Section("SUBSCRIBERS", ("SUBSCRIBER", "LAG", "UPDATED"), [_lag_row(lag) for lag in lags]),
        Section(
            "OPEN TRANSACTIONS",
            ("TRANSACTION", "STATE", "CREATED", "LEASE ENDS IN"),
            [
                (
                    transaction.transaction,
                    state_text(transaction.state),
                    time_text(transaction.creation_time_ms),
                    duration_text((transaction.lease_end_ms - retention.time_ms) / 1000),
                )
                for transaction in transactions
            ],
        ),
    ]
    columns = ("SEGMENT", "KEY SPACE", "SHARE", *(("RATE",) if growth is not None else ()))
    rows = [_segment_row(session, segments, index, growth) for index in range(len(segments.segments))]
    return Outcome(document, columns, rows, details=details, sections=[section for section in sections if section.rows])


class _Totals(NamedTuple):
    """One line of a list. A stream without open segments has no rate."""

    view: StreamView
    bytes_retained: int
    bytes_per_s: float | None


def long_list(session: Session, streams: list[ScopedName]) -> Outcome:
    """Streams with state, segments, retained bytes, and their rates over a second."""
    sampler = RateSampler(session.client.admin)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        began_s = time.monotonic()
        list(pool.map(lambda stream: _totals(session, sampler, stream), streams))
        time.sleep(max(0.0, INTERVAL_S_DEFAULT - (time.monotonic() - began_s)) if streams else 0.0)
        totals = [
            each for each in pool.map(lambda stream: _totals(session, sampler, stream), streams) if each is not None
        ]
    document = {
        "streams": [
            {
                "scope": each.view.scope,
                "stream": each.view.stream,
                "tags": list(each.view.tags),
                "state": each.view.state,
                "segments": each.view.segments,
                "bytesRetained": each.bytes_retained,
                "bytesPerS": None if each.bytes_per_s is None else round(each.bytes_per_s, 1),
            }
            for each in totals
        ]
    }
    rows = [
        (
            f"{each.view.scope}/{each.view.stream}",
            state_text(each.view.state),
            each.view.segments,
            size_text(each.bytes_retained),
            None if each.bytes_per_s is None else rate_text(each.bytes_per_s),
            each.view.tags,
        )
        for each in totals
    ]
    return Outcome(document, ("STREAM", "STATE", "SEGMENTS", "SIZE", "RATE", "TAGS"), rows)


def _totals(session: Session, sampler: RateSampler, stream: ScopedName) -> _Totals | None:
    admin = session.client.admin
    try:
        view = admin.get_stream(*stream)
        growth = sampler.sample(stream) if view.segments else None
        return _Totals(view, admin.stream_cut_distance(*stream), growth.total_bytes_per_s if growth else None)
    except NotFoundError:
        return None  # deleted since it was listed


def key_space_bar(key_range: KeyRange, *, used: str, unused: str) -> str:
    """The part of the key space that a segment has, as `BAR_WIDTH` characters; at least one of them is `used`."""
    first = min(BAR_WIDTH - 1, int(key_range.low * BAR_WIDTH + 0.5))
    last = max(first + 1, int(key_range.high * BAR_WIDTH + 0.5))
    return unused * first + used * (last - first) + unused * (BAR_WIDTH - last)


def _growth(session: Session, stream: ScopedName, interval_s: float) -> Growth | None:
    if interval_s == 0:
        return None
    sampler = RateSampler(session.client.admin)
    sampler.sample(stream)
    time.sleep(interval_s)
    return sampler.sample(stream)


def _segment_document(segments: EpochSegments, index: int, growth: Growth | None) -> dict[str, Any]:
    segment = segments.segments[index]
    return {
        "segment": segment.segment_id,
        "name": segment.name,
        "low": segment.key_range.low,
        "high": segment.key_range.high,
        "bytesPerS": None if growth is None else round(growth.bytes_per_s.get(segment.segment_id, 0.0), 1),
    }


def _segment_row(session: Session, segments: EpochSegments, index: int, growth: Growth | None) -> tuple[Any, ...]:
    segment = segments.segments[index]
    used, unused = ("█", "·") if session.is_terminal else ("#", ".")
    row = (
        segment_text(segment.segment_id),
        key_space_bar(segment.key_range, used=used, unused=unused),
        f"{(segment.key_range.high - segment.key_range.low) * 100:.1f} %",
    )
    return row if growth is None else (*row, rate_text(growth.bytes_per_s.get(segment.segment_id, 0.0)))


def _lag_row(lag: Lag) -> tuple[Any, ...]:
    return lag.subscriber.subscriber, size_text(lag.bytes), time_text(lag.subscriber.updated_ms)
