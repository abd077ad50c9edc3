"""What must be installed on the machine and cannot come from a Python package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.local.failures import LocalStackError

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
    found = _VERSION.search(answer.stderr + answer.stdout)
    if found is None or int(found[1]) < minimum:
        version = found[1] if found else "of unknown version"
        raise LocalStackError(f"{java} is Java {version}, which is too old for Spark: {wanted}")
    return int(found[1])
