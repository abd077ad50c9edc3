"""`headrace top`: the streams that grow fastest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import Outcome
from headrace.cli.parameters import REQUESTS_AT_ONCE, ScopedName, checked, positive
from headrace.cli.quantities import rate_text
from headrace.cli.session import Session
from headrace.cli.stream_describe import Growth, RateSampler
from headrace.cli.watching import INTERVAL_S_DEFAULT, Interval, Times, watch
from headrace.model.errors import NotFoundError
from headrace.model.names import check_known_name

STREAMS_SHOWN_DEFAULT = 20


class Live(NamedTuple):
    """A stream and its growth."""

    stream: ScopedName
    growth: Growth


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    action(app, "top", examples=["headrace top", "headrace top shop --interval 5 --times 1"])(top)


def top(
    session: Session,
    scopes: Annotated[
        list[str] | None,
        typer.Argument(
            parser=checked(lambda text: check_known_name("scope", text)),
            metavar="[SCOPE]...",
            help="scopes to watch (default: all)",
        ),
    ] = None,
    interval: Interval = INTERVAL_S_DEFAULT,
    count: Annotated[
        int, typer.Option(parser=positive, metavar="N", help="how many streams to show")
    ] = STREAMS_SHOWN_DEFAULT,
    times: Times = None,
) -> None:
    """Show live streams by rate, the fastest first, until Ctrl-C.

    Each sample asks the controller once per stream.
    """
    samples = _Samples(session, scopes or [])
    samples.take()
    watch(session, lambda: samples.outcome(count), interval, times)


class _Samples:
    """Samples of all streams of some scopes. Streams that come and go are found at the next sample."""

    def __init__(self, session: Session, scopes: list[str]) -> None:
        self._session = session
        self._scopes = scopes
        self._sampler = RateSampler(session.client.admin)

    def take(self) -> list[Live]:
        """The growth of each stream since the last sample, the fastest first."""
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            growing = [each for each in pool.map(self._sample, self._streams()) if each is not None]
        return sorted(growing, key=lambda live: (-live.growth.total_bytes_per_s, live.stream))

    def outcome(self, count: int) -> Outcome:
        live = self.take()
        document = {
            "streams": [
                {
                    "scope": each.stream.scope,
                    "stream": each.stream.name,
                    "bytesPerS": round(each.growth.total_bytes_per_s, 1),
                    "segments": len(each.growth.tail.positions),
                }
                for each in live[:count]
            ]
        }
        return Outcome(
            document, ("STREAM", "RATE", "SEGMENTS", "BUSIEST SEGMENT"), [_row(each) for each in live[:count]]
        )

    def _streams(self) -> list[ScopedName]:
        admin = self._session.client.admin
        scopes = self._scopes or admin.list_scopes()
        return [ScopedName(stream.scope, stream.stream) for scope in scopes for stream in admin.list_streams(scope)]

    def _sample(self, stream: ScopedName) -> Live | None:
        try:
            growth = self._sampler.sample(stream)
        except NotFoundError:
            return None  # deleted since it was listed
        return None if growth is None else Live(stream, growth)


def _row(live: Live) -> tuple[Any, ...]:
    growth = live.growth
    busiest = max(growth.bytes_per_s.values(), default=0.0)
    return (str(live.stream), rate_text(growth.total_bytes_per_s), len(growth.tail.positions), rate_text(busiest))
