"""Why the local stack did not start or cannot go on: one clear line, and the exit code that goes with it."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2


class LocalStackError(Exception):
    """Its message is the one line that the user sees; `exit_code` is 2 where another command line would help."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
