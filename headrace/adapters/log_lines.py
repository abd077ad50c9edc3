"""The log of a process on standard error: as text for people, or as JSON for a service that searches it.

Each line of a process is `event=name key=value ...`. As JSON its keys are fields of their own, and the text is there,
too: filters that look for the text find both forms.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal, cast

from headrace.model.errors import InvalidRequestError

_log = logging.getLogger("headrace.process")

LEVEL_VARIABLE: Final = "HEADRACE_LOG_LEVEL"
FORMAT_VARIABLE: Final = "HEADRACE_LOG_FORMAT"
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

LogFormat = Literal["text", "json"]

_KEY: Final = re.compile(r"(\w+)=%")
_EVENT: Final = re.compile(r"event=(\w+)")


def log_level(environment: Mapping[str, str]) -> str:
    """The level that a process logs from. Raises InvalidRequestError if it is not one."""
    level = environment.get(LEVEL_VARIABLE, "INFO").upper()
    if level not in LEVELS:
        raise InvalidRequestError(f"{LEVEL_VARIABLE} is {level!r}, expected one of {', '.join(LEVELS)}")
    return level


def log_format(environment: Mapping[str, str]) -> LogFormat:
    """The form of log lines. Raises InvalidRequestError if it is not one."""
    chosen = environment.get(FORMAT_VARIABLE, "text").lower()
    if chosen not in ("text", "json"):
        raise InvalidRequestError(f"{FORMAT_VARIABLE} is {chosen!r}, expected text or json")
    return cast(LogFormat, chosen)


def begin_log(level: str, form: LogFormat, store: str | None = None) -> None:
    """Write the log of this process to standard error. `store` is named in each line.

    Errors that end the process or a thread, and warnings of Python, are lines of it, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(store) if form == "json" else logging.Formatter(_text_format(store)))
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(True)
    sys.excepthook = _note_end
    threading.excepthook = _note_end_of_thread


def write_document(line: str) -> None:
    """Write a document of JSON among the lines of the log, without a level. Raises OSError: it is not written."""
    # With one call, so that lines of other threads do not come between.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _note_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("event=unexpected_error thread=%r", threading.current_thread().name, exc_info=(kind, error, trace))


def _note_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        thread = "" if ended.thread is None else ended.thread.name
        trace = (ended.exc_type, ended.exc_value, ended.exc_traceback)
        _log.critical("event=unexpected_error thread=%r", thread, exc_info=trace)


def _text_format(store: str | None) -> str:
    named = "" if store is None else f" store={store.replace('%', '%%')}"
    return f"%(asctime)s level=%(levelname)s{named} logger=%(name)s %(message)s"


class JsonLines(logging.Formatter):
    """A line of JSON for each record. `details` has the values of the keys; they stay numbers if they are."""

    def __init__(self, store: str | None = None) -> None:
        super().__init__()
        self._store = {} if store is None else {"store": store}

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            **self._store,
            "logger": record.name,
        }
        if event := _EVENT.match(text):
            fields |= {"event": event[1], "details": _details(record)}
        fields["message"] = text
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, allow_nan=False)


def _details(record: logging.LogRecord) -> dict[str, Any]:
    """The values by key: each key of a line of ours has one conversion, in the order of the arguments."""
    keys = _KEY.findall(str(record.msg))
    values = record.args
    if not isinstance(values, tuple) or len(values) != len(keys):
        return {}
    return {key: _plain(value) for key, value in zip(keys, values, strict=True)}


def _plain(value: object) -> object:
    """The value if JSON has it, else its text."""
    is_finite = not isinstance(value, float) or value - value == 0
    return value if value is None or (isinstance(value, bool | int | float | str) and is_finite) else str(value)
