"""The exit codes of commands, and the hints that follow an error message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum

from headrace.model import errors


class ExitCode(IntEnum):
    """Why a command ended. `docs/using/cli.md` has the same table."""

    DONE = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    TIMEOUT = 6
    INCOMPLETE = 7
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.DONE: "done; also if the reader of the output closed its pipe early, as `head` does",
    ExitCode.REFUSED: "refused or failed: the request is invalid, or the state of the resource does not allow it",
    ExitCode.USAGE: "the command line is invalid, or the extra `headrace[cli]` is not installed; no request was sent",
    ExitCode.NOT_FOUND: "the named resource does not exist",
    ExitCode.CONFLICT: "the resource exists already, or another operation is running",
    ExitCode.UNREACHABLE: "the controller, or a service that it needs, does not answer",
    ExitCode.TIMEOUT: "the deployment did not finish the request in time; completed steps are kept, so repeat it",
    ExitCode.INCOMPLETE: "done, except for rows of the input that were refused and are in the file of --skip-invalid",
    ExitCode.INTERRUPTED: "Ctrl-C",
}

_HINTS = {
    "already_exists": "--exist-ok accepts an existing resource",
    "scope_not_empty": "--recursive also deletes the contents; to list the streams: headrace stream list SCOPE",
    "stream_not_sealed": "seal it first: headrace stream seal SCOPE/STREAM",
    "segment_not_active": "to list the active segments: headrace segment list SCOPE/STREAM",
    "invalid_key_ranges": "--segments N computes the ranges; to list those of now: headrace segment list SCOPE/STREAM",
    "not_adjacent": "to list segments by their keys: headrace segment list SCOPE/STREAM",
    "too_few_segments": "lower the minimum first: headrace stream update SCOPE/STREAM --segments N",
    "user_exists": "--change-password gives the user another password",
    "user_not_found": "to list the users with their grants: headrace grpc-user list",
    "users_not_stored": "headrace grpc-user add USER begins with the first user",
    "no_log": "to list the logs of containers: headrace cluster logs",
    "no_such_token_key": "to list them: headrace token-key list",
    "no_such_secret": "a deployment with `-c tokens=required` has it; the credentials and the region decide where",
    "not_replayable": "to delete it: headrace dead-letter drop LETTER",
    "conflict": "another operation is running: try again when it is done",
    "unavailable": "`headrace up` starts a controller here; --url or HEADRACE_URL names another one",
    "out_of_time": "try again: a part of the deployment is slow to answer",
    "unauthorized": "--auth aws-iam signs requests with your AWS credentials",
    "throttled": "try again later",
    "not_found": "to list names: headrace scope list, headrace stream list SCOPE",
}
"""Hints by the code of the error, the specific one or that of its class."""


def exit_code(error: errors.HeadraceError) -> ExitCode:
    return ExitCode(error.reported_as.exit_code)


def error_line(error: errors.HeadraceError, names: Mapping[str, str] = {}) -> str:
    """The message on one line, with a hint if there is one for the error's code.

    `names` are those that the user has given, by their placeholders, such as SCOPE/STREAM.
    """
    message = " ".join(error.message.split())
    hint = _HINTS.get(error.specific_code) or _HINTS.get(error.code)
    if hint is None:
        return message
    command = _PLACEHOLDER.sub(lambda found: names.get(found[0], found[0]), hint)
    return f"{message} (hint: {command})"


_PLACEHOLDER = re.compile(r"SCOPE/[A-Z]+|SCOPE")
