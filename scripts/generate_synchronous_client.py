#!/usr/bin/env python3
"""Writes the synchronous classes of the client from the asynchronous ones.

It writes the modules of `headrace/client/synchronous`; with `--check` it writes nothing and
exits with 1 if a file is not what it would write. `--client DIRECTORY` names another directory than the project's.

Each public coroutine becomes a method that runs it on the client's background thread. An asynchronous iterator becomes
one that fetches a page at a time, properties are forwarded, and `async with` becomes `with`. Signatures and docstrings
are carried over. What a hand-written base class defines is left to it. The generator refuses a public method for which
none of this holds, so that no method is left out silently.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "headrace" / "client"
PACKAGE = "headrace.client"
HAND_WRITTEN = "synchronous.synchronous_bases"
"""The module with the base classes."""

_SPECIAL = ("__aenter__", "__aexit__", "__repr__")
"""Special methods that have a synchronous form."""

_CLASSES_IN_TEXT = re.compile(r"\bAsync([A-Z]\w*)")
_EXIT = "kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None"


@dataclass(frozen=True)
class Generated:
    """A module to write: from which asynchronous classes, and with which of their methods left to others."""

    module: str
    source: str
    classes: tuple[str, ...]
    bases: dict[str, str] = field(default_factory=dict)
    """By asynchronous class, a class of the module `synchronous` that holds what is written by hand."""
    internal: frozenset[str] = frozenset()
    """Methods that only the asynchronous client calls, on its event loop."""


MODULES = (
    Generated("synchronous_admin", "administration.admin", ("AsyncAdmin",)),
    Generated(
        "synchronous_operators_admin", "administration.operators_admin", ("AsyncClusterAdmin", "AsyncDeadLettersAdmin")
    ),
    Generated(
        "synchronous_delegation_tokens",
        "delegation_tokens",
        ("AsyncDelegationTokens",),
        internal=frozenset({"ready", "when_replaced"}),
    ),
    Generated("synchronous_trust", "trust", ("AsyncTrust",)),
    Generated("synchronous_reader_groups_admin", "administration.reader_groups_admin", ("AsyncReaderGroupsAdmin",)),
    Generated("synchronous_reader_group", "groups.reader_group", ("AsyncReaderGroup",), internal=frozenset({"open"})),
    Generated(
        "synchronous_group_reader",
        "groups.group_reader",
        ("AsyncGroupReader",),
        bases={"AsyncGroupReader": "GroupEvents"},
        internal=frozenset({"open", "events_of", "next_events", "next_arrow_batch", "returned", "returned_arrow"}),
    ),
    Generated(
        "synchronous_byte_stream",
        "single_segment.byte_stream",
        ("AsyncByteReader", "AsyncByteWriter", "AsyncByteStream"),
        bases={"AsyncByteReader": "ByteReads", "AsyncByteWriter": "ByteWrites"},
        internal=frozenset({"open", "discard", "segment_replaced", "segment_failed", "next_bytes", "take"}),
    ),
    Generated(
        "synchronous_range_reader",
        "ranges.range_reader",
        ("AsyncRangeReader",),
        bases={"AsyncRangeReader": "RangeEvents"},
        internal=frozenset({"next_events", "next_arrow_batch", "returned", "take"}),
    ),
    Generated("synchronous_revisioned_stream", "single_segment.revisioned_stream", ("AsyncRevisionedStream",)),
    Generated("synchronous_state_synchronizer", "single_segment.state_synchronizer", ("AsyncStateSynchronizer",)),
    Generated(
        "synchronous_retention_admin",
        "administration.retention_admin",
        ("AsyncRetentionAdmin", "AsyncSubscribersAdmin"),
    ),
    Generated("synchronous_tables_admin", "administration.tables_admin", ("AsyncTablesAdmin",)),
    Generated("synchronous_transactions_admin", "administration.transactions_admin", ("AsyncTransactionsAdmin",)),
    Generated("synchronous_watermarks_admin", "administration.watermarks_admin", ("AsyncWatermarksAdmin",)),
    Generated("synchronous_table", "key_value_table", ("AsyncKeyValueTable",)),
    Generated(
        "synchronous_transactions",
        "writing.transactional_writer",
        ("AsyncTransaction", "AsyncTransactionalWriter"),
        bases={"AsyncTransaction": "TransactionEvents"},
        internal=frozenset({"leave", "segment_replaced", "segment_failed", "forget"}),
    ),
)
MODULE_OF_CLASS = {name: module.module for module in MODULES for name in module.classes}


class Source:
    """An asynchronous module: its classes, and where the names come from that their signatures use."""

    def __init__(self, client: Path, module: str) -> None:
        tree = ast.parse(module_path(client, module).read_text())
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._origins = {name: f"from {PACKAGE}.{module} import {name}" for name in _defined(tree)}
        self._late: set[str] = set()
        for node, is_late in _imports(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                for alias in node.names:
                    line = ast.unparse(
                        ast.ImportFrom(node.module, [alias], node.level)
                        if isinstance(node, ast.ImportFrom)
                        else ast.Import([alias])
                    )
                    self._origins[alias.asname or alias.name] = line
                    if is_late:
                        self._late.add(line)

    def imports(self, names: set[str]) -> Iterator[str]:
        """The import lines of those of the names that the module imports or defines."""
        for name in names:
            if name.startswith("Async") and name[5:] in _synchronous_names():
                yield f"from {PACKAGE}.synchronous.{MODULE_OF_CLASS[name]} import {name[5:]}"
            elif name in self._origins:
                yield self._origins[name]

    def late(self, lines: set[str]) -> set[str]:
        """Those of the import lines that the module only has for type checks."""
        return lines & self._late


def module_path(client: Path, module: str) -> Path:
    """The file of a module, whose name is dotted and counts from the package of the client."""
    return client.joinpath(*module.split(".")).with_suffix(".py")


def generate(client: Path, wanted: Generated) -> str:
    """The text of one module, before it is formatted."""
    source = Source(client, wanted.source)
    by_hand = Source(client, HAND_WRITTEN).classes
    imports = {f"from {PACKAGE}.loop_thread import LoopCaller"}
    bodies = []
    for name in wanted.classes:
        base = wanted.bases.get(name)
        left_out = wanted.internal | (_method_names(by_hand[base]) if base else set())
        imports |= {f"from {PACKAGE}.{wanted.source} import {name}"}
        if base:
            imports.add(f"from {PACKAGE}.{HAND_WRITTEN} import {base}")
        text, used = _class_text(source.classes[name], base, left_out)
        bodies.append(text)
        here = set(wanted.classes)
        imports |= set(source.imports(used - here))
    if any(_EXIT in body for body in bodies):
        imports.add("from types import TracebackType")
    if any("-> Iterator[" in body for body in bodies):
        imports.add("from collections.abc import Iterator")
    names = " and ".join(f"`{_synchronous(name)}`" for name in wanted.classes)
    docstring = (
        f'"""{names} for programs without an event loop; thread-safe.\n\n'
        f"Generated from `{wanted.source}.py` by `make synchronous`: change that file, not this one.\n"
        '"""'
    )
    parts = {kind for name in wanted.classes for kind in _late_parts(source.classes[name]).values()}
    if parts:
        imports.add(f"from {PACKAGE}.lazy_imports import lazy_part")
    late = source.late(imports) | set(source.imports(parts))
    if late:
        imports.add("from typing import TYPE_CHECKING")
    heading = [docstring, "from __future__ import annotations", *sorted(imports - late)]
    heading += ["if TYPE_CHECKING:", *sorted(f"    {line}" for line in late)] if late else []
    return "\n\n".join(["\n".join(heading), *bodies]) + "\n"


def _class_text(node: ast.ClassDef, base: str | None, left_out: set[str] | frozenset[str]) -> tuple[str, set[str]]:
    """The synchronous class, and the names that it takes from the asynchronous module."""
    name = _synchronous(node.name)
    members = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    closes = any(member.name == "closed" and _is_property(member) for member in members)
    generic = next((ast.unparse(base) for base in node.bases if ast.unparse(base).startswith("Generic[")), None)
    parameters = "" if generic is None else generic.removeprefix("Generic")
    bases = ", ".join(each for each in (base, generic) if each)
    lines = [f"class {name}({bases}):" if bases else f"class {name}:", *_docstring(node, 1), ""]
    lines += [f"    def __init__(self, thread: LoopCaller, core: {node.name}{parameters}) -> None:"]
    if base:
        lines += ["        super().__init__(core)"]
    lines += ["        self._thread = thread", "        self._core = core"]
    used = {name.id for base_class in node.bases for name in _names(base_class)}
    for attribute, kind in _parts(members):
        used.add(kind)
        lines.append(f"        self.{attribute} = {_synchronous(kind)}(thread, core.{attribute})")
    for attribute, kind in _late_parts(node).items():
        lines += ["", *_late_part_text(attribute, kind)]
    for member in members:
        if (
            member.name in left_out
            or _is_late_part(member)
            or (member.name.startswith("_") and member.name not in ("__aenter__", "__aexit__", "__repr__"))
        ):
            continue
        text, names = _member_text(f"{name}{parameters}", member, closes=closes)
        lines += ["", *text]
        used |= names
    return "\n".join(lines), used


def _member_text(
    kind: str, member: ast.FunctionDef | ast.AsyncFunctionDef, *, closes: bool
) -> tuple[list[str], set[str]]:
    """One method or property, and the names that its signature uses."""
    guard = ["        if not self.closed:"] if closes else []
    deeper = "    " if closes else ""
    if member.name == "__repr__":
        text = 'repr(self._core).replace("<Async", "<", 1)'
        return ["    def __repr__(self) -> str:", f"        return {text}"], set()
    if member.name == "__aenter__":
        return [f"    def __enter__(self) -> {kind}:", "        return self"], set()
    if member.name == "__aexit__":
        ending = "self._core.__aexit__(kind, error, trace)"
        # Without `close` the end of the block does something, for example a commit: a child process must learn of it.
        run = "self._thread.end" if closes else "(self._thread.run if error is None else self._thread.end)"
        call = f"        {deeper}{run}({ending})"
        return [f"    def __exit__(self, {_EXIT}) -> None:", *guard, call], set()
    signature, used = _signature(member)
    text = [f"    def {signature}:", *_docstring(member, 2)]
    if _is_property(member):
        return ["    @property", *text, f"        return self._core.{member.name}"], used
    if not isinstance(member, ast.AsyncFunctionDef) or member.returns is None:
        raise ValueError(f"{kind}.{member.name} is public: make it a coroutine or a property, or name it as internal")
    call = f"self._core.{member.name}({_arguments(member.args)})"
    returned = ast.unparse(member.returns)
    if _is_iterator(member):
        if "page" not in {argument.arg for argument in member.args.kwonlyargs}:
            raise ValueError(f"{kind}.{member.name} needs a parameter `page`: how many items one call fetches")
        return [*text, f"        yield from self._thread.iterate(lambda: {call}, page)"], used
    if returned.startswith("Async") and returned in MODULE_OF_CLASS:
        return [*text, f"        return {_synchronous(returned)}(self._thread, self._thread.run({call}))"], used
    if returned != "None":
        return [*text, f"        return self._thread.run({call})"], used
    if member.name == "close":
        return [*text, *guard, f"        {deeper}self._thread.end({call})"], used
    return [*text, f"        self._thread.run({call})"], used


def _signature(member: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, set[str]]:
    returns = ast.unparse(member.returns) if member.returns is not None else "None"
    text = f"{member.name}({ast.unparse(member.args)}) -> {returns}"
    used = {node.id for part in (member.args, member.returns) if part for node in _names(part)}
    if _is_iterator(member):
        text = text.replace("AsyncIterator[", "Iterator[")
        used -= {"AsyncIterator"}
    return _CLASSES_IN_TEXT.sub(_synchronous_match, text), used


def _imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements of the module's head, and whether each is for type checks only."""
    for node in tree.body:
        yield from ((each, True) for each in node.body) if isinstance(node, ast.If) else [(node, False)]


def _names(part: ast.AST) -> list[ast.Name]:
    return [node for node in ast.walk(part) if isinstance(node, ast.Name)]


def _arguments(given: ast.arguments) -> str:
    positional = [argument.arg for argument in [*given.posonlyargs, *given.args] if argument.arg != "self"]
    return ", ".join([*positional, *(f"{argument.arg}={argument.arg}" for argument in given.kwonlyargs)])


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, depth: int) -> list[str]:
    found = ast.get_docstring(node)
    if found is None:
        return []
    found = _CLASSES_IN_TEXT.sub(_synchronous_match, found.replace("`async with`", "`with`"))
    first, *others = found.replace("\\", "\\\\").splitlines()
    indentation = "    " * depth
    quoted = [f'"""{first}', *others]
    quoted = [*quoted, '"""'] if others else [quoted[0] + '"""']
    return [f"{indentation}{line}" if line else "" for line in quoted]


def _parts(members: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> Iterator[tuple[str, str]]:
    """The public attributes that `__init__` makes of classes that have a synchronous form: name and class."""
    for member in members:
        if member.name != "__init__":
            continue
        for node in member.body:
            match node:
                case ast.Assign(targets=[ast.Attribute(attr=attribute)], value=ast.Call(func=ast.Name(id=kind))) if (
                    kind in MODULE_OF_CLASS and not attribute.startswith("_")
                ):
                    yield attribute, kind


def _late_parts(node: ast.ClassDef) -> dict[str, str]:
    """The attributes of the class that are made at their first use, each with its class."""
    members = [each for each in node.body if isinstance(each, ast.FunctionDef) and _is_late_part(each)]
    return {member.name: ast.unparse(member.returns) for member in members if member.returns is not None}


def _late_part_text(attribute: str, kind: str) -> list[str]:
    made = _synchronous(kind)
    return [
        "    @lazy_part",
        f"    def {attribute}(self) -> {made}:",
        f"        from {PACKAGE}.synchronous.{MODULE_OF_CLASS[kind]} import {made}",
        "",
        f"        return {made}(self._thread, self._core.{attribute})",
    ]


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _method_names(node: ast.ClassDef) -> set[str]:
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef)}


def _is_late_part(member: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "lazy_part" for each in member.decorator_list)


def _is_property(member: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in member.decorator_list)


def _is_iterator(member: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return member.returns is not None and ast.unparse(member.returns).startswith("AsyncIterator[")


def _synchronous(name: str) -> str:
    return name.removeprefix("Async")


def _synchronous_names() -> set[str]:
    return {_synchronous(name) for name in MODULE_OF_CLASS}


def _synchronous_match(match: re.Match[str]) -> str:
    known = _synchronous_names() | {"EventWriter", "EventReader", "Headrace"}
    return match[1] if match[1] in known else match[0]


def formatted(text: str, name: str) -> str:
    """As the project's formatter writes it, with sorted imports."""
    arguments: tuple[tuple[str, ...], ...] = (("check", "--select", "I", "--fix-only", "--quiet"), ("format",))
    for chosen in arguments:
        command = [sys.executable, "-m", "ruff", *chosen, "--stdin-filename", str(CLIENT / name), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def stale(client: Path, deal: Callable[[Path, str], object]) -> list[Path]:
    """The files that are not what they should be; each is given to `deal` with its right text."""
    found = []
    for wanted in MODULES:
        path = client / "synchronous" / f"{wanted.module}.py"
        text = formatted(generate(client, wanted), path.name)
        if not path.exists() or path.read_text() != text:
            found.append(path)
            deal(path, text)
    return found


def main() -> int:
    """Writes or checks the files; 1 if a checked one is not current."""
    parser = argparse.ArgumentParser(description="Writes the synchronous classes of the client.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not current")
    parser.add_argument("--client", type=Path, default=CLIENT, help="the directory of the client's modules")
    options = parser.parse_args()
    if options.check:
        found = stale(options.client, lambda path, text: None)
        for path in found:
            print(f"{path.name} is not what the asynchronous class says: run `make synchronous`", file=sys.stderr)
        return 1 if found else 0
    for path in stale(options.client, lambda path, text: path.write_text(text)):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
