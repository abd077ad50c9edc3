"""Clients that live as long as the process: Spark keeps its Python workers, and a client costs more than a small task.

A client has a background thread and connections, which do not survive a fork. So a process that was forked makes its
own, although Spark's workers are forked before they use one.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Literal

from headrace.client.headrace import Headrace
from headrace.client.synchronous.synchronous_transactions import TransactionalWriter
from headrace.spark.worker_garbage import exempt_imports


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
_clients: dict[tuple[int, str, str | None, float], SharedClient] = {}


def shared_client(controller: str, auth: Literal["aws-iam"] | None, retry_s: float) -> SharedClient:
    """The client of this process for a controller. It is never closed; its thread ends with the process."""
    key = (os.getpid(), controller, auth, retry_s)
    with _lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = SharedClient(Headrace(controller, auth=auth, retry_s=retry_s))
            exempt_imports()
        return found
