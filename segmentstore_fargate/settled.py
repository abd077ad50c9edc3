"""Sets the latch of the health check (probe.py) when this process of a store has taken its place.

The latch is a file on the volume. It is never removed: the health check of a store that was once settled answers for
its processes and journals alone. If it failed while DynamoDB, S3 or another store is away, ECS would replace the stores
of all zones within minutes and delete every volume.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.errors import HeadraceError
from headrace.model.settled_stores import ClusterView, unsettled_reasons
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from segmentstore_fargate.layout import mark_settled, was_settled

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
