"""The command `headrace`: the library's sub-commands, and those of the entry point group "headrace.commands".

The library must not import packages of higher layers. A package that adds a command therefore declares it in that group
as `name = "module:function"`. The function takes the arguments and returns the exit code.
"""

from __future__ import annotations

from headrace.cli.commands import main

__all__ = ["main"]
