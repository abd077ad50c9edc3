"""Log lines of processes can be searched: `event=name key=value ...`, all in docs/operating/log-lines.md."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "operating" / "log-lines.md"
SOURCES = (
    "headrace/segmentstore/*.py",
    "headrace/adapters/*.py",
    "segmentstore_fargate/*.py",
    "headrace/bridge/*.py",
    "headrace/client/*.py",
    "headrace/spark/*.py",
    "functions/processors/canary.py",
)
LOGGERS = {"_log", "logger", "logging"}
LEVELS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
LINE = re.compile(r"event=[a-z0-9_]+( [a-z0-9_]+=%(r|s|d|\.\df))*")
FREE_TEXT = re.compile(r"(segment|source|target|scope|stream|error|reason|path)=%[^r]")
"""What others choose, or what may hold blanks and line ends, is quoted."""


def _lines() -> list[tuple[str, str]]:
    """Where each call of a logger is, and its text."""
    listed = subprocess.run(["git", "ls-files", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in listed.stdout.split():
        for node in ast.walk(syntax_tree((ROOT / name).read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=logger), attr=attr)) if (
                    logger in LOGGERS and attr in LEVELS
                ):
                    text = node.args[1 if attr == "log" else 0]
                    found.append((f"{name}:{node.lineno}", ast.literal_eval(text)))
    return found


LINES = _lines()


def test_there_are_lines_to_check():
    assert len(LINES) > 20


@pytest.mark.parametrize(("where", "text"), LINES, ids=[where for where, _ in LINES])
def test_a_line_is_an_event_with_keys_and_values(where, text):
    assert LINE.fullmatch(text), f"{where}: expected 'event=name key=%d other=%r', found {text!r}"
    assert not FREE_TEXT.search(text), f"{where}: names and free text are logged with %r"


def test_the_manual_lists_every_event():
    events = {text.split()[0].removeprefix("event=") for _, text in LINES}
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(events), "docs/operating/log-lines.md lists each event once"
