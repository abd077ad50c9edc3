"""The output of an action on a terminal, with Rich. `NO_COLOR` leaves the colours out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.cli.outcome import NOTHING, Outcome, cell, in_words, plain, to_right

_GAP = 2
_WORD = re.compile(r"^\s*\S+|\S+")
_GOOD = frozenset({"active", "open", "live", "success", "yes"})
_BAD = frozenset({"stuck", "lost", "blocked", "dead", "aborting", "aborted"})


def show_styled(outcome: Outcome) -> None:
    """Prints the outcome on the terminal."""
    console = Console(highlight=False)
    tables = [(outcome.columns, outcome.rows), *((section.columns, section.rows) for section in outcome.sections)]
    if not _has_room_for_pairs(outcome, console.width) or any(
        rows and _widths(columns, rows, console.width) is None for columns, rows in tables
    ):
        print(plain(outcome))  # an address or a stream cut that is folded cannot be copied
        return
    console.print(styled(outcome, console.width))


def show_live(outcomes: Iterable[Outcome]) -> None:
    """Shows each outcome in the place of the one before."""
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        for outcome in outcomes:
            live.update(styled(outcome, console.width), refresh=True)


def styled(outcome: Outcome, width: int) -> RenderableType:
    """The outcome as Rich prints it on a terminal of this width. Nothing in a cell is read as markup.

    Lines of a cell end between words, if the words have room; else the cells are folded.
    """
    parts: list[RenderableType] = []
    if outcome.details or not outcome.columns:
        parts.append(_pairs(outcome))
    if outcome.columns:
        parts.append(_table(outcome.columns, outcome.rows, width) if outcome.rows else Text(NOTHING))
    parts += [
        Group(Text(section.title, style="bold"), _table(section.columns, section.rows, width))
        for section in outcome.sections
    ]
    return Group(
        *[
            part
            for index, renderable in enumerate(parts)
            for part in ((Text(""), renderable) if index else (renderable,))
        ]
    )


def _has_room_for_pairs(outcome: Outcome, width: int) -> bool:
    pairs = _pairs_of(outcome)
    room = width - _GAP - max((cell_len(name) for name, _ in pairs), default=0)
    return all(cell_len(word) <= room for _, value in pairs for word in _words(cell(value)))


def _pairs_of(outcome: Outcome) -> Sequence[tuple[str, Any]]:
    return outcome.details or ([] if outcome.columns else in_words(outcome.document))


def _pairs(outcome: Outcome) -> Table:
    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _pairs_of(outcome):
        grid.add_row(Text(name), _cell(value))
    return grid


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold cyan", padding=(0, _GAP, 0, 0))
    widths: Sequence[int | None] = _widths(columns, rows, width) or [None] * len(columns)
    for name, is_number, column_width in zip(columns, to_right(columns, rows), widths, strict=True):
        justify: JustifyMethod = "right" if is_number else "left"
        made.add_column(Text(name), justify=justify, overflow="fold", width=column_width)
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> list[int] | None:
    """The width of each column, so that no word is folded; None if the terminal has no room for all of them.

    Columns that wrap share the room that is left, each by what it lacks.
    """
    texts = [[name, *(cell(row[index]) for row in rows)] for index, name in enumerate(columns)]
    least = [max((cell_len(word) for text in column for word in _words(text)), default=0) for column in texts]
    most = [max(map(cell_len, column)) for column in texts]
    room = width - sum(least) - _GAP * (len(columns) - 1)
    if room < 0:
        return None
    lacking = sum(most) - sum(least)
    if lacking <= room:
        return most
    return [low + room * (high - low) // lacking for low, high in zip(least, most, strict=True)]


def _words(text: str) -> list[str]:
    """What Rich does not divide. Spaces at the start belong to the first word."""
    return _WORD.findall(text)


def _cell(value: object) -> Text:
    text = cell(value)
    word = text.partition(" ")[0]
    return Text(text, style="green" if word in _GOOD else "red" if word in _BAD else "")
