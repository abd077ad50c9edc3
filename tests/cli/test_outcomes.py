"""Tables and fields: golden text without a terminal, styles with one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headrace.cli import outcome
from headrace.cli.outcome import Outcome, Section, cell, in_words, pairs, plain, state_text, table, time_text, words
from headrace.cli.styled_output import styled

FULL = Outcome(
    {},
    ("STREAM", "RATE"),
    [("shop/orders", 12), ("shop/[red]x", 3)],
    details=[("state", "active"), ("tags", ())],
    sections=[Section("SUBSCRIBERS", ("NAME",), [("shop/billing",)])],
)


def test_tables_align_and_cells_stay_on_their_line():
    assert table(("A", "LONG"), [("x", 1), ("yyy", 22)]) == "A    LONG\nx       1\nyyy    22"
    assert table(("A",), []) == "A"
    assert pairs([("a", 1), ("long", None)]) == "a     1\nlong  -"
    assert [cell(value) for value in (True, False, [], {"a": [1, 2]}, "a\nb\x9b")] == [
        "yes", "no", "-", "a=1, 2", "a\\x0ab\\x9b",
    ]  # fmt: skip
    assert time_text(0) == "1970-01-01 00:00:00Z"
    assert time_text(1 << 62) == str(1 << 62)


def test_names_of_fields_become_words():
    assert words("configurationVersion") == "configuration version"
    assert words("rolloverSizeBytes") == "rollover size (bytes)"
    assert words("groupRefreshMs") == "group refresh (ms)"
    assert in_words({"lastTryTimeMs": 0, "tries": 3}) == [("last try time", "1970-01-01 00:00:00Z"), ("tries", 3)]
    assert state_text("IN_PROGRESS") == "in progress"


def test_plain_text_is_golden():
    assert plain(FULL) == (
        "state  active\ntags   -\n\nSTREAM       RATE\nshop/orders    12\nshop/[red]x     3\n\n"
        "SUBSCRIBERS\nNAME\nshop/billing"
    )
    assert plain(Outcome({"oneField": 1})) == "one field  1"
    assert plain(Outcome({"oneField": 1}, text="a\x1b")) == "a\\x1b"


def _rendered(width: int, *, colour: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, no_color=not colour, highlight=False)
    console.print(styled(FULL, width))
    return written.getvalue()


def test_a_terminal_shows_the_same_words_with_styles():
    assert "\x1b[1;36mSTREAM" in _rendered(40, colour=True)
    assert "\x1b[32mactive" in _rendered(40, colour=True)
    no_colour = _rendered(40, colour=False)
    assert "\x1b[3" not in no_colour
    assert "shop/[red]x" in no_colour


def test_a_narrow_terminal_folds_cells_and_loses_nothing():
    shown = io.StringIO()
    outcome = Outcome({}, ("NAME",), [("abcdefghijklmnopq",)])
    Console(file=shown, width=12, color_system=None).print(styled(outcome, 12))
    assert "".join(shown.getvalue().split()) == "NAMEabcdefghijklmnopq"


STORES = Outcome(
    {},
    ("STORE", "ADDRESS", "LEASE UNTIL", "LOGS"),
    [("store-0", "127.0.0.1:44613", "2026-11-30 21:39:11Z", ["0 open", "3 open"])],
)


@pytest.mark.parametrize("width", range(52, 72))
def test_a_line_of_a_cell_ends_between_words(width: int):
    shown = io.StringIO()
    Console(file=shown, width=width, color_system=None).print(styled(STORES, width))
    assert {"store-0", "127.0.0.1:44613", "2026-11-30", "21:39:11Z", "open,"} <= set(shown.getvalue().split())
    assert all(len(line) <= width for line in shown.getvalue().splitlines())


@pytest.mark.parametrize(("width", "is_plain"), [(42, True), (80, False)])
def test_a_table_without_room_for_its_words_is_plain(
    width: int, is_plain: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    sections = Outcome({}, details=[("state", "active")], sections=[Section("S", STORES.columns, STORES.rows)])
    for shown in (STORES, sections):
        outcome.show(shown, as_json=False)
        assert (capsys.readouterr().out == plain(shown) + "\n") is is_plain


@pytest.mark.parametrize("width", range(7, 16))
def test_words_of_wide_characters_are_not_folded(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    outcome.show(Outcome({}, ("NAME", "N"), [["日本語 漢字", 1], ["  日本語", None]]), as_json=False)
    assert capsys.readouterr().out.count("日本語") == 2


def test_a_field_without_room_for_its_words_is_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A stream cut, too, is copied from a field."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    cut = "shop/orders:" + "0123456789" * 3
    for outcome_shown in (Outcome({}, details=[("cut", cut)]), Outcome({"cut": cut})):
        for width in (20, 46, 47, 80):
            monkeypatch.setenv("COLUMNS", str(width))
            outcome.show(outcome_shown, as_json=False)
            assert cut in capsys.readouterr().out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_color_is_respected(is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    outcome.show(FULL, as_json=False)
    shown = capsys.readouterr().out
    assert "shop/orders" in shown
    assert "\x1b[3" not in shown
