"""The output of an action on a terminal, with Rich. `NO_COLOR` leaves the colours out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.outcome import NOTHING, Outcome, cell, in_words, plain, to_right

_GOOD = frozenset({"active", "open", "live", "success", "yes"})
_BAD = frozenset({"stuck", "lost", "blocked", "dead", "aborting", "aborted"})


def show_styled(outcome: Outcome) -> None:
    """Prints the outcome on the terminal."""
    if any(cell(value).startswith(("http://", "https://")) for row in outcome.rows for value in row):
        print(plain(outcome))  # a URL that is folded cannot be copied
        return
    Console(highlight=False).print(styled(outcome))


def show_live(outcomes: Iterable[Outcome]) -> None:
    """Shows each outcome in the place of the one before."""
    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for outcome in outcomes:
            live.update(styled(outcome), refresh=True)


def styled(outcome: Outcome) -> RenderableType:
    """The outcome as Rich prints it. Long cells are folded; nothing in them is read as markup."""
    parts: list[RenderableType] = []
    if outcome.details or not outcome.columns:
        parts.append(_pairs(outcome))
    if outcome.columns:
        parts.append(_table(outcome.columns, outcome.rows) if outcome.rows else Text(NOTHING))
    parts += [
        Group(Text(section.title, style="bold"), _table(section.columns, section.rows)) for section in outcome.sections
    ]
    return Group(
        *[
            part
            for index, renderable in enumerate(parts)
            for part in ((Text(""), renderable) if index else (renderable,))
        ]
    )


def _pairs(outcome: Outcome) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in outcome.details or in_words(outcome.document):
        grid.add_row(Text(name), _cell(value))
    return grid


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold cyan", padding=(0, 2, 0, 0))
    for name, is_number in zip(columns, to_right(columns, rows), strict=True):
        made.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: object) -> Text:
    text = cell(value)
    word = text.partition(" ")[0]
    return Text(text, style="green" if word in _GOOD else "red" if word in _BAD else "")
