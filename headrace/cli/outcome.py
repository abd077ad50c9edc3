"""What an action says: one JSON document for machines; a table, fields or a sentence for people.

The JSON is the contract: names and shapes stay. Tables are for eyes and may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_GAP = "  "
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
"""Text of others must not move the cursor of a terminal or colour it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`document` is the JSON. People see `rows` under `columns` if there are columns, else `text`, else its fields."""

    document: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = ()
    text: str = ""


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Prints the outcome."""
    if as_json:
        print(json.dumps(outcome.document, indent=2, allow_nan=False))
    elif outcome.columns:
        print(table(outcome.columns, outcome.rows))
    elif outcome.text:
        print(cell(outcome.text))
    else:
        print(fields(outcome.document))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as what is in them; numbers to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    right = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(columns))]
    return "\n".join(
        _GAP.join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def fields(document: Mapping[str, Any]) -> str:
    """One field a line; fields that are called a time in milliseconds are shown as dates."""
    width = max((len(name) for name in document), default=0)
    shown = {name: time_text(value) if name.endswith("TimeMs") else cell(value) for name, value in document.items()}
    return "\n".join(f"{name.ljust(width)}{_GAP}{text}".rstrip() for name, text in shown.items())


def cell(value: Any) -> str:
    """A value on one line of text."""
    if value is None or value in ("", [], (), {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{cell(name)}={cell(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell(one) for one in value)
    return str(value).translate(_CONTROLS)


def time_text(time_ms: int) -> str:
    """A time in milliseconds since 1970, as people read it; in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
