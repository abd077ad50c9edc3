"""The common part of all sub-commands that call a controller: options, the client, the output of results and errors.

A resource (`headrace stream`) has actions (`headrace stream create`). An action gets the client and its options, and
returns an `Outcome`. An error becomes one line on standard error, with a hint where there is one, and an exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from headrace.cli.outcome import Outcome, show
from headrace.client import Headrace, connect
from headrace.client.headrace import DEFAULT_URL
from headrace.model import errors

URL_VARIABLE = "HEADRACE_URL"
RETRY_S_DEFAULT = 10.0

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNAVAILABLE = 5
EXIT_INTERRUPTED = 130

EXIT_BY_CLASS: dict[type[errors.HeadraceError], int] = {
    errors.HeadraceError: EXIT_FAILED,
    errors.NotFoundError: EXIT_NOT_FOUND,
    errors.AlreadyExistsError: EXIT_CONFLICT,
    errors.ConflictError: EXIT_CONFLICT,
    errors.FencedError: EXIT_UNAVAILABLE,
    errors.ThrottledError: EXIT_UNAVAILABLE,
    errors.UnavailableError: EXIT_UNAVAILABLE,
}
"""The exit code of an error class. A class that is not listed has the code of its nearest listed parent."""

_HINTS_BY_CODE = {
    "already_exists": "--exist-ok accepts an existing resource",
    "scope_not_empty": "--recursive also deletes the contents; to list the streams: headrace stream list SCOPE",
    "stream_not_sealed": "seal it first: headrace stream seal SCOPE/STREAM",
    "segment_not_active": "to list the active segments: headrace segment list SCOPE/STREAM",
    "invalid_key_ranges": "to list the key ranges of the segments: headrace segment list SCOPE/STREAM",
    "not_replayable": "to delete it: headrace dead-letter drop LETTER",
    "conflict": "another operation is running: try again when it is done",
    "unavailable": f"`headrace up` starts a controller here; --url or {URL_VARIABLE} names another one",
    "out_of_time": "try again: a part of the deployment is slow to answer",
    "unauthorized": "--auth aws-iam signs requests with your AWS credentials",
    "throttled": "try again later",
    "not_found": "names are SCOPE/STREAM; to list them: headrace scope list, headrace stream list SCOPE",
}

Run = Callable[[Headrace, argparse.Namespace], Outcome | None]
"""An action. It returns None if it has printed its output itself."""


class ResourceCommand:
    """The command `headrace RESOURCE ACTION ...`. Calling it runs the action and returns the exit code."""

    def __init__(self, resource: str, description: str) -> None:
        self.resource = resource
        self._parser = argparse.ArgumentParser(prog=f"headrace {resource}", description=description)
        self._actions = self._parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(self, name: str, run: Run, summary: str) -> argparse.ArgumentParser:
        """Adds an action. The caller adds the action's own arguments to the returned parser."""
        parser = self._actions.add_parser(name, help=summary, description=summary)
        parser.set_defaults(run=run)
        _add_shared_options(parser)
        return parser

    def __call__(self, arguments: Sequence[str]) -> int:
        options = self._parser.parse_args(arguments)
        program = f"headrace {self.resource} {options.action}"
        try:
            with _client(options) as client:
                outcome = options.run(client, options)
                if outcome is not None:
                    show(outcome, as_json=options.json)
                sys.stdout.flush()
        except errors.HeadraceError as error:
            print(f"{program}: {error_line(error)}", file=sys.stderr)
            return exit_code(error)
        except BrokenPipeError:
            # The reader closed the pipe early, as `head` does; the command has not failed. When Python exits, it
            # flushes standard output again, and would print another BrokenPipeError without this line.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK
        return EXIT_OK


def exit_code(error: errors.HeadraceError) -> int:
    return next(EXIT_BY_CLASS[kind] for kind in type(error).__mro__ if kind in EXIT_BY_CLASS)


def error_line(error: errors.HeadraceError) -> str:
    """The message on one line, with a hint if there is one for the error's code."""
    message = " ".join(error.message.split())
    hint = _HINTS_BY_CODE.get(error.specific_code) or _HINTS_BY_CODE.get(error.code)
    return f"{message} (hint: {hint})" if hint else message


@contextlib.contextmanager
def _client(options: argparse.Namespace) -> Iterator[Headrace]:
    url = options.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    with connect(url, auth=options.auth, retry_s=options.retry_s) as client:
        yield client


def _add_shared_options(parser: argparse.ArgumentParser) -> None:
    shared = parser.add_argument_group("shared options")
    shared.add_argument("--url", help=f"URL of the controller (default: {URL_VARIABLE}, then {DEFAULT_URL})")
    shared.add_argument("--auth", choices=["aws-iam"], help="sign requests with AWS credentials (default: do not sign)")
    shared.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    shared.add_argument(
        "--retry-s",
        type=seconds,
        default=RETRY_S_DEFAULT,
        metavar="SECONDS",
        help=f"how long to retry a request that may succeed later (default {RETRY_S_DEFAULT:g})",
    )


def seconds(text: str) -> float:
    """A duration in seconds. argparse prints the error of an invalid one."""
    number = float(text)
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to 999999")
    return number
