"""Where a process writes its audit lines: a file, or its standard error, from which the deployment takes them.

On Lambda a line costs no request: it is a line of the function's log, and a subscription sends it to the log group of
audit lines. In the local stack all processes append to one file.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.codec.audit_lines import AuditLine, audit_text

FILE = "HEADRACE_AUDIT_FILE"
"""The variable with the path of the file; without it lines go to standard error."""


class AuditLog:
    """Appends lines; safe for any number of threads and processes."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> AuditLog:
        return cls(Path(variables[FILE]) if variables.get(FILE) else None)

    def write(self, line: AuditLine) -> None:
        """Raises OSError: the line is not written."""
        text = audit_text(line) + "\n"
        if self._file is None:
            # With one call, so that lines of other threads do not come between.
            sys.stderr.write(text)
            sys.stderr.flush()
            return
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, text.encode("ascii")) != len(text):
                # The next line would be part of the torn one, and lost too. The lock keeps lines of others.
                os.ftruncate(descriptor, size)
                raise OSError("the line could be written in part only: the disk is full")
        finally:
            os.close(descriptor)
