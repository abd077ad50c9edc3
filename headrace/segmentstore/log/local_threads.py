"""Threads for work on this machine alone: reads of the journal, and the compression of large entries.

The threads of `asyncio.to_thread` are few, and requests to AWS occupy them for as long as AWS does not answer. A log
must not depend on that: meanwhile its owner appends, members catch up, and other stores read copies to take over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 8
"""More than wait for the disk at the same time (CATCH_UPS_MAX, READS_MAX), so that entries are encoded meanwhile."""

T = TypeVar("T")


class LocalThreads:
    """Started when they are needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="local")

    async def run(self, call: Callable[[], T]) -> T:
        """Call it in one of the threads. What a cancelled caller waited for runs to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Begin nothing more. Calls that wait for a thread are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
