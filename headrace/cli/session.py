"""What one run of a command has: the shared options, the client, and where output goes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from io import BufferedIOBase
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast
from urllib.parse import urlsplit

from headrace.cli.standard_streams import print_message, unreadable
from headrace.model.errors import UnavailableError
from headrace.model.external_access import NetworkName

if TYPE_CHECKING:
    from headrace.client import AsyncHeadrace, Headrace

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
    network: NetworkName | None = None

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
        shared = self.shared
        return self._opened.enter_context(open_client(shared.controller_url, shared.auth, self.retry_s, shared.network))

    def open_async(self) -> AsyncHeadrace:
        """Opens a client for a coroutine, which closes it."""
        shared = self.shared
        return open_async_client(shared.controller_url, shared.auth, self.retry_s, shared.network)

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


def open_client(url: str, auth: Auth | None, retry_s: float, network: NetworkName | None = None) -> Headrace:
    """Opens a client of the controller at `url`. Sends no request.

    Raises:
        UnavailableError: nothing listens at a port of this machine, and the user has not asked for repetitions.
    """
    with lean_imports():
        from headrace.client import connect
    if retry_s == RETRY_S_DEFAULT:
        _refuse_closed_port(url)
    on_waiting = _say_waiting if sys.stderr.isatty() else None
    return connect(url, auth=auth, retry_s=retry_s, on_waiting=on_waiting, network=network)


def open_async_client(url: str, auth: Auth | None, retry_s: float, network: NetworkName | None = None) -> AsyncHeadrace:
    """As `open_client`, which has been called before: the port of this machine is not tried again."""
    from headrace.client import AsyncHeadrace

    return AsyncHeadrace(url, auth=auth, retry_s=retry_s, network=network)


@contextmanager
def lean_imports() -> Iterator[None]:
    """Keeps httpx from importing its own command line with click and pygments: 0.2 s of processor time."""
    command = "httpx._main"
    if "httpx" in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[command] = None  # which makes its import fail as if it were missing
    try:
        yield
    finally:
        sys.modules.pop(command, None)


def _refuse_closed_port(url: str) -> None:
    """A port of this machine that is closed will not open by itself, unlike one that is behind a network."""
    parts = urlsplit(url)
    if parts.hostname not in _LOOPBACK or parts.port is None:
        return
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1.0).close()
    except ConnectionRefusedError:
        raise UnavailableError(f"no controller listens at {url}", details={"url": url}) from None
    except OSError:
        return  # the request has the better error


def _say_waiting(url: str) -> None:
    print_message(f"headrace: waiting for the controller at {url}")


_LOOPBACK = ("127.0.0.1", "::1", "localhost")
