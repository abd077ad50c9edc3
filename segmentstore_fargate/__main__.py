"""`python -m segmentstore_fargate`: one segment store, configured by its environment (see config.py).

Prints one line `ready ...` to stdout when it serves; logs go to stderr. Exit codes: 0 after SIGTERM or SIGINT, 1 after
a failure or a stop that was cut short, 2 if it could not start as configured, 4 if its journal failed or is unusable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from headrace import __version__
from headrace.adapters.log_lines import begin_log
from headrace.compiled import code_kind
from headrace.model.errors import HeadraceError, InvalidRequestError
from segmentstore_fargate.config import StoreConfig, read_config
from segmentstore_fargate.native_memory import give_back_memory
from segmentstore_fargate.restart_policy import JOURNAL_FAILED
from segmentstore_fargate.wiring import SegmentStoreProcess

_log = logging.getLogger("segmentstore_fargate")

SWITCH_INTERVAL_S: Final = 0.0005
"""Python's default is 5 ms. The threads that write to S3 and DynamoDB compute for some milliseconds at a time, and the
event loop and the journal's thread would wait so long for the interpreter (`benchmarks/results/loop-pauses.json`)."""

SIGNALS_TOGETHER_S: Final = 1.0
STOP_SLACK_S: Final = 5.0
"""Beyond the deadline of a stop, for closing the journal and for requests to AWS that do not answer."""


def main() -> int:
    give_back_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        config = read_config(os.environ)
    except InvalidRequestError as error:
        print(f"segment store: {error.message}", file=sys.stderr)
        return 2
    begin_log(config.log_level, config.log_format, config.store_id)
    _log.info("event=starting version=%s code=%s", __version__, code_kind())
    # Not closed: closing waits for threads that wait for AWS, and the process ends here.
    return asyncio.Runner(loop_factory=_fast_loop()).run(_serve(config))


async def _serve(config: StoreConfig) -> int:
    process = None
    try:
        process = SegmentStoreProcess(config, os.environ)
        loop, signals = asyncio.get_running_loop(), _Signals(process)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals)
        return await serve(process, config)
    except (HeadraceError, OSError) as error:
        _log.critical("event=start_failed error=%r", str(error))
        print(f"segment store: {error}", file=sys.stderr)
        return JOURNAL_FAILED if process is not None and process.journal_unusable else 2


async def serve(process: SegmentStoreProcess, config: StoreConfig) -> int:
    """Start, serve and stop; the exit code. It may be told to stop, or fail, before it has started.

    Raises:
        HeadraceError, OSError: it could not start as configured.
    """
    starting = asyncio.ensure_future(process.start())
    ended = asyncio.ensure_future(process.ended())
    await asyncio.wait([starting, ended], return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        sys.stdout.write(f"{await starting}\n")  # in one piece: the processes of a store share it
        sys.stdout.flush()
    else:
        starting.cancel()
        await asyncio.wait([starting])
    code = await ended
    if code:
        # No graceful shutdown: the state in memory may be wrong now. The next start recovers from the log.
        _log.critical("event=failed exit_code=%d", code)
        return code
    try:
        async with asyncio.timeout(config.stop_deadline_s + STOP_SLACK_S):
            await process.stop()
    except TimeoutError:
        return _cut_short("the deadline is over")
    return code


class _Signals:
    """The first signal starts a graceful shutdown; a later one ends the process at once, as a crash would.

    Signals within SIGNALS_TOGETHER_S count as one: Ctrl-C reaches a process from the terminal and its supervisor.
    """

    def __init__(self, process: SegmentStoreProcess) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._first_s: float | None = None

    def __call__(self) -> None:
        if self._first_s is None:
            self._first_s = self._loop.time()
        if not self._process.request_stop() and self._loop.time() - self._first_s >= SIGNALS_TOGETHER_S:
            _end(_cut_short("a second signal came"))


def _cut_short(reason: str) -> int:
    _log.warning("event=stop_cut_short reason=%r", reason)
    return 1


def _end(code: int) -> NoReturn:
    """End the process without waiting for threads that wait for AWS."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop halves what a wake-up costs; it does not exist for every platform."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


if __name__ == "__main__":
    _end(main())
