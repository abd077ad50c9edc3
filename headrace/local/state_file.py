"""`build/local-stack.json`: the addresses of a running stack, for programs. It exists only while the stack is ready."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.local.failures import LocalStackError
from headrace.local.resources import Resources
from headrace.local.segment_store_processes import StoreStatus


class StateFile:
    """The file is replaced as a whole, so that a reader never sees a part of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: dict[str, Any]) -> None:
        """Raises LocalStackError if the file cannot be written."""
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(state, indent=2) + "\n")
            temporary.replace(self.path)
        except OSError as error:
            raise LocalStackError(f"cannot write state file {self.path}: {error.strerror}") from error

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def state(
    endpoints: dict[str, str],
    resources: Resources,
    environment: Mapping[str, str],
    data_dir: Path,
    pids: dict[str, int],
    stores: list[StoreStatus],
) -> dict[str, Any]:
    """The content of the file."""
    return {
        "endpoints": endpoints,
        "pid": pids["stack"],
        "awsPid": pids["aws"],
        "grpcPid": pids.get("grpc"),
        "dataDir": str(data_dir),
        "table": resources.table,
        "bucket": resources.bucket,
        "queues": resources.queue_urls,
        "environment": dict(environment),
        "segmentStores": [
            {
                "id": store.store_id,
                "host": store.host,
                "port": store.port,
                "pid": store.pid,
                "containers": list(store.containers),
                "dataDir": str(store.data_dir),
                "restarts": store.restarts,
            }
            for store in stores
        ],
    }
