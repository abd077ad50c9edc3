"""Closing several things, all of them also when one fails, or when the caller is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol
from weakref import WeakSet

from headrace.futures import mark_retrieved
from headrace.model.errors import HeadraceError

CANCELLED_S = 1.0
"""How long a closing whose caller was cancelled still goes on, in seconds. It usually takes some milliseconds."""

_closings: WeakSet[asyncio.Future[None]] = WeakSet()
"""The tasks of `close_wholly`, of all loops. Other threads may change it, so it is not iterated over."""


class Block(Protocol):
    """What is left as a `with` block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AsyncBlock(Protocol):
    """What is left as an `async with` block."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


async def close_all(*closings: Callable[[], Awaitable[object]]) -> None:
    """Awaits all closings, one after the other. Raises the error of the last one that failed."""
    async with AsyncExitStack() as stack:
        for closing in reversed(closings):
            stack.push_async_callback(closing)


async def stop_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks, and waits for their end. Errors of them are of no interest any more."""
    stopped = list(tasks)
    for task in stopped:
        task.cancel()
    await asyncio.gather(*stopped, return_exceptions=True)


async def close_wholly(closing: Awaitable[None]) -> None:
    """Awaits a closing to its end. If the caller is cancelled meanwhile, the cancellation goes on behind it.

    For closings that a cancellation would leave half done. `CANCELLED_S` after its caller, it is cancelled itself.
    """
    task = asyncio.ensure_future(closing)
    _closings.add(task)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as problem:
            if cancellation is None:
                asyncio.get_running_loop().call_later(CANCELLED_S, task.cancel)
            cancellation = problem
    if cancellation is not None:
        mark_retrieved(task)
        raise cancellation
    task.result()


async def wait_for_closings() -> None:
    """Waits for all closings of the loop, for `CANCELLED_S` at most: also for those whose callers were interrupted."""
    if closings := {task for task in asyncio.all_tasks() if task in _closings}:
        await asyncio.wait(closings, timeout=CANCELLED_S)


def exit_all(opened: Iterable[Block], error: BaseException | None) -> None:
    """Leaves all blocks, in order. With the `error` of the caller, they do not wait for acknowledgements.

    After an interrupt it goes on in the same way, and raises the interrupt at the end. Otherwise it raises the first
    error of a block, unless the caller has one.
    """
    ends = _Ends(error)
    for each in opened:
        try:
            each.__exit__(*ends.cause)
        except BaseException as problem:  # noqa: BLE001 - raised at the end
            ends.note(problem)
    ends.check()


async def exit_all_async(opened: Iterable[AsyncBlock], error: BaseException | None) -> None:
    """As `exit_all`."""
    ends = _Ends(error)
    for each in opened:
        try:
            await each.__aexit__(*ends.cause)
        except BaseException as problem:  # noqa: BLE001 - raised at the end
            ends.note(problem)
    ends.check()


class _Ends:
    """How blocks ended: the first error, or the last interrupt."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = self._interrupt = error
        self._problem: HeadraceError | None = None

    @property
    def cause(self) -> tuple[type[BaseException] | None, BaseException | None, None]:
        """What the next block is left with."""
        return (None if self._interrupt is None else type(self._interrupt), self._interrupt, None)

    def note(self, problem: BaseException) -> None:
        if not isinstance(problem, HeadraceError):
            self._interrupt = problem
        elif self._problem is None:
            self._problem = problem

    def check(self) -> None:
        if self._interrupt is not None and self._interrupt is not self._error:
            raise self._interrupt
        if self._problem is not None and self._error is None:
            raise self._problem


def handle_text(handle: object, name: str, *, closed: bool) -> str:
    """The `repr` of a handle of the client, for example `<EventWriter shop/orders>`."""
    return f"<{type(handle).__name__} {name}{', closed' if closed else ''}>"
