"""Finds sub-commands and hands over to the one that was asked for.

Exit codes: those of the sub-command; 1 when it fails with an error of Headrace, 2 for a command line that makes no
sense, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points

from headrace import __version__
from headrace.model.errors import HeadraceError

GROUP = "headrace.commands"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

Command = Callable[[Sequence[str]], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one sub-command; returns the exit code."""
    found = commands()
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Stream storage with Pravega's semantics in your own AWS account.",
        epilog="`headrace COMMAND --help` tells more of a command.",
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    parser.add_argument("command", choices=sorted(found), help="what to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the command")
    chosen = parser.parse_args(arguments)
    return _run(found[chosen.command], chosen.arguments)


def commands() -> dict[str, EntryPoint]:
    """The installed sub-commands by name; of two with one name, the one whose target sorts first."""
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value):
        by_name.setdefault(entry.name, entry)
    return by_name


def _run(entry: EntryPoint, arguments: Sequence[str]) -> int:
    try:
        command: Command = entry.load()
    except ImportError as error:
        print(f"headrace {entry.name}: {error}. Is it installed? Try: pip install 'headrace[local]'", file=sys.stderr)
        return EXIT_USAGE
    try:
        return command(arguments)
    except HeadraceError as error:
        print(f"headrace {entry.name}: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
