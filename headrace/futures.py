"""What all layers need of asyncio's futures. It is apart so that a use of it imports no wire protocol."""

from __future__ import annotations

import asyncio
from typing import Any


def mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Marks the exception as retrieved: if the waiting task was cancelled, asyncio would log it as never retrieved."""
    if not future.cancelled():
        future.exception()
