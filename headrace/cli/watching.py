"""Actions that show the same table again and again: `headrace top`, `headrace group lag --watch`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from headrace.cli.outcome import Outcome, plain
from headrace.cli.parameters import checked, parse_seconds, positive
from headrace.cli.session import Session
from headrace.model.errors import InvalidRequestError

INTERVAL_S_DEFAULT = 2.0
INTERVAL_S_MIN = 0.1


def _parse_interval(text: str) -> float:
    interval_s = parse_seconds(text)
    if interval_s < INTERVAL_S_MIN:
        raise InvalidRequestError(f"the interval is {interval_s:g} s: it must be at least {INTERVAL_S_MIN} s")
    return interval_s


Interval = Annotated[
    float, typer.Option(parser=checked(_parse_interval), metavar="SECONDS", help="time between two samples")
]
Times = Annotated[
    int | None,
    typer.Option("--times", parser=positive, metavar="N", help="stop after N tables (default: until Ctrl-C)"),
]


def watch(session: Session, take: Callable[[], Outcome], interval_s: float, times: int | None) -> None:
    """Shows what `take` returns every `interval_s`. A terminal shows one table, a pipe all of them.

    With --json each table is an object on its own line.
    """
    if session.is_terminal and not session.json:
        from headrace.cli.styled_output import show_live

        show_live(_samples(take, interval_s, times))
        return
    for index, outcome in enumerate(_samples(take, interval_s, times)):
        if session.json:
            print(json.dumps(outcome.document, allow_nan=False), flush=True)
        else:
            print(("\n" if index else "") + plain(outcome), flush=True)


def _samples(take: Callable[[], Outcome], interval_s: float, times: int | None) -> Iterator[Outcome]:
    number = 0
    while times is None or number < times:
        if number:
            time.sleep(interval_s)
        yield take()
        number += 1
