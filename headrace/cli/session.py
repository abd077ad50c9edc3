"""What one run of a command has: the shared options, the client, and where output goes."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import cached_property
from io import BufferedIOBase
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TextIO, cast

from headrace.cli.standard_streams import print_message, unreadable

if TYPE_CHECKING:
    from headrace.client import Headrace

URL_VARIABLE = "HEADRACE_URL"
URL_DEFAULT = "http://127.0.0.1:10080"
"""Where `headrace up` listens. The client has the same default; it is not imported only to show a help text."""

RETRY_S_DEFAULT = 10.0

Auth = Literal["aws-iam"]


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The options that may stand before and after a command. None: not given."""

    url: str | None = None
    auth: Auth | None = None
    json: bool | None = None
    retry_s: float | None = None

    def over(self, other: SharedOptions) -> SharedOptions:
        """These options, and those of `other` that are not given here."""
        chosen = {}
        for field in fields(self):
            mine = getattr(self, field.name)
            chosen[field.name] = getattr(other, field.name) if mine is None else mine
        return SharedOptions(**chosen)

    @property
    def controller_url(self) -> str:
        return self.url or os.environ.get(URL_VARIABLE) or URL_DEFAULT


class Session:
    """One run of a command. The client is opened when it is first used, and closed at the end of the `with` block."""

    def __init__(self, program: str, shared: SharedOptions) -> None:
        self.program = program
        self.shared = shared
        self.json = bool(shared.json)
        self._opened = ExitStack()

    @cached_property
    def client(self) -> Headrace:
        return self._opened.enter_context(open_client(self.shared.controller_url, self.shared.auth, self.retry_s))

    @property
    def retry_s(self) -> float:
        """For how long a failed request is retried."""
        return RETRY_S_DEFAULT if self.shared.retry_s is None else self.shared.retry_s

    @property
    def input(self) -> BufferedIOBase:
        """Standard input as bytes."""
        return cast(BufferedIOBase, sys.stdin.buffer)

    def read_line(self, bytes_max: int) -> bytes:
        """Reads a line of standard input without its end; it is cut after `bytes_max` bytes.

        Raises:
            InvalidRequestError: standard input cannot be read.
        """
        try:
            line = self.input.readline(bytes_max)
        except OSError as error:
            raise unreadable("standard input", error) from error
        return line.removesuffix(b"\n").removesuffix(b"\r")

    @property
    def output(self) -> TextIO:
        return sys.stdout

    @property
    def is_terminal(self) -> bool:
        """Whether people see the output directly."""
        return sys.stdout.isatty()

    def complain(self, message: str) -> None:
        """Prints one line on standard error."""
        print_message(f"{self.program}: {message}")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)


def open_client(url: str, auth: Auth | None, retry_s: float) -> Headrace:
    """Opens a client of the controller at `url`. Sends no request."""
    from headrace.client import connect

    return connect(url, auth=auth, retry_s=retry_s)
