"""The error of a local stack that did not start or cannot continue, and the check of what must be installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# The error of a local stack that did not start or cannot continue: one line for the user, and an exit code.

EXIT_FAILED = 1
EXIT_USAGE = 2


class LocalStackError(Exception):
    """The message is the line that the user sees; `exit_code` is 2 if another command line avoids the error."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# What must be installed on the machine and cannot come from a Python package.

JDK_MINIMUM = 17
_VERSION_TIMEOUT_S = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def require_jdk(minimum: int = JDK_MINIMUM) -> int:
    """The major version of the Java that Spark would use: that of JAVA_HOME, else the one on the PATH.

    Raises:
        LocalStackError: there is no Java, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"install a JDK {minimum} or newer and put it on the PATH or into JAVA_HOME"
    if java is None:
        raise LocalStackError(f"Spark needs Java, and there is none: {wanted}")
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LocalStackError(f"{java} does not run ({error}): {wanted}") from error
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None or int(match[1]) < minimum:
        version = match[1] if match else "of unknown version"
        raise LocalStackError(f"{java} is Java {version}, which is too old for Spark: {wanted}")
    return int(match[1])
