"""The list of compiled modules, and what is refused because compiled code would behave differently."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from syntax_trees import syntax_tree

from headrace import compiled

ROOT = Path(__file__).resolve().parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "compile_modules.py"))
LISTED: list[str] = [path for _name, paths in SCRIPT["listed_groups"](ROOT) for path in paths]

NOT_REFERRED_TO_WEAKLY = {("Journal", "CommitsOfJournal")}
"""The base has another subclass, in the simulation, which is interpreted."""

DIFFERENT = """
class Pair:
    def __init__(self) -> None:
        self.value = (1, 2)
        self.failure: Exception | None = None

    async def look(self, other: tuple[int, int], first: object, second: object) -> bool:
        if self.failure is not None or first is second:
            return False
        await self.wait()
        while self.failure is None and first != second:
            await self.wait()
        return self.value is other

    async def wait(self) -> None:
        self.failure = ValueError()

    def cut(self, view: memoryview) -> memoryview:
        return view[self.taken() : len(view)]

    def taken(self) -> int:
        return 1
"""
SAME = """
def cut(view: memoryview, first: object, second: object) -> memoryview:
    taken = view[0]
    return view[taken : min(len(view), 9)] if first is second and view is not None else view
"""


def test_listed_modules_are_there() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'^    "(headrace/\S+\.py)",$', text.partition("[tool.headrace.compiled]")[2], re.MULTILINE)
    assert named == LISTED
    assert compiled._LISTED.replace(".", "/") + ".py" in LISTED


def test_a_checkout_is_interpreted() -> None:
    """The compiled run of the same tests says that it is compiled: else it would have tested nothing."""
    assert compiled.is_compiled() is ("build/compiled" in (compiled.__file__ or ""))


def test_code_that_would_behave_differently_is_refused(tmp_path: Path) -> None:
    differences: Callable[[Path, Sequence[str]], list[str]] = SCRIPT["differences"]
    (tmp_path / "different.py").write_text(dedent(DIFFERENT))
    (tmp_path / "same.py").write_text(dedent(SAME))
    found = differences(tmp_path, ["different.py", "same.py"])
    assert [line.partition(" ")[0].strip(":") for line in found] == [
        "different.py:11",
        "different.py:13",
        "different.py:19",
    ]
    for line, reason in zip(found, ("always true", "compared with `is`", "bound of a slice"), strict=True):
        assert reason in line


@pytest.mark.parametrize("path", LISTED)
def test_bases_of_compiled_classes_are_compiled(path: str) -> None:
    """With another base a class accepts weak references, and the process crashes after its object has gone."""
    tree = syntax_tree((ROOT / path).read_text())
    interpreted = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace.")
        if f"{node.module}.py".replace(".", "/", (node.module or "").count(".")) not in LISTED
        for name in node.names
    }
    bases = {
        (node.name, base.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if isinstance(base, ast.Name) and base.id in interpreted
    }
    assert bases <= NOT_REFERRED_TO_WEAKLY


@pytest.mark.parametrize("path", LISTED)
def test_listed_modules_have_no_weakly_referenced_class(path: str) -> None:
    """A compiled class cannot be referred to weakly: `WeakSet.add` of an object of it fails."""
    assert "weakref" not in (ROOT / path).read_text()
