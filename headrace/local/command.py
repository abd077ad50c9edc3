"""`headrace up`: start the local stack, print the addresses of its parts, run until a signal or a failure."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from headrace import topology
from headrace.cli.actions import listed, new_app, only_command
from headrace.cli.parameters import checked, parse_port
from headrace.cli.standard_streams import print_message
from headrace.codec.places import parse_number
from headrace.deployment_defaults import S3_CONTAINERS_MAX
from headrace.local.failures import EXIT_FAILED, EXIT_USAGE, LocalStackError
from headrace.local.stack import LocalStack, StackOptions
from headrace.model.errors import InvalidRequestError
from headrace.model.tls_modes import TlsMode

# Finds the Lambda handlers and the store process in an installation without the repository.
#
# They belong to the deployment and are not part of the library. The wheel carries them as data next to this module, so
# that no package with a name as general as `functions` is installed into a user's environment.

CARRIED = Path(__file__).parent / "deployment"
"""Where pyproject.toml puts them. The directory does not exist in a checkout, where they are importable anyway."""


def make_importable(directory: Path = CARRIED) -> None:
    """Let this process and the ones that it starts import the handlers and the store process."""
    if not directory.is_dir():
        return
    sys.path.insert(0, str(directory))
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{inherited}" if inherited else str(directory)
    # Without this `python -m` searches the user's working directory first, which may have its own `functions`.
    os.environ["PYTHONSAFEPATH"] = "1"


HTTP_PORT_DEFAULT = 10080
GRPC_PORT_DEFAULT = 9090
OFF = "off"
_EXIT_INTERRUPTED = 130

EXAMPLES = (
    "headrace up",
    "headrace up --data-dir ~/headrace-data --segment-stores 3",
    "headrace up --data-dir ~/headrace-data --secure",
    "headrace up --http-port 0 --grpc-port off --state-file other-stack.json",
)
_HELP_WIDTH = 76
EXIT_CODES = {
    0: "stopped by Ctrl-C or SIGTERM",
    EXIT_FAILED: "a part could not be started, or failed",
    EXIT_USAGE: "another command line avoids the error, for example if a port is taken; or the extra `headrace[local]` "
    "is not installed",
    _EXIT_INTERRUPTED: "a second signal ended it before it had stopped",
}
"""`docs/using/cli.md` has the same table."""


class _StopRequestedError(BaseException):
    """SIGINT or SIGTERM arrived. A BaseException, so that no part handles it as its own failure."""


def main(arguments: Sequence[str] | None = None, *, program: str = "headrace up") -> int:
    """Run in the main thread until the stack is stopped; return the exit code."""
    options = parse_options(arguments, program)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    make_importable()
    signals = _Signals()
    stack = LocalStack(options, _say)
    try:
        with signals.break_off():
            stack.start()
        return _run(stack, signals)
    except _StopRequestedError:
        return 0
    except LocalStackError as error:
        print_message(f"headrace up: {error}")
        return error.exit_code


def _run(stack: LocalStack, signals: _Signals) -> int:
    try:
        _say("ready")
        failure = signals.wait(stack)
        if failure:
            print_message(f"headrace up: {failure}")
        print_message("headrace up: stopping")
    finally:
        stack.stop()
    return EXIT_FAILED if failure else 0


def _say(line: str) -> None:
    """Prints a line for the user, or for a program that waits for `ready`.

    Raises:
        LocalStackError: standard output is closed or full.
    """
    try:
        print(line, flush=True)
    except OSError as error:
        raise LocalStackError(f"cannot write the output: {error.strerror}") from error


def _parse_port_or_off(text: str) -> int | None:
    return None if text == OFF else parse_port(text)


def _parse_store_count(text: str) -> int:
    count = parse_number(text)
    if not 1 <= count <= topology.CONTAINER_COUNT:
        raise InvalidRequestError(
            f"{count} is not from 1 to {topology.CONTAINER_COUNT}: each store needs at least one container"
        )
    return count


def _parse_s3_count(text: str) -> int:
    count = parse_number(text)
    if not 0 <= count <= S3_CONTAINERS_MAX:
        raise InvalidRequestError(f"{count} is not from 0 to {S3_CONTAINERS_MAX}")
    return count


DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="keep data here over a restart (default: nothing is kept)")
]
HttpPort = Annotated[
    int,
    typer.Option(
        parser=checked(parse_port),
        metavar="PORT",
        show_default=False,
        help=f"of the HTTP API; 0: any free one (default {HTTP_PORT_DEFAULT})",
    ),
]
GrpcPort = Annotated[
    Any,
    typer.Option(
        parser=checked(_parse_port_or_off),
        metavar="PORT",
        show_default=False,
        help=f"for Pravega's own clients; 0: any free one; off: not served (default {GRPC_PORT_DEFAULT})",
    ),
]
ConsolePort = Annotated[
    Any,
    typer.Option(
        parser=checked(_parse_port_or_off),
        metavar="PORT",
        show_default=False,
        help="of the web console; 0: any free one; off: not served (default 0)",
    ),
]
SegmentStores = Annotated[
    int | None,
    typer.Option(
        parser=checked(_parse_store_count),
        metavar="N",
        help="how many to run; data keep their number (default 1)",
    ),
]
S3Containers = Annotated[
    int | None,
    typer.Option(
        parser=checked(_parse_s3_count),
        metavar="K",
        help="additional containers, for streams that S3 acknowledges, such as 4; data keep their number (default 0)",
    ),
]
Tokens = Annotated[
    bool,
    typer.Option(
        "--tokens", help="demand a delegation token of each request to a segment store; keys are in the data directory"
    ),
]
Secure = Annotated[
    bool,
    typer.Option(
        "--secure", help="as --tokens, and the segment stores demand TLS; clients of Headrace need no setting"
    ),
]
NoRestart = Annotated[bool, typer.Option("--no-restart", help="leave a segment store that died dead")]
StateFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="where to write ports and pids for programs (default: local-stack.json in the directory of the data)",
    ),
]


def parse_options(arguments: Sequence[str] | None, program: str) -> StackOptions:
    """The options of the command line; exits with code 2 if they are invalid, and with 0 after the help text."""
    chosen: list[StackOptions] = []
    app = new_app()

    def up(
        data_dir: DataDir = None,
        http_port: HttpPort = HTTP_PORT_DEFAULT,
        grpc_port: GrpcPort = GRPC_PORT_DEFAULT,
        console_port: ConsolePort = 0,
        segment_stores: SegmentStores = None,
        s3_containers: S3Containers = None,
        tokens: Tokens = False,
        secure: Secure = False,
        no_restart: NoRestart = False,
        state_file: StateFile = None,
    ) -> None:
        chosen.append(
            StackOptions(
                data_dir=data_dir,
                http_port=http_port,
                grpc_port=grpc_port,
                console_port=console_port,
                segment_stores=segment_stores,
                s3_containers=s3_containers,
                restart=not no_restart,
                tokens=tokens or secure,
                tls=TlsMode.REQUIRED if secure else TlsMode.OFF,
                state_file=state_file,
            )
        )

    is_rich = app.rich_markup_mode is not None
    codes = [f"{code:<4} {meaning}" for code, meaning in EXIT_CODES.items()]
    if not is_rich:  # which wraps lines by itself
        codes = [textwrap.fill(line, _HELP_WIDTH, subsequent_indent=" " * 7) for line in codes]
    app.command(
        "up",
        help="Run the whole of Headrace on this machine, on loopback only.",
        epilog=f"{listed('Examples', EXAMPLES, rich=is_rich)}\n\n{listed('Exit codes', codes, rich=is_rich)}",
        context_settings={"help_option_names": ["--help", "-h"]},
    )(up)
    try:
        only_command(app)(args=None if arguments is None else list(arguments), prog_name=program)
    except SystemExit:
        if not chosen:
            raise
    return chosen[0]


class _Signals:
    """SIGINT and SIGTERM: the first one interrupts a start or ends a run, the second one ends the process at once."""

    def __init__(self) -> None:
        self._raise = False
        self._stopping = threading.Event()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    @contextlib.contextmanager
    def break_off(self) -> Iterator[None]:
        """A context in which a signal raises _StopRequestedError."""
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    def wait(self, stack: LocalStack) -> str | None:
        """Wait for a signal or a failure of the stack; return the reason of the failure, or None after a signal."""
        while not self._stopping.is_set():
            failure = stack.wait_for_failure(_POLL_S)
            if failure:
                return failure
        return None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stopping.is_set():
            print_message("headrace up: stopping at once")
            os._exit(_EXIT_INTERRUPTED)  # the children end with their parent
        self._stopping.set()
        if self._raise:
            self._raise = False
            raise _StopRequestedError


_POLL_S = 0.2
"""The longest delay before a signal is noticed; between the checks the thread waits for a failure of the stack."""
