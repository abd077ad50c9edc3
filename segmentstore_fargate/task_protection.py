"""Asks ECS not to stop the task of this store while logs need it.

Deployments and scale-in stop no protected task. Retirements and failures of hosts do. A task is protected for two
minutes at a time, and the protection is never removed: several processes of a task may ask for it, and it ends by
itself, also with a store that hangs. Outside of ECS nothing is asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.replication_health import logs_that_need, serving_zones
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.periodic_task import PeriodicTask, Rest

_log = logging.getLogger(__name__)

AGENT_VARIABLE: Final = "ECS_AGENT_URI"
STATE_PATH: Final = "/task-protection/v1/state"
PROTECTED_MINUTES: Final = 2
RENEW_EVERY_S: Final = 45.0
"""So short that each minute has a line `task_protected`, which the alarm `headrace-task-protected` counts."""

AGENT_TIMEOUT_S: Final = 5.0
AGENT_REPLY_BYTES_MAX: Final = 64 << 10


class TaskProtection:
    """Looks every 45 s whether logs need this store, and then protects its task.

    `find_needing` returns the containers whose log needs it; `protect` asks ECS. Both block and run in a thread. While
    the metadata table does not answer, what was found last counts.
    """

    def __init__(
        self,
        find_needing: Callable[[], tuple[int, ...]],
        protect: Callable[[], None],
        *,
        renew_every_s: float = RENEW_EVERY_S,
    ) -> None:
        self._find_needing = find_needing
        self._protect = protect
        self._renew_every_s = renew_every_s
        self._needing: tuple[int, ...] = ()
        self._task = PeriodicTask(self._renew, retry_first_s=renew_every_s)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        """Stop to look. A protection ends two minutes after it was last renewed."""
        await self._task.stop()

    async def _renew(self) -> Rest:
        try:
            self._needing = await asyncio.to_thread(self._find_needing)
        except HeadraceError as error:
            _log.warning("event=protection_not_judged logs=%d error=%r", len(self._needing), error.message)
        if self._needing:
            try:
                await asyncio.to_thread(self._protect)
                _log.warning("event=task_protected logs=%d first=%d", len(self._needing), self._needing[0])
            except UnavailableError as error:
                _log.warning("event=task_not_protected logs=%d error=%r", len(self._needing), error.message)
        return Rest.fixed(self._renew_every_s)


def task_protection(
    environment: Mapping[str, str], metadata_store: MetadataStore, clock: Clock, own: ReplicaId, container_count: int
) -> TaskProtection | None:
    """The protection of the task that this process runs in; None if this is not ECS."""
    agent = environment.get(AGENT_VARIABLE)
    if not agent:
        return None

    def find_needing() -> tuple[int, ...]:
        stored = ContainerLogRecords(metadata_store).read_many(range(container_count))
        leases = [each.lease for each in ClusterRecords(metadata_store).leases()]
        logs = {container: each.log for container, each in stored.items()}
        return logs_that_need(own, logs, serving_zones(leases, clock.now_ms()))

    return TaskProtection(find_needing, lambda: protect_task(agent))


def protect_task(agent: str) -> None:
    """Protect this task for two minutes from now.

    Raises:
        UnavailableError: the ECS agent does not answer, or refuses.
    """
    body = json.dumps({"ProtectionEnabled": True, "ExpiresInMinutes": PROTECTED_MINUTES}).encode()
    request = urllib.request.Request(
        f"{agent}{STATE_PATH}", data=body, method="PUT", headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=AGENT_TIMEOUT_S) as response:
            reply: Any = json.loads(response.read(AGENT_REPLY_BYTES_MAX))
        is_protected = reply["protection"]["ProtectionEnabled"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"the ECS agent does not protect this task: {error!r}") from error
    if is_protected is not True:
        raise UnavailableError("the ECS agent says that this task is not protected")
