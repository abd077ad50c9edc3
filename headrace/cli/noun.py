"""What all sub-commands that talk to a controller share: options, the client, how an outcome or an error is shown.

A noun (`headrace stream`) has actions (`headrace stream create`). An action gets the client and its options and returns
an `Outcome`: JSON for machines, and how people see it. Errors become one line with a hint and an exit code.
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
"""A class that is not listed exits as its nearest listed parent."""

_HINTS_BY_CODE = {
    "already_exists": "--exist-ok takes what is there",
    "scope_not_empty": "--recursive deletes what is in it, too; headrace stream list SCOPE",
    "stream_not_sealed": "seal it first: headrace stream seal SCOPE/STREAM",
    "segment_not_active": "the active segments: headrace segment list SCOPE/STREAM",
    "invalid_key_ranges": "the ranges to fill: headrace segment list SCOPE/STREAM",
    "not_replayable": "forget it: headrace dead-letter drop LETTER",
    "conflict": "another operation is running: try again when it is done",
    "unavailable": f"`headrace up` starts one here; --url or {URL_VARIABLE} names another",
    "out_of_time": "try again: a part of the deployment is slow to answer",
    "unauthorized": "--auth aws-iam signs requests with your AWS credentials",
    "throttled": "try again later",
    "not_found": "names are SCOPE/STREAM; headrace scope list, headrace stream list SCOPE",
}

Run = Callable[[Headrace, argparse.Namespace], Outcome | None]
"""None: everything has been shown already."""


class NounCommand:
    """`headrace NOUN ACTION ...`; calling it runs one action and returns the exit code."""

    def __init__(self, noun: str, description: str) -> None:
        self.noun = noun
        self._parser = argparse.ArgumentParser(prog=f"headrace {noun}", description=description)
        self._actions = self._parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(self, name: str, run: Run, summary: str) -> argparse.ArgumentParser:
        """Adds an action; the parser returned takes its own arguments."""
        parser = self._actions.add_parser(name, help=summary, description=summary)
        parser.set_defaults(run=run)
        _add_shared_options(parser)
        return parser

    def __call__(self, arguments: Sequence[str]) -> int:
        options = self._parser.parse_args(arguments)
        program = f"headrace {self.noun} {options.action}"
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
            # Whoever read the output has read enough; Python would complain once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK
        return EXIT_OK


def exit_code(error: errors.HeadraceError) -> int:
    return next(EXIT_BY_CLASS[kind] for kind in type(error).__mro__ if kind in EXIT_BY_CLASS)


def error_line(error: errors.HeadraceError) -> str:
    """The message and, where there is one, a hint, on one line."""
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
    shared.add_argument("--url", help=f"of the controller (default: {URL_VARIABLE}, or else {DEFAULT_URL})")
    shared.add_argument("--auth", choices=["aws-iam"], help="how requests are signed (default: not at all)")
    shared.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    shared.add_argument(
        "--retry-s",
        type=seconds,
        default=RETRY_S_DEFAULT,
        metavar="SECONDS",
        help=f"how long to repeat a request that may succeed later (default {RETRY_S_DEFAULT:g})",
    )


def seconds(text: str) -> float:
    """A time in seconds that is not negative; argparse shows what is raised."""
    number = float(text)
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no time in seconds")
    return number
