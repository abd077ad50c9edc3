"""`python -m segmentstore_fargate`: one segment store, configured by its environment (see config.py).

Prints one line `ready ...` to stdout when it serves; logs go to stderr. Exit codes: 0 after SIGTERM or SIGINT, 1 after
a failure, 2 if it could not start as configured.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

from headrace.model.errors import HeadraceError, InvalidRequestError
from segmentstore_fargate.config import StoreConfig, read_config
from segmentstore_fargate.wiring import SegmentStoreProcess

_log = logging.getLogger("segmentstore_fargate")


def main() -> int:
    try:
        config = read_config(os.environ)
    except InvalidRequestError as error:
        print(f"segment store: {error.message}", file=sys.stderr)
        return 2
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log_level,
        format=f"%(asctime)s level=%(levelname)s store={config.store_id} logger=%(name)s %(message)s",
    )
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(_serve(config))


async def _serve(config: StoreConfig) -> int:
    try:
        process = SegmentStoreProcess(config, os.environ)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.request_stop)
        ready = await process.start()
    except (HeadraceError, OSError) as error:
        _log.critical("event=start_failed error=%r", str(error))
        print(f"segment store: {error}", file=sys.stderr)
        return 2
    print(ready, flush=True)
    code = await process.ended()
    if code:
        # What is in memory cannot be told from what the failure left behind: the log has it, the next start reads it.
        _log.critical("event=failed exit_code=%d", code)
        return code
    await process.stop()
    return code


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop halves what a wake-up costs; it does not exist for every platform."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    # Threads that wait for AWS must not delay the end of a process that has nothing left to do.
    os._exit(code)
