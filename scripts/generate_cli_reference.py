"""Generates the tables of commands and exit codes in docs/using/cli.md from the command line itself.

`python scripts/generate_cli_reference.py` writes the page; `--check` only tells whether it is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.cli.application import command_line
from headrace.cli.old_names import COMMANDS, OPTIONS
from headrace.cli.outcome import MEANINGS
from headrace.local.command import EXIT_CODES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "using" / "cli.md"
SHARED = frozenset({"url", "auth", "json", "retry_s"})


def page(text: str) -> str:
    """The page `text` with current tables between its markers."""
    tables = {
        "exit codes": _exit_codes(MEANINGS),
        "exit codes of headrace up": _exit_codes(EXIT_CODES),
        "commands": _commands(),
        "old names": _old_names(),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name}: generated -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE} lacks the markers of the {name}")
        text = f"{before}{begin}{table}{end}{after}"
    return text


def _commands() -> str:
    parts: list[str] = []
    root: Any = command_line()
    for name in root.list_commands(None):
        command = root.get_command(None, name)
        if not hasattr(command, "list_commands"):
            continue
        parts.append(f"### `headrace {name}`\n\n{command.help}\n\n")
        parts += _entries(command, f"headrace {name}")
    parts.append("### Other commands\n\n")
    parts += _entries(root, "headrace", groups=False)
    return "\n" + "".join(parts).rstrip("\n") + "\n\n"


def _entries(group: Any, path: str, *, groups: bool = True) -> Iterator[str]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if not groups and hasattr(command, "list_commands"):
            continue
        help_text = " ".join(command.help.split("\n\n")[0].split())
        yield f"- `{path} {name}{_words(command)}`: {help_text}\n"
    yield "\n"


def _words(command: Any) -> str:
    """The arguments and options of a command, without those that all commands share."""
    found = ""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            found += f" {parameter.metavar or parameter.name.upper()}"
        elif parameter.name not in SHARED:
            metavar = "" if parameter.is_flag else f" {parameter.metavar or _choices(parameter)}"
            option = f"{parameter.opts[0]}{metavar}"
            found += f" {option}" if parameter.required else f" [{option}]"
    return found


def _choices(parameter: Any) -> str:
    return "|".join(getattr(parameter.type, "choices", None) or ("TEXT",))


def _exit_codes(meanings: Mapping[int, str]) -> str:
    rows = "".join(f"| {code:d} | {meaning} |\n" for code, meaning in meanings.items())
    return f"\n| exit code | meaning |\n|---|---|\n{rows}\n"


def _old_names() -> str:
    rows = "".join(
        f"| `headrace {' '.join(old)}` | `headrace {' '.join((*renamed.current, *renamed.added))}` |\n"
        for old, renamed in COMMANDS.items()
    )
    for command, options in OPTIONS.items():
        for old, current in options.items():
            rows += f"| `headrace {' '.join(command)} {old}` | `headrace {' '.join(command)} {current}` |\n"
    rows += "| `--seal 0 1 --range 0:0.5 0.5:1` | `--seal 0@0,1@0 --range 0:0.5,0.5:1` |\n"
    return f"\n| until 0.1 | now |\n|---|---|\n{rows}\n"


def main(arguments: list[str]) -> int:
    """Writes or checks the page; returns the exit code."""
    known = PAGE.read_text()
    current = page(known)
    if arguments == ["--check"]:
        if known != current:
            print(f"{PAGE.name} is not current: run `make reference`", file=sys.stderr)
        return int(known != current)
    PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
