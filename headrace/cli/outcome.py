"""The output of an action: one JSON document for programs, or a table, fields or a sentence for people.

The names and the structure of the JSON are stable. The output for people may change. Without a terminal it is plain
text: rows are not wrapped and have no colours, so that `grep` and `awk` can read them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headrace.cli.exit_codes import ExitCode

_GAP = "  "
NOTHING = "none"
"""Instead of a table without rows."""

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
"""Control characters are escaped, so that text of other users cannot move a terminal's cursor or change its colours."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Section(NamedTuple):
    """A table with a title, which follows the main one."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The output of an action.

    `document` is printed with --json. Without it, people see the pairs of `details`, then `rows` under `columns`, then
    `sections`; if there are none of them, `text`; else the fields of the document in words. `code` is the exit code.
    """

    document: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = ()
    text: str = ""
    details: Sequence[tuple[str, Any]] = ()
    sections: Sequence[Section] = ()
    code: ExitCode = ExitCode.DONE


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Prints the outcome."""
    if as_json:
        print(json.dumps(outcome.document, indent=2, allow_nan=False))
        return
    if sys.stdout.isatty() and (outcome.columns or not outcome.text):
        from headrace.cli.styled_output import show_styled

        show_styled(outcome)
        return
    print(plain(outcome))


def plain(outcome: Outcome) -> str:
    """The text for people, without styles."""
    parts: list[str] = []
    if outcome.details:
        parts.append(pairs(outcome.details))
    if outcome.rows:
        parts.append(table(outcome.columns, outcome.rows))
    elif outcome.columns:
        parts.append(NOTHING)
    parts += [f"{section.title}\n{table(section.columns, section.rows)}" for section in outcome.sections]
    if not parts:
        parts.append(cell(outcome.text) if outcome.text else pairs(in_words(outcome.document)))
    return "\n\n".join(parts)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Aligns the rows under the columns. Columns of numbers are aligned to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    right = to_right(columns, rows)
    return "\n".join(
        _GAP.join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def to_right(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    """For each column, whether it has only numbers."""
    return [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(columns))]


def pairs(details: Sequence[tuple[str, Any]]) -> str:
    """Prints one pair per line."""
    width = max((len(name) for name, _ in details), default=0)
    return "\n".join(f"{name.ljust(width)}{_GAP}{cell(value)}".rstrip() for name, value in details)


def in_words(document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The fields of a document for people: `creationTimeMs` is "creation time" with a date."""
    found: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name.endswith("TimeMs") and value is not None:
            found.append((words(name.removesuffix("Ms")), time_text(value)))
        else:
            found.append((words(name), value))
    return found


def words(name: str) -> str:
    """The words of a name in camelCase. A unit at the end is in parentheses."""
    parts = [part if part.isupper() else part.lower() for part in _HUMP.split(name)]
    if len(parts) > 1 and parts[-1] in ("ms", "bytes"):
        return f"{' '.join(parts[:-1])} ({parts[-1]})"
    return " ".join(parts)


def cell(value: Any) -> str:
    """A value as text on one line."""
    if value is None or value in ("", [], (), {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{words(cell(name))}={cell(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell(each) for each in value)
    return str(value).translate(_CONTROLS)


def state_text(state: str) -> str:
    """A state for people: `IN_PROGRESS` is "in progress"."""
    return state.lower().replace("_", " ")


def time_text(time_ms: int) -> str:
    """Formats a time in milliseconds since 1970 as a date and time in UTC."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
