"""The error of a local stack that did not start or cannot continue: one line for the user, and an exit code."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2


class LocalStackError(Exception):
    """The message is the line that the user sees; `exit_code` is 2 if another command line avoids the error."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
