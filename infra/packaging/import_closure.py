"""Finds the modules of the project that a program imports, so that its artefact holds them and no others.

Read from the sources without running them: an import counts wherever it is written, also within a function, except
those for type checkers only. Importing a module imports the packages that it is in.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def import_closure(root: Path, modules: Iterable[str]) -> list[Path]:
    """The source files below `root` of `modules` and of everything that they import from there, in a stable order.

    Raises:
        ValueError: one of `modules` is not there.
    """
    found: dict[str, Path] = {}
    waiting = []
    for module in modules:
        if _source(root, module) is None:
            raise ValueError(f"{root} has no module {module}")
        waiting.append(module)
    while waiting:
        module = waiting.pop()
        source = _source(root, module)
        if module in found or source is None:  # what is not below `root` is installed, or a name within a module
            continue
        found[module] = source
        waiting += filter(None, (module.rpartition(".")[0], *_imports_of(source.read_bytes())))
    return sorted(found.values())


def imported_from_outside(root: Path, files: Iterable[Path]) -> set[str]:
    """Top-level names of the installed modules that these sources below `root` may import."""
    names = {name.partition(".")[0] for file in files for name in _imports_of(file.read_bytes())}
    return {name for name in names if name not in sys.stdlib_module_names and not (root / name).is_dir()}


# What is cached is asked for again and again: each of twenty closures of a synth has most sources of the project.


@cache
def _imports_of(source: bytes) -> frozenset[str]:
    return frozenset(run_time_imports(ast.parse(source)))


def run_time_imports(tree: ast.Module) -> set[str]:
    """Modules imported when a module is loaded or one of its functions runs: not those for the type checker.

    `from a import b` may import the module `a.b` or a name of `a`: both are returned.
    """
    names: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        else:
            waiting += ast.iter_child_nodes(node)
    return names


@cache
def _source(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None
