"""A segment store whose disk stalls while the file `HEADRACE_STALLED_WHILE` is there: a stand-in for its module.

The store is the real one. Only the calls with which its journal writes and syncs wait, without an error, as they do on
a volume that hangs.
"""

from __future__ import annotations

import os
import runpy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from headrace import topology

P = ParamSpec("P")
T = TypeVar("T")

STALLED_WHILE: Final = "HEADRACE_STALLED_WHILE"
_POLL_S: Final = 0.05
_CALLS: Final = ("pwritev", "fdatasync", "fsync")


def _stalling(call: Callable[P, T], stalled: Path) -> Callable[P, T]:
    def wait_first(*args: P.args, **kwargs: P.kwargs) -> T:
        while stalled.exists():
            threading.Event().wait(_POLL_S)
        return call(*args, **kwargs)

    return wait_first


if __name__ == "__main__":
    for name in _CALLS:
        setattr(os, name, _stalling(getattr(os, name), Path(os.environ[STALLED_WHILE])))
    runpy.run_module(topology.SEGMENT_STORES.module, run_name="__main__", alter_sys=True)
