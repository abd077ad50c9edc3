"""Serves the pages of a store over plain HTTP: GET /health, /ready and /metrics.

The server bounds the size of a request, its duration and the number of connections. A connection has one request.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.errors import HeadraceError
from headrace.model.replication_health import ClusterView, unsettled_reasons
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from segmentstore_fargate.layout import mark_settled, was_settled

# Sets the latch of the health check (probe.py) when this process of a store has taken its place.
#
# The latch is a file on the volume. It is never removed: the health check of a store that was once settled answers for
# its processes and journals alone. If it failed while DynamoDB, S3 or another store is away, ECS would replace the
# stores of all zones within minutes and delete every volume.

_log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 2.0
"""Until the process has settled. A check of a store with three copies is a query and two batch reads."""


class SettledLatch:
    """Checks until the process has settled, and never again on this volume, also after a restart.

    `find_reasons` says why the process has not settled; nothing if it has. An error of it counts as a reason.
    """

    def __init__(
        self,
        data_dir: Path,
        process: int,
        find_reasons: Callable[[], Awaitable[list[str]]],
        *,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        self._data_dir = data_dir
        self._process = process
        self._find_reasons = find_reasons
        self._check_every_s = check_every_s
        self._checks = PeriodicTask(self._check, self._check_failed, retry_first_s=check_every_s)
        self._reasons: list[str] = []

    @property
    def is_set(self) -> bool:
        return was_settled(self._data_dir, self._process)

    def start(self) -> None:
        """Begin to check, also while the process still starts: the first store of a deployment waits for others."""
        if not self.is_set:
            self._checks.start()

    async def stop(self) -> None:
        await self._checks.stop()

    async def _check(self) -> Rest | None:
        reasons = await self._find_reasons()
        if reasons:
            if reasons != self._reasons:
                _log.info("event=not_settled count=%d first=%r", len(reasons), reasons[0])
            self._reasons = reasons
            return Rest.fixed(self._check_every_s)
        try:
            await asyncio.to_thread(mark_settled, self._data_dir, self._process)
        except OSError as error:
            _log.warning("event=settled_not_noted error=%r", error)
            return Rest.fixed(self._check_every_s)
        _log.info("event=settled process=%d", self._process)
        return None

    def _check_failed(self, error: Exception, _retry_s: float) -> bool:
        if isinstance(error, HeadraceError):
            _log.info("event=not_settled count=%d first=%r", 1, error.message)
        else:  # a defect must not keep a deployment from being rolled back: the check stays unsettled
            _log.exception("event=settled_check_failed")
        return True


class ReplicatedPlace:
    """Why a store with three copies has not settled, read from the metadata table. `served` are its containers."""

    def __init__(
        self, metadata_store: MetadataStore, store_id: str, container_count: int, served: Callable[[], Collection[int]]
    ) -> None:
        self._records = ClusterRecords(metadata_store)
        self._logs = ContainerLogRecords(metadata_store)
        self._store_id = store_id
        self._container_count = container_count
        self._served = served

    async def find_reasons(self) -> list[str]:
        """Raises CorruptError, ThrottledError or UnavailableError: the metadata table does not tell."""
        view = await asyncio.to_thread(self._read)
        own = next((each for each in view.leases if each.store_id == self._store_id), None)
        if own is None or own.has_ended:
            return ["this store has no lease"]
        if not own.replica_id:
            return ["this store has not registered its replica"]
        if not view.stores:
            return ["the containers are not distributed yet"]
        return unsettled_reasons(own, self._served(), view)

    def _read(self) -> ClusterView:
        """The map is read before the logs, and those before the leases: a store that is named later has a lease."""
        stores = self._records.container_map().map.stores
        logs = self._logs.read_many(range(self._container_count))
        leases = [stored.lease for stored in self._records.leases()]
        return ClusterView(stores, {container: stored.log for container, stored in logs.items()}, leases)


REQUEST_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply with a page. `well` False makes its status 503."""

    well: bool
    content_type: str
    content: bytes


Page = Callable[[], Answer]


def json_answer(well: bool, shown: Mapping[str, Any]) -> Answer:
    return Answer(well, "application/json", json.dumps(shown).encode())


class HealthServer:
    """Serves `pages` by path. Each request renders its page again."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = dict(pages)
        self._server: asyncio.Server | None = None
        self._connections = 0

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        if self._server is None:
            return 0
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def start(self, host: str, port: int) -> None:
        """Raises OSError if the port is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(request))
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # the client disconnected, was too slow, or does not speak HTTP
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        page = self._pages.get(path)
        if method not in (b"GET", b"HEAD") or page is None:
            served = ", ".join(sorted(self._pages))
            answer, status = json_answer(False, {"error": f"only GET {served} are served here"}), "404 Not Found"
        else:
            answer = page()
            status = "200 OK" if answer.well else "503 Service Unavailable"
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: {answer.content_type}\r\n"
            f"content-length: {len(answer.content)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else answer.content)
