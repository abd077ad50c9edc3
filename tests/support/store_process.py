"""What a whole segment store process talks to instead of AWS; outages are switched on and off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.errors import UnavailableError

PROCESS_WAIT_S = 120.0
"""Only turns a hang into a failure: a start writes whole journal files, on a disk that others may use."""


class Objects(MemoryChunkStorage):
    """`down` is an outage of S3."""

    down = False

    async def read(self, name: str, position: int, length: int) -> bytes:
        if self.down:
            raise UnavailableError("S3 does not answer")
        return await super().read(name, position, length)

    def close(self) -> None:
        """Nothing to close."""


class Aws:
    """What the process talks to instead of AWS; `down` is an outage of DynamoDB."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore()
        self.objects = Objects()
        self.down = False
        self.asked = threading.Event()
        self.renewed = threading.Event()

    def __call__(self, _table: str) -> Any:
        return self

    def _checked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **named: Any) -> Any:
            self.asked.set()
            if self.down:
                raise UnavailableError("DynamoDB does not answer")
            return call(*arguments, **named)

        return checked

    def __getattr__(self, name: str) -> Any:
        return self._checked(getattr(self.metadata, name))

    @property
    def lease_version(self) -> int | None:
        stored_lease = ClusterRecords(self.metadata).lease("store-0")
        return None if stored_lease is None else stored_lease.version
