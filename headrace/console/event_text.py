"""Events as text for a page: JSON, text or hexadecimal digits, whichever they are, and never more than a limit."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from headrace.cli.outcome import cell

Form = Literal["json", "text", "hex"]

EVENT_BYTES_SHOWN_MAX = 1024 * 1024
"""Of one event on a page of its own."""

LINE_BYTES_MAX = 1024
"""Of one event in a list."""

_HEX_BYTES_PER_LINE = 16


class EventText(NamedTuple):
    """`is_cut` is whether the event has more bytes than `text` shows."""

    form: Form
    text: str
    is_cut: bool


def event_line(event: bytes) -> EventText:
    """An event on one line. Control characters are escaped."""
    shown = event[:LINE_BYTES_MAX]
    text = _decoded(shown, is_cut=len(event) > len(shown))
    if text is None:
        return EventText("hex", shown.hex(" "), len(event) > len(shown))
    return EventText(_form(event, text), cell(text) if text else "(empty)", len(event) > len(shown))


def event_page(event: bytes) -> EventText:
    """An event on lines of its own: JSON is indented, and bytes that are no text are dumped."""
    shown = event[:EVENT_BYTES_SHOWN_MAX]
    is_cut = len(event) > len(shown)
    text = _decoded(shown, is_cut=is_cut)
    if text is None:
        lines = (shown[at : at + _HEX_BYTES_PER_LINE] for at in range(0, len(shown), _HEX_BYTES_PER_LINE))
        dump = "\n".join(f"{index * _HEX_BYTES_PER_LINE:08x}  {line.hex(' ')}" for index, line in enumerate(lines))
        return EventText("hex", dump[:EVENT_BYTES_SHOWN_MAX], is_cut or len(dump) > EVENT_BYTES_SHOWN_MAX)
    form = "text" if is_cut else _form(event, text)
    if form == "json":
        text = _indented(text) or text
    return EventText(form, "\n".join(cell(line) if line else "" for line in text.split("\n")), is_cut)


def _decoded(data: bytes, *, is_cut: bool) -> str | None:
    """The text of the bytes, None if they are not UTF-8 or mostly unprintable. A cut may be inside a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    unprintable = sum(not (character.isprintable() or character in "\t\r\n") for character in text[:LINE_BYTES_MAX])
    return None if unprintable * 4 > min(len(text), LINE_BYTES_MAX) else text


def _indented(text: str) -> str | None:
    """A JSON document on several lines; None if these would be longer than a page, or it is nested too deep."""
    parts: list[str] = []
    length = 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            length += len(part)
            if length > EVENT_BYTES_SHOWN_MAX:
                return None
            parts.append(part)
    except RecursionError:
        return None
    indented = "".join(parts)
    return indented.encode(errors="backslashreplace").decode()  # JSON may escape half a character


def _form(event: bytes, text: str) -> Form:
    """Whether the whole event is a JSON document; longer ones than a page shows count as text."""
    if not text.lstrip().startswith(("{", "[", '"')) or len(event) > EVENT_BYTES_SHOWN_MAX:
        return "text"
    try:
        json.loads(event.decode())  # of the bytes it would also take UTF-16
    except (ValueError, RecursionError):
        return "text"
    return "json"
