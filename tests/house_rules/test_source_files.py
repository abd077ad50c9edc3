"""The house rules that a machine can check, so that reviews talk about ideas."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 80
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "stuff"}
LEFT_FOR_LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
COMPILED_CODE = Path(__file__).parents[1] / "support" / "compiled_code.py"
"""Skips only where compiled code runs; elsewhere the same tests run."""
SKIPPED_TESTS = re.compile(r"pytest\.mark\.(skip|xfail)\b|pytest\.skip\(")


def _tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


SOURCES = [path for path in _tracked("*.py") if "tests" not in path.relative_to(ROOT).parts]
TESTS = [path for path in _tracked("*.py") if "tests" in path.relative_to(ROOT).parts]


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_sources_to_check():
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_source_file(path: Path):
    text = path.read_text()
    tree = syntax_tree(text)
    assert path.stem not in VAGUE_NAMES, "name the module after what it holds"
    if text.strip():
        assert ast.get_docstring(tree), "the module docstring says what it is for"
    assert not LEFT_FOR_LATER.search(text), "do it now, or say it in an issue"
    assert "asyncio.wait_for(" not in text, "before Python 3.12 it can lose a cancellation: use asyncio.timeout"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines: it should fit a screen"


def test_no_test_is_skipped_for_later():
    marked = [_relative(path) for path in TESTS if path != Path(__file__) and SKIPPED_TESTS.search(path.read_text())]
    assert marked == [_relative(COMPILED_CODE), UPGRADES]


def test_what_a_state_allows_is_asked_of_it():
    """A new state is one line in the model: no other code compares states by hand."""
    compared = re.compile(r"\b(is|is not|in|not in|==|!=) \(?StreamState\.")
    places = [path for path in _tracked("headrace/*.py", "functions/*.py") if "model" not in path.parts]
    assert [_relative(path) for path in places if compared.search(path.read_text())] == []


def test_every_port_and_client_class_says_what_it_is():
    missing = [
        f"{_relative(path)}: {node.name}"
        for path in SOURCES
        if _relative(path).startswith(("headrace/ports/", "headrace/client/"))
        for node in syntax_tree(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert missing == []


UPGRADES = "tests/upgrades/test_upgrades.py"
"""Needs the tag of the former release, which a shallow clone does not have."""
