"""The output of an action: one JSON document for programs, or a table, fields or a sentence for people.

The names and the structure of the JSON are stable. The output for people may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_GAP = "  "
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
"""Control characters are escaped, so that text of other users cannot move a terminal's cursor or change its colours."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output of an action.

    `document` is printed with --json. Without it, people see `rows` under `columns` if there are columns, else `text`,
    else the fields of the document.
    """

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
    """Aligns the rows under the columns. Columns of numbers are aligned to the right."""
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
    """Prints one field per line. Fields whose names end in "TimeMs" are shown as dates."""
    width = max((len(name) for name in document), default=0)
    shown = {name: time_text(value) if name.endswith("TimeMs") else cell(value) for name, value in document.items()}
    return "\n".join(f"{name.ljust(width)}{_GAP}{text}".rstrip() for name, text in shown.items())


def cell(value: Any) -> str:
    """A value as text on one line."""
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
    """Formats a time in milliseconds since 1970 as a date and time in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
