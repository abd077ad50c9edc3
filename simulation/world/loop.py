"""An asyncio event loop with virtual time and no threads, which several simulated processes share.

Each callback belongs to the process in whose context it was scheduled. The callbacks of one process run in their order,
as asyncio promises. The order of turns of different processes, and of timers that are due at the same time, follows
from the seed. A process can be paused. Nothing of a process runs after it was killed, not even its `finally` blocks.

A function for a thread runs at one virtual moment, and its result arrives after a drawn delay.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from asyncio import AbstractEventLoop, Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Final

from simulation.draws import Draws
from simulation.scheduler import SECOND, Scheduler

THREADS_PER_PROCESS: Final = 6
"""Of the default executor, as asyncio has it on a machine with two cores."""

_TURN_MAX: Final = 40
"""Microseconds between two turns of the loop of one process. A loop that polls therefore moves the time on."""

_THREAD_DELAY: Final = 300
"""Microseconds in which a function typically begins in its thread, and in which its result arrives."""

_THREAD_DELAY_MAX: Final = 20_000


class SimulatedProcess:
    """A process with its callbacks. `number` is unique in a run, so that a restarted store is another process."""

    def __init__(self, loop: SimulatedLoop, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.is_alive = True
        self.context = Context()
        self.context.run(_PROCESS.set, self)
        self.ready: deque[Handle] = deque()
        self.has_turn = False
        self.pools: dict[Executor | None, ThreadPool] = {}
        self._loop = loop

    def after(self, delay: int, kind: str, action: Callable[[], object]) -> None:
        """Run `action` after `delay` microseconds, unless the process was killed."""

        def run() -> None:
            if self.is_alive:
                self._loop.run_guarded(self.context.copy(), action)

        self._loop.scheduler.after(delay, kind, run, self.number)

    def call_soon(self, action: Callable[[], object]) -> None:
        """Run `action` as a callback of the event loop of this process."""
        self._loop.call_soon(action, context=self.context.copy())

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function now, so that what it schedules belongs to this process."""
        return self.context.copy().run(call, *arguments)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in a task of this process."""
        return self._loop.create_task(coroutine, context=self.context.copy())


_PROCESS: Final[ContextVar[SimulatedProcess]] = ContextVar("process")


def current_process() -> SimulatedProcess:
    """The process to which the running code belongs."""
    return _PROCESS.get()


class ThreadPool:
    """The threads of one executor: at most `workers` functions at a time, begun in their order."""

    def __init__(self, workers: int) -> None:
        self.idle = workers
        self.waiting: deque[Callable[[], None]] = deque()


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that the order of a set of tasks follows from the seed."""

    def __init__(self, number: int, coroutine: Generator[Any, None, Any] | Coroutine[Any, Any, Any], **options: Any):
        self.number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self.number


class SimulatedFuture(asyncio.Future[Any]):
    """As `SimulatedTask`."""

    def __init__(self, number: int, loop: AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(AbstractEventLoop):
    """`errors` has what no caller has handled, `violations` what checkers saw: such a run has failed."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.scheduler = Scheduler(draws)
        self.errors: list[str] = []
        self.violations: list[str] = []
        self.outside = SimulatedProcess(self, 0, "outside")
        self._processes = 0
        self._numbers = 0
        self._tasks: list[SimulatedTask] = []
        self._latency = 0
        self._in_thread = False
        self._closed = False

    def new_process(self, name: str) -> SimulatedProcess:
        self._processes += 1
        return SimulatedProcess(self, self._processes, name)

    def kill(self, process: SimulatedProcess) -> None:
        """End a process at once."""
        process.is_alive = False
        process.ready.clear()

    @property
    def in_thread(self) -> bool:
        """Whether the running code was given to an executor, so that it may block."""
        return self._in_thread

    def add_latency(self, delay: int) -> None:
        """Let the result of the function that runs in a thread arrive this much later, in microseconds."""
        self._latency += delay

    # Running

    def run_until(self, time: int, stop: Callable[[], bool] | None = None) -> None:
        """Run all events up to a virtual time, or until `stop` returns True."""
        with_gc = gc.isenabled()
        gc.disable()  # it would drop cycles, which may pin files of the journal, at moments that no seed decides
        asyncio.events._set_running_loop(self)
        try:
            self.scheduler.run_until(time, stop)
        finally:
            asyncio.events._set_running_loop(None)
            if with_gc:
                gc.enable()

    def run_now(self, action: Callable[[], object]) -> None:
        """Run `action` between two events."""
        asyncio.events._set_running_loop(self)
        try:
            action()
        finally:
            asyncio.events._set_running_loop(None)

    def run_guarded(self, context: Context, action: Callable[[], object]) -> None:
        """Run an event; an exception in it fails the run."""
        try:
            context.run(action)
        except Exception as error:  # noqa: BLE001 - the run ends with it
            self.call_exception_handler({"message": f"an event failed: {action}", "exception": error})

    def dispose(self) -> None:
        """Drop all tasks. Their `finally` blocks run now, without effect.

        No coroutine is left to the garbage collector, also if the caller refers to its task: it would warn about those
        that were never begun, in whatever runs then.
        """
        self._closed = True
        self.scheduler = Scheduler(self.draws)
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        asyncio.events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that no task has begun
                while self._tasks:  # the `finally` blocks may create more of them
                    for task in self._tasks:
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        self._close(task)
                    self._tasks.clear()
                    gc.collect()
        finally:
            asyncio.events._set_running_loop(None)
            sys.unraisablehook = hook

    def _close(self, task: SimulatedTask) -> None:
        coroutine = task.get_coro()
        if coroutine is not None and not task.done():
            with suppress(Exception):  # what its `finally` blocks raise is of no interest any more
                coroutine.close()

    # AbstractEventLoop

    def time(self) -> float:
        return self.scheduler.now / SECOND

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        context = context or copy_context()
        handle = Handle(callback, args, self, context)
        self._enqueue(handle, context.get(_PROCESS) or self.outside)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        context = context or copy_context()
        process = context.get(_PROCESS) or self.outside
        handle = TimerHandle(when, callback, args, self, context)

        def due() -> None:
            if not handle.cancelled():
                self._enqueue(handle, process)

        delay = -int((self.time() - when) * SECOND // 1)  # rounded up: a timer is never early
        self.scheduler.after(delay, "timer", due, process.number)
        return handle

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """The event stays in the scheduler, and does nothing."""

    def create_future(self) -> SimulatedFuture:
        self._numbers += 1
        return SimulatedFuture(self._numbers, self)

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> SimulatedTask:
        self._numbers += 1
        task = SimulatedTask(self._numbers, coro, loop=self, name=name or f"task-{self._numbers}", context=context)
        self._tasks.append(task)
        if len(self._tasks) > 1_000 and self._numbers % 500 == 0:
            self._tasks = [each for each in self._tasks if not each.done()]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> SimulatedFuture:
        process = _PROCESS.get(self.outside)
        future = self.create_future()
        pool = process.pools.get(executor)
        if pool is None:
            pool = process.pools[executor] = ThreadPool(getattr(executor, "_max_workers", THREADS_PER_PROCESS))
        work = partial(self._run_in_thread, process, pool, future, copy_context(), partial(func, *args))
        if pool.idle:
            pool.idle -= 1
            self._begin_in_thread(process, work)
        else:
            pool.waiting.append(work)
        return future

    def _begin_in_thread(self, process: SimulatedProcess, work: Callable[[], None]) -> None:
        self.scheduler.after(self._thread_delay(process), "thread", work, process.number)

    def _thread_delay(self, process: SimulatedProcess) -> int:
        return self.draws.heavy_tail(_THREAD_DELAY, _THREAD_DELAY_MAX, "thread delay", process.number)

    def _run_in_thread(
        self,
        process: SimulatedProcess,
        pool: ThreadPool,
        future: asyncio.Future[Any],
        context: Context,
        function: Callable[[], Any],
    ) -> None:
        if not process.is_alive:
            return
        result: Any = None
        error: Exception | None = None
        self._latency, self._in_thread = 0, True
        if not future.cancelled():
            try:
                result = context.run(function)
            except Exception as raised:  # noqa: BLE001 - the caller gets it
                error = raised
        self._in_thread = False

        def arrive() -> None:
            if pool.waiting:
                self._begin_in_thread(process, pool.waiting.popleft())
            else:
                pool.idle += 1
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        process.after(self._latency + self._thread_delay(process), "thread result", lambda: process.call_soon(arrive))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    # Turns

    def _enqueue(self, handle: Handle, process: SimulatedProcess) -> None:
        if not process.is_alive or self._closed:
            return
        process.ready.append(handle)
        if not process.has_turn:
            process.has_turn = True
            delay = self.draws.between(1, _TURN_MAX, "turn", process.number)
            self.scheduler.after(delay, "turn", partial(self._turn, process), process.number)

    def _turn(self, process: SimulatedProcess) -> None:
        """Run the callbacks that are ready. Those that they add run in the next turn, as in asyncio."""
        process.has_turn = False
        later = len(process.ready)
        while later and process.ready:
            later -= 1
            handle = process.ready.popleft()
            if not handle.cancelled():
                handle._run()


def new_loop(draws: Draws) -> SimulatedLoop:
    """A loop without sockets, signals and subprocesses: those methods of an event loop are not implemented."""
    return SimulatedLoop(draws)  # type: ignore[abstract]
