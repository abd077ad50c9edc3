"""House rules of the tests: typed worlds and short names."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
NAME_CHARACTERS_MAX = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _folders() -> dict[str, list[Path]]:
    listed = subprocess.run(["git", "ls-files", "tests/*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    folders: dict[str, list[Path]] = {}
    for line in listed.stdout.splitlines():
        path = ROOT / line
        if path.exists():
            folders.setdefault(path.relative_to(ROOT / "tests").parts[0], []).append(path)
    return folders


FOLDERS = _folders()


def _functions(text: str) -> Iterator[Function]:
    return (node for node in ast.walk(syntax_tree(text)) if isinstance(node, Function))


def long_test_names(text: str) -> list[str]:
    """Tests whose names have more characters than allowed."""
    names = [node.name for node in _functions(text) if node.name.startswith("test_")]
    return [name for name in names if len(name) > NAME_CHARACTERS_MAX]


def untyped_worlds(text: str) -> list[str]:
    """Functions that take a world of any type."""
    return [
        node.name
        for node in _functions(text)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.arg.endswith("world")
        and (argument.annotation is None or ast.unparse(argument.annotation) in ("Any", "typing.Any"))
    ]


def _found(check: Callable[[str], list[str]], paths: list[Path]) -> dict[str, list[str]]:
    return {str(path.relative_to(ROOT)): names for path in paths if (names := check(path.read_text()))}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_names_of_tests_are_short(folder: str):
    long = {
        str(path.relative_to(ROOT)): found for path in FOLDERS[folder] if (found := long_test_names(path.read_text()))
    }
    assert long == {}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_worlds_are_typed(folder: str):
    assert _found(untyped_worlds, FOLDERS[folder]) == {}


def test_a_long_name_is_found():
    name = "test_" + "x" * (NAME_CHARACTERS_MAX - len("test_"))
    assert long_test_names(f"def {name}(): ...") == []
    assert long_test_names(f"async def {name}y(): ...") == [f"{name}y"]


@pytest.mark.parametrize("parameter", ["world: Any", "_world: Any", "stream_world: typing.Any", "world"])
def test_an_untyped_world_is_found(parameter: str):
    assert untyped_worlds(f"def test_it({parameter}): ...") == ["test_it"]
    assert untyped_worlds("def test_it(world: World): ...") == []
