#!/usr/bin/env python3
"""Compiles the modules of `[tool.headrace.compiled]` in pyproject.toml to machine code, with mypyc, in a copy.

`scripts/compile_modules.py DIRECTORY [ROOT]` copies `headrace/` of the project at ROOT into the directory and puts an
extension module next to each listed source file that is there. The sources stay: tracebacks show them, and modules that
are not listed run interpreted. Python prefers the extension module. The project itself is not changed. The store's
image and the wheels for Linux are made with it: segmentstore_fargate/Dockerfile and scripts/build_hook.py.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Final, TypeGuard

from mypy import build
from mypy.main import process_options
from mypy.nodes import ComparisonExpr
from mypy.types import Instance, TupleType, Type, UnionType, get_proper_type

ROOT: Final = Path(__file__).resolve().parents[1]
OPTIMIZATION: Final = "1"
"""Of the C compiler. More takes three times as long and saves no instruction that counts."""

_VALUES: Final = frozenset(f"builtins.{name}" for name in ("int", "float", "tuple", "str", "bytes"))
_PURE_FUNCTIONS: Final = frozenset(("bisect_left", "bisect_right", "len", "max", "min"))
_MYPY_OPTIONS: Final = (
    "--config-file=",  # none: the checkout has one, the image has not
    "--strict",
    "--ignore-missing-imports",
    "--python-version",
    "3.11",
    "--no-incremental",
)
_WARNING: Final = ": warning: "
_MYPY_CHECKS: Final = ("--warn-unreachable", "--enable-error-code", "redundant-expr")
_SETUP: Final = """
from mypyc.build import mypycify
from setuptools import setup
groups = {groups!r}
setup(
    name="headrace",
    packages=[],
    ext_modules=mypycify(
        [*{options!r}, *(file for _name, files in groups for file in files)],
        opt_level={optimization!r},
        debug_level="0",
        separate=[(files, name) for name, files in groups],
    ),
)
"""

Group = tuple[str, list[str]]
"""A name, and the paths of modules that call each other directly. A group becomes one shared library."""


def listed_groups(root: Path) -> list[Group]:
    """The groups of pyproject.toml, with those of their modules that are below `root`."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["headrace"]["compiled"]
    found = [
        (f"headrace_{name}", [path for path in paths if (root / path).is_file()]) for name, paths in listed.items()
    ]
    return [(name, paths) for name, paths in found if paths]


def differences(root: Path, files: Sequence[str]) -> list[str]:
    """Where the files would behave differently if they were compiled.

    - mypy takes an attribute that it has seen to be None, or false, for unchanged after a call or an `await`.
      Compiled code raises an error if it is not.
    - Compiled code has no objects for numbers, strings and tuples, so that `is` does not compare them. mypy does not
      say in which file an expression is: another file may compare values at the same line and column.
    - It calls what computes the bound of a slice twice, if a memoryview is cut.
    """
    with chdir(root):  # it names modules by their paths from here
        sources, settings = process_options([*_MYPY_OPTIONS, *_MYPY_CHECKS, *files])
        settings.export_types = settings.preserve_asts = True
        checked = build.build(sources, settings)
    types = checked.types
    suspicious = {
        (node.line, node.column)
        for node in types
        if isinstance(node, ComparisonExpr)
        and any(operator in ("is", "is not") for operator in node.operators)
        and all(_may_be_value(types[operand]) for operand in node.operands if operand in types)
    }
    found = [line for line in checked.errors if any(f"{file}:" in line for file in files)]
    for file in files:
        for node in ast.walk(ast.parse((root / file).read_text())):
            if _compares_objects(node) and (node.lineno, node.col_offset) in suspicious:
                found.append(f"{file}:{node.lineno}: values are compared with `is`")
            elif isinstance(node, ast.Slice) and any(map(_may_have_effects, ast.walk(node))):
                found.append(f"{file}:{node.lineno}: a call computes the bound of a slice")
    return found


def _may_be_value(kind: Type) -> bool:
    proper = get_proper_type(kind)
    if isinstance(proper, UnionType):
        return any(_may_be_value(item) for item in proper.items)
    if isinstance(proper, TupleType):
        return proper.partial_fallback.type.fullname in _VALUES
    return isinstance(proper, Instance) and proper.type.fullname in _VALUES


def _compares_objects(node: ast.AST) -> TypeGuard[ast.Compare]:
    """Whether it compares with `is`, but not with None, True or False."""
    return (
        isinstance(node, ast.Compare)
        and any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)
        and not any(isinstance(operand, ast.Constant) for operand in (node.left, *node.comparators))
    )


def _may_have_effects(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return not (isinstance(node.func, ast.Name) and node.func.id in _PURE_FUNCTIONS)
    return isinstance(node, (ast.Await, ast.NamedExpr, ast.Yield))


def compile_into(directory: Path, root: Path = ROOT) -> list[Path]:
    """Copy the library of the project at `root` into the directory, which is emptied, and compile it there.

    Returns: the extension modules and shared libraries, relative to the directory.
    Raises:
        SystemExit: a listed module would behave differently if it were compiled, or cannot be compiled.
    """
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(root / "headrace", directory / "headrace", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    groups = listed_groups(root)
    files = [file for _name, files in groups for file in files]
    if wrong := differences(directory, files):
        raise SystemExit("\n".join([*wrong, "compiled code would behave differently there"]))
    setup = _SETUP.format(groups=groups, options=_MYPY_OPTIONS, optimization=OPTIMIZATION)
    command = [sys.executable, "-c", setup, "--quiet", "build_ext", "--inplace", "-j", str(os.cpu_count() or 1)]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    # A warning says where code would behave differently: a generator is made a list, a default value is ignored.
    if ended.returncode or _WARNING in ended.stdout + ended.stderr:
        raise SystemExit(
            f"{ended.stdout}{ended.stderr}the library could not be compiled (exit code {ended.returncode})"
        )
    shutil.rmtree(directory / "build")
    for file in files:
        # Each in a process of its own: what one cannot import may be there once another has imported it.
        module = file.removesuffix(".py").replace("/", ".")
        statement = f"import sys, {module}; sys.exit(sys.modules[{module!r}].__file__.endswith('.py'))"
        if subprocess.run([sys.executable, "-c", statement], cwd=directory, check=False).returncode:
            raise SystemExit(f"{module} was compiled, but cannot be imported as machine code")
    return sorted(path.relative_to(directory) for path in directory.rglob("*.so"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("root", type=Path, nargs="?", default=ROOT)
    options = parser.parse_args()
    compiled = compile_into(options.directory.resolve(), options.root.resolve())
    print(f"{len(compiled)} extension modules in {options.directory}")


if __name__ == "__main__":
    main()
