"""Segment store processes that replicate their logs, as tasks in three zones, with an AWS emulator."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fuzz.checker import WrongStateError
from fuzz.network_cuts import LISTEN_HOST, RELAY_HOST, NetworkCuts, free_port
from fuzz.other_code import environment_of
from fuzz.stalling_store import STALLED_WHILE
from fuzz.store_process import StoreProcess, aws_emulator
from headrace import topology
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.system_clock import SystemClock
from headrace.controller.ticks.assign_containers import detect_failed_stores
from headrace.local.resources import Resources, aws_client
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.metadata.fixed_settings import FixedSetting, fixed_setting_body, fixed_setting_key
from headrace.model.container_logs import COPIES
from headrace.ports.metadata_store import Create
from segmentstore_fargate.registration import TASK_ARN_LABEL, TASK_METADATA_VARIABLE, TASK_REVISION_LABEL

CONTAINERS: Final = 6
HOST: Final = "127.0.0.1"
TICK_S: Final = 10.0
_STALLED: Final = "stalled"
_POLL_S: Final = 0.1
MOVED_S: Final = 180.0
"""Beyond the pause after a failed hand-over and the next attempt."""

COMPLETE_S: Final = 60.0
"""Far beyond what three copies of every log take: it only turns a hang into a failure."""


@dataclass(slots=True)
class Store:
    """One store, its zone, and its directory, which is the volume of its task.

    `runs_this_tree`: it runs the code of this tree, not that of another release. Only its disk can be stalled.
    """

    store_id: str
    zone: str
    directory: Path
    process: StoreProcess
    runs_this_tree: bool

    def lose(self) -> None:
        """kill -9, and the volume goes with the process."""
        gone = self.directory.with_name(f"{self.directory.name}-gone")
        self.directory.rename(gone)
        self.process.kill()
        self.process.reap()
        shutil.rmtree(gone)

    def empty(self) -> None:
        """Remove the volume of a store that has ended."""
        shutil.rmtree(self.directory)

    def stall_disk(self) -> None:
        """No write or sync of its journal ends any more, and none fails.

        Raises:
            ValueError: the store runs another release, whose disk cannot be stalled.
        """
        if not self.runs_this_tree:
            raise ValueError(f"{self.store_id} runs another release: its disk cannot be stalled")
        self._stalled.touch()

    def end_stall(self) -> None:
        self._stalled.unlink()

    @property
    def _stalled(self) -> Path:
        return self.directory.with_name(_STALLED)

    def kill(self) -> None:
        """kill -9; the volume stays."""
        self.process.kill()
        self.process.reap()


class StoreGroup:
    """All stores of one deployment. `environment` is what every store gets. With `cuts`, relays lie between them.

    With `other`, the directory of another release's code, every second store that is made runs that.
    """

    def __init__(
        self,
        directory: Path,
        resources: Resources,
        environment: Mapping[str, str],
        cuts: NetworkCuts | None,
        other: Path | None = None,
    ) -> None:
        self._directory = directory.resolve()  # stores get its URI
        self._other = other
        self._endpoint = resources.endpoint
        self._cuts = cuts
        self._environment = environment
        self._containers = range(int(environment["HEADRACE_CONTAINER_COUNT"]))
        self._clock = SystemClock()
        self.metadata = DynamoMetadataStore(resources.table, aws_client("dynamodb", resources.endpoint))
        self.stores: list[Store] = []
        """Those that are to serve."""

        self.made: list[Store] = []

    def add(self, zone: str, revision: int = 1) -> Store:
        """A store with an empty volume, not started yet."""
        store_id = f"{zone}-{len(self.made)}"
        home = self._directory / store_id
        home.mkdir()
        task = home / "task.json"
        task.write_text(_task(store_id, revision))
        environment = {
            **self._environment,
            TASK_METADATA_VARIABLE: task.as_uri(),
            "HEADRACE_STORE_ID": store_id,
            "HEADRACE_ZONE": zone,
            "HEADRACE_DATA_DIR": str(home / "data"),
            STALLED_WHILE: str(home / _STALLED),
            **self._relayed(store_id),
        }
        other, module = self._code(), "fuzz.stalling_store"
        if other:
            environment, module = environment | other, topology.SEGMENT_STORES.module
        store = Store(store_id, zone, home / "data", StoreProcess(environment, home, module), runs_this_tree=not other)
        self.stores.append(store)
        self.made.append(store)
        return store

    def _code(self) -> dict[str, str]:
        """What the next store is told so that it runs the code that is its turn."""
        return {} if self._other is None or len(self.made) % 2 == 0 else environment_of(self._other)

    def _relayed(self, store_id: str) -> dict[str, str]:
        """What a store is told so that others reach it, and it reaches AWS, through relays."""
        if self._cuts is None:
            return {}
        port, replica_port = free_port(), free_port()
        self._cuts.to_store(port)
        self._cuts.between_stores(store_id, replica_port)
        aws = urlsplit(self._endpoint)
        return {
            "HEADRACE_LISTEN_HOST": LISTEN_HOST,
            "HEADRACE_ADVERTISED_HOST": RELAY_HOST,
            "HEADRACE_LISTEN_PORT": str(port),
            "HEADRACE_REPLICA_PORT": str(replica_port),
            "AWS_ENDPOINT_URL": f"http://{RELAY_HOST}:{self._cuts.to_aws(store_id, aws.hostname or '', aws.port or 0)}",
        }

    def start(self, *stores: Store) -> None:
        """Start them together; returns when each serves. Raises LocalStackError."""
        for store in stores:
            store.directory.mkdir(exist_ok=True)
        with ThreadPoolExecutor(max(1, len(stores))) as threads:
            list(threads.map(lambda store: store.process.start(), stores))

    def stop(self, *stores: Store) -> bool:
        """Stop them together. Returns whether the graceful shutdown of each one succeeded."""
        with ThreadPoolExecutor(max(1, len(stores))) as threads:
            return all(threads.map(lambda store: store.process.stop(), stores))

    def missing_copies(self) -> list[int]:
        """The containers whose logs do not have three members on volumes that are there."""
        logs = ContainerLogRecords(self.metadata).read_many(self._containers)
        alive = {bytes.fromhex(each.lease.replica_id) for each in ClusterRecords(self.metadata).leases()}
        return [
            container
            for container, (log, _) in logs.items()
            if log is None or len(log.members) < COPIES or not alive >= set(log.members)
        ]

    def keep_evidence(self, directory: Path) -> None:
        """Copy logs with the stacks of all threads, and what the metadata say. All stores end."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for store in self.made:
            if store.process.is_running:
                store.process.abort()
        found = ClusterRecords(self.metadata)
        records = [f"{each}\n" for each in found.leases()]
        records += [f"{each}\n" for each in found.containers(self._containers)]
        records += [f"{each}\n" for each in ContainerLogRecords(self.metadata).read_many(self._containers).items()]
        records.append(f"{found.container_map()}\n")
        (directory / "metadata.txt").write_text("".join(records))
        for store in self.made:
            if store.process.was_started:
                store.process.reap()  # its log is complete then
        for log in self._directory.rglob("*.log"):
            shutil.copy(log, directory / "-".join(log.relative_to(self._directory).parts))

    def copies(self) -> dict[int, int]:
        """The number of members of each log that has a record with members."""
        logs = ContainerLogRecords(self.metadata).read_many(self._containers)
        return {container: len(log.members) for container, (log, _) in logs.items() if log is not None and log.members}

    def store_of(self, replica: str) -> str:
        """The id of the store with this replica; "" if no store registered with it."""
        leases = ClusterRecords(self.metadata).leases()
        return next((each.lease.store_id for each in leases if each.lease.replica_id == replica), "")

    def is_member(self, store: Store) -> bool:
        """Whether a store is a member of any log."""
        lease = ClusterRecords(self.metadata).lease(store.store_id)
        logs = ContainerLogRecords(self.metadata).read_many(self._containers).values()
        members = {member.hex() for log, _ in logs if log is not None for member in log.members}
        return lease is not None and lease.lease.replica_id in members

    def owners(self) -> dict[int, str]:
        """The store that has claimed each container."""
        found = ClusterRecords(self.metadata).containers(self._containers)
        return {each.container: each.claim.store_id for each in found if each.claim is not None}

    def moving(self) -> list[int]:
        """The containers that are not served by the store that the map gives them to."""
        owners, stores = self.owners(), ClusterRecords(self.metadata).container_map().map.stores
        return [each for each in self._containers if owners.get(each) != stores.get(each)]

    async def at_rest(self) -> None:
        """Wait until every log has three members, and no container moves."""
        started_s = self._clock.monotonic_s()
        while moving := await asyncio.to_thread(self.moving):
            if self._clock.monotonic_s() - started_s > MOVED_S:
                raise WrongStateError(f"containers {moving} have not moved after {MOVED_S:.0f} s")
            await asyncio.sleep(_POLL_S)
        await self.complete()

    async def watch(self) -> None:
        """Do until it is cancelled what the controller's tick does: end expired leases, and assign containers."""
        while True:
            await asyncio.to_thread(detect_failed_stores, self.metadata, self._clock, len(self._containers))
            await asyncio.sleep(TICK_S)

    async def complete(self) -> float:
        """Wait until every log has three members again; how long it took, in seconds."""
        started_s = self._clock.monotonic_s()
        while missing := await asyncio.to_thread(self.missing_copies):
            if self._clock.monotonic_s() - started_s > COMPLETE_S:
                raise WrongStateError(f"the logs of containers {missing} lack copies after {COMPLETE_S:.0f} s")
            await asyncio.sleep(_POLL_S)
        return self._clock.monotonic_s() - started_s


@contextmanager
def replicated_stores(
    directory: Path, settings: Mapping[str, object], cuts: NetworkCuts | None = None, other: Path | None = None
) -> Iterator[StoreGroup]:
    """A deployment without stores. `settings` are environment variables of each store, without their prefix.

    `cuts` and `other` are as in `StoreGroup`.
    """
    with aws_emulator(directory) as (resources, environment):
        environment |= {
            "HEADRACE_CONTAINER_COUNT": str(CONTAINERS),
            "HEADRACE_COPIES": str(COPIES),
            "HEADRACE_REPLICA_SECRET": secrets.token_hex(32),
            "HEADRACE_CLUSTER_ID": secrets.token_hex(16),
            "HEADRACE_CACHE_BYTES": str(64 << 20),
            "HEADRACE_JOURNAL_FILE_BYTES": str(32 << 20),
            "HEADRACE_STOP_DEADLINE_S": "20",
            "PYTHONFAULTHANDLER": "1",
            **{f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()},
        }
        group = StoreGroup(directory, resources, environment, cuts, other)
        try:
            if other is not None:
                # As if the other release had begun the deployment. It would refuse one that this tree has begun.
                group.metadata.write(Create(fixed_setting_key(FixedSetting.CONTAINERS), fixed_setting_body(CONTAINERS)))
            if cuts is not None:
                cuts.name_of = group.store_of
            yield group
        finally:
            for store in group.made:
                if store.process.was_started:
                    store.process.reap()


def _task(store_id: str, revision: int) -> str:
    """What ECS says of the task of a store, as far as a store asks."""
    labels = {TASK_ARN_LABEL: f"arn:aws:ecs:us-east-1:0:task/test/{store_id}", TASK_REVISION_LABEL: str(revision)}
    return json.dumps({"Labels": labels, "Networks": [{"IPv4Addresses": [HOST]}]})
