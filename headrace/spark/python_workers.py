"""What the Python processes of Spark keep over many tasks: clients, imported modules, and visible log lines."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import Final, Literal

from headrace.client.headrace import Headrace
from headrace.client.synchronous.synchronous_transactions import TransactionalWriter
from headrace.model.external_access import NetworkName

# Spark's Python workers collect garbage after each task, and walk all objects of all imported modules to find none.
#
# That is 60 ms of processor time for the 100,000 objects of pyspark, pandas, pyarrow and this package: more than the
# rest of a small task. `exempt_imports` takes these objects out of the collections of such a worker. Garbage of later
# tasks is collected as before.

_DAEMON: Final = "pyspark.daemon"
"""The program from which Spark forks its workers. Only they collect after each task."""

_worker_garbage_lock = threading.Lock()
_exempted = False


def exempt_imports() -> None:
    """Exempts the objects of this process from collections, once, if it is one of Spark's workers.

    An object that is exempt is still freed with its last reference. Only a cycle that becomes garbage later stays, so
    call this when the modules are imported and before the process works.
    """
    global _exempted
    with _worker_garbage_lock:
        if _exempted or not _is_worker():
            return
        _exempted = True
        gc.collect()  # what is garbage now would never be freed
        gc.freeze()


def _is_worker() -> bool:
    program = getattr(sys.modules.get("__main__"), "__spec__", None)
    return program is not None and program.name == _DAEMON


# Clients that live as long as the process: Spark keeps its Python workers, and a client costs more than a small task.
#
# A client has a background thread and connections, which do not survive a fork. So a process that was forked makes its
# own, although Spark's workers are forked before they use one.


@dataclass(slots=True)
class SharedClient:
    """A client, with its transactional writers by scope, stream and lease; each keeps the addresses of the stores."""

    client: Headrace
    _writers: dict[tuple[str, str, int], TransactionalWriter] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def transactional_writer(self, scope: str, stream: str, lease_ms: int) -> TransactionalWriter:
        with self._lock:
            writer = self._writers.get((scope, stream, lease_ms))
            if writer is None:
                writer = self.client.transactional_writer(scope, stream, lease_ms=lease_ms)
                self._writers[scope, stream, lease_ms] = writer
            return writer


_lock = threading.Lock()
_clients: dict[tuple[int, str, str | None, float, str | None], SharedClient] = {}


def shared_client(
    controller: str, auth: Literal["aws-iam"] | None, retry_s: float, network: NetworkName | None = None
) -> SharedClient:
    """The client of this process for a controller. It is never closed; its thread ends with the process."""
    key = (os.getpid(), controller, auth, retry_s, network)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = SharedClient(Headrace(controller, auth=auth, retry_s=retry_s, network=network))
            exempt_imports()
        return client


def show_log_lines() -> None:
    """Send the connector's log lines to standard error, unless the program has configured logging."""
    logger = logging.getLogger("headrace.spark")
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
