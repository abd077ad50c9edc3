"""Finds the sub-commands and runs the one that the command line names.

Exit codes: 0 done, 1 refused or failed, 2 invalid command line, 3 not found, 4 conflict, 5 unavailable, 130 Ctrl-C.
A sub-command of another package has exit codes of its own.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points

from headrace import __version__
from headrace.model.errors import HeadraceError

GROUP = "headrace.commands"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

BUILT_IN: Mapping[str, str] = {
    "cluster": "headrace.cli.cluster",
    "dead-letter": "headrace.cli.dead_letter",
    "event": "headrace.cli.event",
    "reader-group": "headrace.cli.reader_group",
    "retention": "headrace.cli.retention",
    "scope": "headrace.cli.scope",
    "segment": "headrace.cli.segment",
    "stream": "headrace.cli.stream",
    "subscriber": "headrace.cli.subscriber",
    "table": "headrace.cli.table",
    "transaction": "headrace.cli.transaction",
    "watermark": "headrace.cli.watermark",
}
"""Sub-commands of the library: modules with a `main`. Only the one that runs is imported, which saves start-up time."""

Command = Callable[[Sequence[str]], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one sub-command; returns the exit code."""
    found = commands()
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Stream storage with Pravega's semantics in your own AWS account.",
        epilog="`headrace COMMAND --help` describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    parser.add_argument("command", choices=sorted(BUILT_IN.keys() | found.keys()), help="the command to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the command")
    chosen = parser.parse_args(arguments)
    built_in = BUILT_IN.get(chosen.command)
    if built_in is not None:
        return _call(chosen.command, importlib.import_module(built_in).main, chosen.arguments)
    return _run(found[chosen.command], chosen.arguments)


def commands() -> dict[str, EntryPoint]:
    """The sub-commands of installed packages by name.

    If two packages use one name, the command whose target sorts first is taken, so that the choice is stable.
    """
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value):
        by_name.setdefault(entry.name, entry)
    return by_name


def _run(entry: EntryPoint, arguments: Sequence[str]) -> int:
    try:
        command: Command = entry.load()
    except ImportError as error:
        print(f"headrace {entry.name}: {error}. To install it: pip install 'headrace[local]'", file=sys.stderr)
        return EXIT_USAGE
    return _call(entry.name, command, arguments)


def _call(name: str, command: Command, arguments: Sequence[str]) -> int:
    try:
        return command(arguments)
    except HeadraceError as error:
        print(f"headrace {name}: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
