"""Trees of sources are made by one function, which garbage of earlier tests cannot disturb."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
NESTED = "value = " + "[" * 40 + "]" * 40 + "\n" + "other = 1\n" * 200


class _MakesATreeWhenCollected:
    """Garbage that does what the traceback of a forgotten future does: it makes a tree."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        ast.parse("first + second")


@pytest.fixture
def frequent_collections() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.set_threshold(20)
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("frequent_collections")
def test_garbage_of_other_tests_does_not_disturb():
    for _ in range(200):
        _MakesATreeWhenCollected()
        assert syntax_tree(NESTED).body
    assert gc.isenabled()


def test_tests_make_trees_by_one_function():
    listed = subprocess.run(
        ["git", "grep", "--files-with-matches", r"ast\.parse(", "--", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(listed.stdout.split()) == {"tests/house_rules/test_syntax_trees.py", "tests/support/syntax_trees.py"}
