"""The command `headrace`: the library's commands, and those of the entry point group "headrace.commands".

It needs the extra `headrace[cli]`, so that programs that only use the client do not install a terminal library. The
library must not import packages of higher layers. A package that adds a command therefore declares it in that group as
`name = "module:function"`. The function takes the arguments and returns the exit code.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from headrace.cli.standard_streams import open_standard_streams

EXTRA_MISSING = "headrace: the command line is an extra of the package. To install it: pip install 'headrace[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments`, by default that of the process; returns the exit code."""
    open_standard_streams()
    if any(importlib.util.find_spec(name) is None for name in ("typer", "rich")):
        print(EXTRA_MISSING, file=sys.stderr)
        return 2
    try:  # Ctrl-C may come while modules are imported
        from headrace.cli.application import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 130


__all__ = ["main"]
