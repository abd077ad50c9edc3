"""How an action ends: its output, the exit code, and the hint that follows an error message.

The output is one JSON document for programs, or a table, fields or a sentence for people. The names and the structure
of the JSON are stable. The output for people may change. Without a terminal it is plain text: rows are not wrapped and
have no colours, so that `grep` and `awk` can read them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, NamedTuple

from headrace.model import errors
from headrace.model.names import check_known_name


class ExitCode(IntEnum):
    """Why a command ended. `docs/using/cli.md` has the same table."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    TIMEOUT = 6
    INCOMPLETE = 7
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done; also if the reader of the output closed its pipe early, as `head` does",
    ExitCode.REFUSED: "refused or failed: the request is invalid, or the state of the resource does not allow it",
    ExitCode.USAGE: "the command line is invalid, or the extra `headrace[cli]` is not installed; no request was sent",
    ExitCode.NOT_FOUND: "the named resource does not exist",
    ExitCode.CONFLICT: "the resource exists already, or another operation is running",
    ExitCode.UNREACHABLE: "the controller, or a service that it needs, does not answer",
    ExitCode.TIMEOUT: "the deployment did not finish the request in time; completed steps are kept, so repeat it",
    ExitCode.INCOMPLETE: "done, except for rows of the input that were refused and are in the file of --skip-invalid",
    ExitCode.INTERRUPTED: "Ctrl-C",
}

_HINTS = {
    "already_exists": "--exist-ok accepts an existing resource",
    "scope_not_empty": "--recursive also deletes the contents; to list the streams: headrace stream list SCOPE",
    "stream_not_sealed": "seal it first: headrace stream seal SCOPE/STREAM",
    "segment_not_active": "to list the active segments: headrace segment list SCOPE/STREAM",
    "invalid_key_ranges": "--segments N computes the ranges; to list those of now: headrace segment list SCOPE/STREAM",
    "not_adjacent": "to list segments by their keys: headrace segment list SCOPE/STREAM",
    "too_few_segments": "lower the minimum first: headrace stream update SCOPE/STREAM --segments N",
    "user_exists": "--change-password gives the user another password",
    "user_not_found": "to list the users with their grants: headrace grpc-user list",
    "users_not_stored": "headrace grpc-user add USER begins with the first user",
    "no_log": "to list the logs of containers: headrace cluster logs",
    "no_such_token_key": "to list them: headrace token-key list",
    "no_such_secret": "a deployment with `-c tokens=required` has it; the credentials and the region decide where",
    "not_replayable": "to delete it: headrace dead-letter drop LETTER",
    "conflict": "another operation is running: try again when it is done",
    "unavailable": "`headrace up` starts a controller here; --url or HEADRACE_URL names another one",
    "out_of_time": "try again: a part of the deployment is slow to answer",
    "unauthorized": "--auth aws-iam signs requests with your AWS credentials",
    "throttled": "try again later",
    "not_a_controller": "--url or HEADRACE_URL names the controller",
    "group_state_not_found": "the controller's record of it: headrace group get SCOPE/GROUP",
    "not_found": "to list names: headrace scope list, headrace stream list SCOPE",
}
"""Hints by the code of the error, the specific one or that of its class."""

_LISTS = {
    "letter": "to list them: headrace dead-letter list",
    "transaction": "to list the open ones: headrace transaction list SCOPE/STREAM",
    "subscriber": "to list them: headrace subscriber list SCOPE/STREAM",
    "segmentId": "to list the active segments: headrace segment list SCOPE/STREAM",
    "readerGroup": "to list them: headrace group list SCOPE",
    "table": "to list them: headrace table list SCOPE",
    "stream": "to list them: headrace stream list SCOPE",
    "scope": "to list them: headrace scope list",
}
"""Hints for a name that was not found, by what the details of the error name: the most special kind is first."""


def exit_code(error: errors.HeadraceError) -> ExitCode:
    return ExitCode(error.reported_as.exit_code)


def error_line(error: errors.HeadraceError, names: Mapping[str, str] = {}) -> str:
    """The message on one line, with a hint if there is one for the error's code.

    `names` are those that the user has given, by their placeholders, such as SCOPE/STREAM.
    """
    message = " ".join(error.message.split()).translate(_CONTROLS)
    hint = _hint(error)
    if error.specific_code == "unavailable" and "url" not in error.details:
        hint = None  # the controller has answered: what does not answer is a service that it needs
    if hint is None:
        return message
    scope = error.details.get("scope")
    if isinstance(scope, str):
        with suppress(errors.InvalidRequestError):  # users copy the command into their shell
            names = {**names, "SCOPE": check_known_name("scope", scope)}
    command = _PLACEHOLDER.sub(lambda placeholder: names.get(placeholder[0], placeholder[0]), hint)
    return f"{message} (hint: {command})"


def _hint(error: errors.HeadraceError) -> str | None:
    if error.specific_code != error.code and error.specific_code in _HINTS:
        return _HINTS[error.specific_code]
    if isinstance(error, errors.NotFoundError):
        for kind, hint in _LISTS.items():
            if kind in error.details:
                return hint
    return _HINTS.get(error.code)


_PLACEHOLDER = re.compile(r"SCOPE/[A-Z]+|SCOPE")


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
    fields: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name.endswith("TimeMs") and value is not None:
            fields.append((words(name.removesuffix("Ms")), time_text(value)))
        else:
            fields.append((words(name), value))
    return fields


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
