"""Waits for workflows: Pravega's clients expect that a stream exists when the call that creates it returns.

A wait uses no thread. It reads the stream's record repeatedly, with growing pauses, until a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from headrace.bridge.audit import call_under_way
from headrace.bridge.status_codes import DEADLINE_EXCEEDED
from headrace.model.errors import ConflictError, NotFoundError, UnavailableError

T = TypeVar("T")
Run = Callable[..., Awaitable[Any]]
"""Calls a blocking function with arguments, in a thread of the bridge's pool."""

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5


class Waits:
    """Waits on the event loop; each takes at most `deadline_s`."""

    def __init__(self, run: Run, deadline_s: float, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._run = run
        self._deadline_s = deadline_s
        self._pause = pause

    async def accepted(self, what: str, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it raises no conflict with another operation; return its result.

        Raises:
            UnavailableError: code "deadline_exceeded".
        """
        async with self._deadline(what):
            async for _ in self._moments():
                try:
                    done: T = await self._run(attempt)
                    call_under_way().is_accepted = True
                    return done
                except ConflictError:
                    continue
        raise AssertionError("moments do not end")

    async def until(self, what: str, look: Callable[[], T], done: Callable[[T], bool]) -> T:
        """Call `look` until its result is `done`; return it. Raises the errors of `look`, and as `accepted`."""
        async with self._deadline(what):
            async for _ in self._moments():
                seen: T = await self._run(look)
                if done(seen):
                    return seen
        raise AssertionError("moments do not end")

    async def until_gone(self, what: str, look: Callable[[], T], is_another: Callable[[T], bool]) -> None:
        """Return when `look` raises NotFoundError or returns another resource of the same name; else as `until`."""
        with suppress(NotFoundError):
            await self.until(what, look, is_another)

    async def _moments(self) -> AsyncIterator[None]:
        pause_s = FIRST_PAUSE_S
        while True:
            yield
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    @asynccontextmanager
    async def _deadline(self, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._deadline_s):
                yield
        except TimeoutError:
            raise UnavailableError(
                f"{what} is not complete after {self._deadline_s:g} s; it may still complete: repeat the call",
                code=DEADLINE_EXCEEDED,
            ) from None
