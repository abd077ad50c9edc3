"""The types of the fixtures that run the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


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
