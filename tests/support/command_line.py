"""The fixtures that run the command line: their types, and what they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from headrace.cli import main


class Ran(NamedTuple):
    """The result of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]
"""Runs the command line with these arguments."""

Show = Callable[..., str]
"""Runs a command that must succeed without a message. Returns its output."""

ReadJson = Callable[..., Any]
"""Runs a command with --json that must succeed. Returns the document."""


def runner(capsys: pytest.CaptureFixture[str], *command: str) -> Run:
    """Runs `headrace` with these words, and then those of the call."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main([*command, *arguments])
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return run
