"""The page of the command line and the README have the commands that there are."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import actions, main, quickstart
from headrace.cli.outcome import MEANINGS, ExitCode

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "using" / "cli.md").read_text()
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _commands(text: str) -> list[str]:
    """The commands `headrace` of all shell blocks, without comments and the programs around them in pipes."""
    lines = [line.partition("  #")[0].strip() for block in SHELL_BLOCK.findall(text) for line in block.splitlines()]
    parts = [part.strip() for line in lines for part in line.split(" | ")]
    return [part for part in parts if part.startswith("headrace ")]


def test_generated_tables_are_current():
    generator = runpy.run_path(str(ROOT / "scripts" / "generate_cli_reference.py"))
    assert generator["page"](PAGE) == PAGE, "run `make reference`"


def test_every_exit_code_has_a_meaning():
    assert set(MEANINGS) == set(ExitCode)


def test_readme_and_page_have_the_commands_of_quickstart():
    wanted = "\n".join(quickstart.COMMANDS)
    assert wanted in (ROOT / "README.md").read_text()
    assert wanted in PAGE


@pytest.mark.parametrize("command", [*_commands(PAGE), *quickstart.COMMANDS])
def test_commands_of_the_page_are_valid(command: str, monkeypatch: pytest.MonkeyPatch):
    parsed: list[Any] = []
    monkeypatch.setattr(actions, "execute", lambda *given: parsed.append(given) or ExitCode.DONE)
    assert main(shlex.split(command.rpartition(" | ")[2])[1:]) == 0
    assert parsed
