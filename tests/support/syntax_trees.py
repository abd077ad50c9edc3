"""Python sources as syntax trees, for tests that read the code."""

from __future__ import annotations

import ast
import gc


def syntax_tree(source: str) -> ast.Module:
    """The tree of `source`, made while the collector rests; raises SyntaxError.

    CPython before 3.11.8 and 3.12.2 counts the depth of all trees in one place (gh-106905). If the collector runs
    meanwhile and finds a future of an earlier test whose exception nothing took, asyncio logs its traceback, for which
    it makes a tree of its own; the outer one then ends with a SystemError.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()
