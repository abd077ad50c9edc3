"""`python -m headrace.bridge`: one bridge, configured by its environment (see config.py).

Prints one line `ready grpc ...` to stdout when it serves; logs go to stderr. Exit codes: 0 after SIGTERM or SIGINT, 2
if it could not start as configured.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from headrace.adapters.log_lines import begin_log
from headrace.bridge.config import BridgeConfig, read_config
from headrace.bridge.wiring import BridgeProcess
from headrace.model.errors import HeadraceError, InvalidRequestError

_log = logging.getLogger("headrace.bridge")


def main() -> int:
    try:
        config = read_config(os.environ)
    except InvalidRequestError as error:
        print(f"grpc bridge: {error.message}", file=sys.stderr)
        return 2
    begin_log(config.log_level, config.log_format)
    return asyncio.run(_serve(config))


async def _serve(config: BridgeConfig) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        bridge = BridgeProcess(config)
        ready = await bridge.start()
    except HeadraceError as error:
        _log.critical("event=start_failed error=%r", error.message)
        print(f"grpc bridge: {error.message}", file=sys.stderr)
        return 2
    print(ready, flush=True)
    _log.info("event=bridge_started host=%s port=%d", config.listen_host, bridge.port)
    await stopping.wait()
    _log.info("event=stopping")
    await bridge.stop()
    _log.info("event=stopped")
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    # A regular exit would wait for threads that wait for AWS, although the process has no work left.
    os._exit(code)
