"""How `headrace event read` prints an event.

Text is for people: control characters and bytes that are not UTF-8 are escaped. The other formats lose nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TextIO

from headrace.cli.event_input import LENGTH
from headrace.cli.outcome import cell

if TYPE_CHECKING:
    from headrace.client import EventRead

OutputFormat = Literal["text", "json", "base64", "raw"]

Print = Callable[["EventRead"], object]


def printer(form: OutputFormat, output: TextIO) -> Print:
    """A function that prints one event to `output`."""
    if form == "raw":
        return lambda read: output.buffer.write(LENGTH.pack(len(read.event)) + read.event)
    line: Callable[[EventRead], str] = {"text": _text, "json": _json, "base64": _base64}[form]
    return lambda read: output.write(f"{line(read)}\n")


def _text(read: EventRead) -> str:
    return cell(read.event.decode("utf-8", "backslashreplace")) if read.event else ""


def _base64(read: EventRead) -> str:
    return base64.b64encode(read.event).decode()


def _json(read: EventRead) -> str:
    """An object with the event as text, or in base64 if it is not UTF-8."""
    document: dict[str, Any] = {"segment": read.segment_id, "offset": read.offset}
    try:
        document["event"] = read.event.decode()
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(read.event).decode()
    return json.dumps(document)
