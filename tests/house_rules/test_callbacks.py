"""Callbacks arrive by constructor: no code assigns one to another object afterwards."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

ROOT = Path(__file__).resolve().parents[2]


def assigned_callbacks(source: str) -> list[str]:
    """The assignments to an attribute `on_...` of another object than `self`, with their lines."""
    return [
        f"line {target.lineno}: {ast.unparse(target)}"
        for node in ast.walk(syntax_tree(source))
        for assigned in _targets(node)
        for target in ast.walk(assigned)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and target.attr.lstrip("_").startswith("on_")
        and not (isinstance(target.value, ast.Name) and target.value.id == "self")
    ]


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        return [node.target]
    return []


def _sources() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


@pytest.mark.parametrize(
    "line",
    [
        "log.on_failure = stopped",
        "log.on_failure = None",
        "self.container.log.on_failure = None",
        "store._on_failure = failures.append",
        "pool.on_pressure: Callable[[], None] = hurry",
        "container.on_news, container.on_stored = wake, stored",
    ],
)
def test_an_assigned_callback_is_found(line: str):
    assert assigned_callbacks(line)


@pytest.mark.parametrize(
    "line", ["self.on_failure = on_failure", "self._on_failure = None", "log.failure = error", "one = log.on_failure"]
)
def test_other_assignments_are_allowed(line: str):
    assert assigned_callbacks(line) == []


def test_no_callback_is_assigned_from_outside():
    found = {
        str(path.relative_to(ROOT)): assigned
        for path in _sources()
        if path != Path(__file__) and (assigned := assigned_callbacks(path.read_text()))
    }
    assert found == {}, "pass the callback to the constructor"
