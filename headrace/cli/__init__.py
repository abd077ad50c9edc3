"""The command `headrace`: sub-commands of the library, and those of the entry points of the group "headrace.commands".

The library may not import what lives above it, such as the local stack; an installed package that offers a command
names it in that group as `name = "module:function"`, where the function takes the arguments and returns the exit code.
"""

from __future__ import annotations

from headrace.cli.commands import main

__all__ = ["main"]
