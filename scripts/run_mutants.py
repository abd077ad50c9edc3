#!/usr/bin/env python3
"""Changes the code in small ways, one change at a time, and lists the changes that no test notices.

`make nightly` runs it with a budget. mutmut makes the changes (mutants) in copies of the tree, `build/mutants/<area>`,
and runs the unit tests that call the changed function. What survives them then meets the simulator or other slow tests.
Each day takes the modules in another order, so that a budget that is too small for all of them reaches each in some
night. `--only TEXT` takes the modules whose names contain the text.

The report is `build/mutants/survivors.txt`. A survivor that changes nothing that could be observed belongs in
`scripts/equivalent_mutants.txt`, as the report has it, with a comment that says why.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

ROOT: Final = Path(__file__).resolve().parents[1]
WORK: Final = ROOT / "build" / "mutants"
EQUIVALENT: Final = ROOT / "scripts" / "equivalent_mutants.txt"
MUTMUT: Final = (sys.executable, "-m", "mutmut")

T = TypeVar("T")

UNIT_TESTS_SHARE: Final = 0.6
"""Of the budget; the slow tests have the rest."""

SURVIVED, WITHOUT_TESTS = 0, 33
"""Exit codes of a mutant, in mutmut's files."""


class Area(NamedTuple):
    """A folder whose code is changed, its unit tests, and the module with arguments that survivors then meet."""

    folder: str
    tests: tuple[str, ...]
    slow: tuple[str, ...]

    @property
    def tree(self) -> Path:
        return WORK / self.folder.replace("/", "-")


_PROTOCOL: Final = ("simulation", "run", "--seeds", "150")
_STORES: Final = ("simulation", "stores", "run", "--seeds", "0-24")

AREAS: Final = (
    Area("headrace/replication", ("tests/replication",), _PROTOCOL),
    Area("headrace/model", ("tests/model",), ("pytest", "-qx", "tests/controller/services", "tests/metadata")),
    Area("headrace/segmentstore/log", ("tests/segmentstore", "tests/replication"), _PROTOCOL),
    Area("headrace/segmentstore/containers", ("tests/segmentstore",), _STORES),
    Area("headrace/segmentstore/tiering", ("tests/segmentstore",), _STORES),
)

_SETTINGS: Final = """

[tool.mutmut]
source_paths = ["{folder}"]
also_copy = {copied}
pytest_add_cli_args_test_selection = {tests}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="the budget of all areas together")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the modules with TEXT in their names")
    parser.add_argument("--order", type=int, default=datetime.now(UTC).toordinal(), help="another order of modules")
    options = parser.parse_args(arguments)
    areas = [area for area in AREAS if modules(area, options.only)]
    if not areas:
        parser.error(f"no module has {options.only!r} in its name")
    accepted = equivalent_mutants(EQUIVALENT.read_text())
    found: list[str] = []
    tried = 0
    for area in areas:
        started_s = time.monotonic()
        budget_s = options.minutes * 60 / len(areas)
        print(f"mutants: {area.folder}: {budget_s:.0f} s", flush=True)
        copy_tree(area)
        run_unit_tests(area, shuffled(modules(area, options.only), options.order), budget_s * UNIT_TESTS_SHARE)
        tried += sum(code is not None for _path, _name, code in outcomes(area))
        survivors = [(path, name) for path, name, code in outcomes(area) if code in {SURVIVED, WITHOUT_TESTS}]
        if is_noticed(area, budget_s):
            raise SystemExit(f"mutants: `python -m {' '.join(area.slow)}` fails without a mutant")
        for path, name in shuffled(survivors, options.order):
            line = as_line(path, name)
            with applied(area, path, name):
                if line not in accepted and not is_noticed(area, started_s + budget_s - time.monotonic()):
                    found.append(line)
                    print(line, flush=True)
    (WORK / "survivors.txt").write_text("".join(f"{line}\n" for line in sorted(found)))
    print(f"mutants: {tried} tried, {len(found)} survived that are not known to be equivalent")
    return 0


def modules(area: Area, text: str) -> list[str]:
    """The modules of an area with the text in their names, dotted."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted((ROOT / area.folder).rglob("*.py"))
    ]
    return [name for name in names if text in name and not name.endswith("__init__")]


def shuffled(items: Sequence[T], order: int) -> list[T]:
    """The items in an order of this number."""
    mixed = list(items)
    random.Random(order).shuffle(mixed)
    return mixed


def copy_tree(area: Area) -> None:
    """A copy of what git knows, with the settings of mutmut for the area."""
    shutil.rmtree(area.tree, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (area.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, area.tree / name)
    copied = sorted(path.name for path in area.tree.iterdir())
    settings = _SETTINGS.format(folder=area.folder, copied=copied, tests=list(area.tests)).replace("'", '"')
    with (area.tree / "pyproject.toml").open("a") as file:
        file.write(settings)


def run_unit_tests(area: Area, names: Sequence[str], budget_s: float) -> None:
    """Try the mutants of one module after the other until the time is used up."""
    with (area.tree / "mutmut.log").open("wb") as log:
        command = [*MUTMUT, "run", *(f"{name}.*" for name in names)]
        running = subprocess.Popen(command, cwd=area.tree, stdout=log, stderr=subprocess.STDOUT)
        try:
            running.wait(budget_s)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # what it has found is stored
            running.wait()


def outcomes(area: Area) -> Iterator[tuple[Path, str, int | None]]:
    """The changed file, the name and the exit code of each mutant; None if it was not tried."""
    for path in sorted((area.tree / "mutants" / area.folder).rglob("*.meta")):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            yield path.with_suffix(""), name, code


def is_noticed(area: Area, budget_s: float) -> bool:
    """Whether the slow tests of the area fail in its tree as it is; False if there is not enough time."""
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", *area.slow]
    try:
        ended = subprocess.run(
            command, cwd=area.tree, stdout=quiet, stderr=quiet, check=False, timeout=max(0.0, budget_s)
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode != 0


@contextmanager
def applied(area: Area, path: Path, name: str) -> Iterator[None]:
    """Run the block with a mutant in the tree itself: mutmut's own files make each call slow."""
    original = area.tree / path.relative_to(area.tree / "mutants")
    text = original.read_text()
    lines = text.splitlines()
    of_class, function = re.fullmatch(r"x(?:ǁ(.+)ǁ|_)(.+)__mutmut_\d+", name.rpartition(".")[2]).groups()  # type: ignore[union-attr]
    tree: ast.AST = ast.parse(text)
    if of_class:
        tree = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == of_class)
    found = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    )
    lines[found.lineno : found.end_lineno] = function_bodies(path)[name.rpartition(".")[2]]
    original.write_text("\n".join(lines) + "\n")
    try:
        yield
    finally:
        original.write_text(text)


def as_line(path: Path, name: str) -> str:
    """`function: old line => new line`, without the mutant's number, which depends on the code around it."""
    function = name.rpartition(".")[2]
    sources = function_bodies(path)
    before = sources[re.sub(r"__mutmut_\d+$", "__mutmut_orig", function)]
    changed = [line for line in difflib.ndiff(before, sources[function]) if line[:2] in {"- ", "+ "}]
    old, new = (" ".join(line[2:].strip() for line in changed if line[0] == sign) for sign in "-+")
    shown = re.sub(r"__mutmut_\d+$", "", name).replace("xǁ", "").replace("ǁ", ".").replace(".x_", ".")
    return f"{shown}: {old} => {new}"


@cache
def function_bodies(path: Path) -> dict[str, list[str]]:
    """The lines of each function of a file behind its first one, which has the name."""
    lines = path.read_text().splitlines()
    return {
        node.name: lines[node.lineno : node.end_lineno]
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def equivalent_mutants(text: str) -> set[str]:
    """The lines of the file that are not comments."""
    return {line for line in text.splitlines() if line and not line.startswith("#")}


if __name__ == "__main__":
    sys.exit(main())
