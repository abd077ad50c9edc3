"""AWS on loopback: moto's server with the patches of `moto_patches`, in its own process.

`python -m headrace.local.aws_emulator --port 0` prints one line `ready endpoint=http://127.0.0.1:PORT` and serves until
SIGTERM or SIGINT. It keeps no data over a restart; `aws_snapshot` does that for the local stack. It binds only to
127.0.0.1, because it checks no credentials and must never be reachable from outside.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import FrameType

LOOPBACK = "127.0.0.1"
READY_PREFIX = "ready endpoint="

S3_BUFFER_VARIABLE = "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"
S3_BUFFER_BYTES = 1
"""Larger bodies go to temporary files. By default moto keeps each body below 5 MiB in memory until it ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m headrace.local.aws_emulator", description="AWS on loopback (moto)."
    )
    parser.add_argument("--port", type=int, default=0, help="TCP port; 0 lets the system choose (default)")
    options = parser.parse_args(arguments)
    os.environ.setdefault(S3_BUFFER_VARIABLE, str(S3_BUFFER_BYTES))
    with tempfile.TemporaryDirectory(prefix="headrace-aws-emulator-") as spool:
        tempfile.tempdir = spool  # moto stores the bodies of S3 objects here; they are removed with the directory
        return _serve(options.port)


def _serve(port: int) -> int:
    # moto reads its settings during its import. The stack imports only this module's constants and needs no moto.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    from headrace.local import moto_patches
    from headrace.local.moto_patches import keep_connections_open

    moto_patches.apply()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    try:
        server = make_server(
            LOOPBACK,
            port,
            DomainDispatcherApplication(create_backend_app),
            threaded=True,
            request_handler=keep_connections_open(),
        )
    except (OSError, SystemExit) as error:  # werkzeug prints its own advice and exits when the port is taken
        print(f"cannot listen on {LOOPBACK}:{port}: {error}", file=sys.stderr)
        return 2

    def stop(signal_number: int, frame: FrameType | None) -> None:
        # shutdown() waits for the loop that this thread runs, so another thread must call it.
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"{READY_PREFIX}http://{LOOPBACK}:{server.server_address[1]}", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
