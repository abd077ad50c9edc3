"""Events as text: the form is detected, control characters are escaped, and limits hold."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.console.event_text import EVENT_BYTES_SHOWN_MAX, LINE_BYTES_MAX, event_line, event_page


@pytest.mark.parametrize(
    ("event", "form", "text"),
    [
        (b'{"a": [1, 2]}', "json", '{"a": [1, 2]}'),
        (b'"text"', "json", '"text"'),
        (b"{broken", "text", "{broken"),
        (b"plain", "text", "plain"),
        ("grün".encode(), "text", "grün"),
        (b"", "text", "(empty)"),
        (b"a\x1b[31mb", "text", "a\\x1b[31mb"),
        (b"\x00\x01\x02", "hex", "00 01 02"),
        (b"\xff\xfe", "hex", "ff fe"),
        (b"[" * 3_000, "text", "[" * LINE_BYTES_MAX),
    ],
)
def test_a_line_shows_an_event(event: bytes, form: str, text: str):
    line = event_line(event)
    assert (line.form, line.text, line.is_cut) == (form, text, len(event) > LINE_BYTES_MAX)


def test_a_cut_inside_a_character_stays_text():
    event = "é".encode() * LINE_BYTES_MAX
    assert event_line(b"a" + event).form == "text"


def test_json_is_indented_on_its_page():
    assert event_page(b'{"a":{"b":1}}').text == '{\n  "a": {\n    "b": 1\n  }\n}'


def test_bytes_are_dumped_on_their_page():
    assert event_page(bytes(range(250, 256)) * 4).text.splitlines()[1].startswith("00000010  ")


@given(st.binary(max_size=3_000) | st.text(max_size=500).map(str.encode))
def test_any_event_becomes_printable_text(event: bytes):
    for shown in (event_line(event), event_page(event)):
        assert all(character.isprintable() or ord(character) >= 0xA0 for character in shown.text.replace("\n", ""))


@pytest.mark.parametrize("event", [b"x" * (2 << 20), b"\xff" * (2 << 20), json.dumps(["x"] * 300_000).encode()])
def test_a_page_is_bounded(event: bytes):
    shown = event_page(event)
    assert shown.is_cut
    assert len(shown.text) <= EVENT_BYTES_SHOWN_MAX


@pytest.mark.parametrize(
    ("event", "form"),
    [
        pytest.param(b'"\x00' + b"ab" * 50 + b'"\x00', "text", id="UTF-16"),
        pytest.param(b'["\\ud800"]', "json", id="half a character"),
        pytest.param(b"[" * 900 + b"]" * 900, "json", id="nested deep"),
    ],
)
def test_hostile_json_can_be_sent_to_a_browser(event: bytes, form: str):
    assert event_line(event).form == form
    page = event_page(event)
    assert page.form == form
    assert page.text.encode()


def test_json_whose_blanks_are_too_long_is_not_indented():
    event = b"[" * 200 + b"1," * 200_000 + b"1" + b"]" * 200
    tracemalloc.start()
    page = event_page(event)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert page == ("json", event.decode(), False)
    assert most < 16 * EVENT_BYTES_SHOWN_MAX
