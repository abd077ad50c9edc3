"""A restore of the deployment to an earlier time: the record of one that is not finished, and of those that are.

No process of this deployment starts while a restore is not finished: see `fixed_settings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.metadata.cluster_records import (
    MAP_KEY,
    STORES_FIRST,
    claim_body,
    claim_key,
    container_map_body,
    read_claim,
    read_snapshot_pointer,
    snapshot_body,
    snapshot_key,
)
from headrace.metadata.container_log import container_log_body, container_log_key, read_container_log
from headrace.metadata.fixed_settings import (
    FixedSetting,
    fixed_setting_key,
    restored_body,
    restoring_body,
)
from headrace.metadata.record_layout import decoded, time_prefix, versioned
from headrace.metadata.trust import TRUST_PARTITION
from headrace.model.cluster import ContainerMap
from headrace.model.container_logs import ContainerLog
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim, SnapshotPointer
from headrace.model.restore_plan import RestoredEpochs
from headrace.ports.metadata_store import Body, Create, Delete, Key, Record, Replace, Write

RESTORE_PARTITION: Final = "restore"
UNFINISHED_KEY: Final = Key(RESTORE_PARTITION, "unfinished")
DONE_FIRST: Final = "done/"


class RestoredContainer(NamedTuple):
    """What a container gets. `next_entry` is None for a container without a log."""

    container: int
    epochs: RestoredEpochs
    next_entry: int | None


@dataclass(frozen=True, slots=True)
class UnfinishedRestore:
    """A restore from `table` to the time `at_ms`, begun at `begun_ms`, with the numbers that it has chosen.

    A repetition uses the same numbers, and not higher ones.
    """

    table: str
    at_ms: int
    begun_ms: int
    containers: tuple[RestoredContainer, ...]


def unfinished_body(restore: UnfinishedRestore) -> dict[str, Any]:
    """Containers as [container, epoch of the pointer, next entry]."""
    rows = [[each.container, each.epochs.pointer, each.next_entry] for each in restore.containers]
    return versioned(table=restore.table, at=restore.at_ms, begun=restore.begun_ms, containers=rows)


def decode_unfinished(body: Body) -> UnfinishedRestore:
    """Raises CorruptError: the body is not such a record."""
    return decoded("unfinished restore", body, _unfinished)


def done_key(at_ms: int, done_ms: int) -> Key:
    """The key of the record of a restore to the time `at_ms` that ended at `done_ms`."""
    return Key(RESTORE_PARTITION, f"{DONE_FIRST}{time_prefix(done_ms)}/{at_ms}")


def done_body(restore: UnfinishedRestore, done_ms: int, counts: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """With the counts of the last run of `headrace restore apply`."""
    return versioned(
        table=restore.table, at=restore.at_ms, begun=restore.begun_ms, done=done_ms, counts=dict(sorted(counts))
    )


def read_unfinished(record: Record) -> UnfinishedRestore:
    """Raises CorruptError: the record is not that of an unfinished restore."""
    return decode_unfinished(record.body)


def begin_writes(begun: UnfinishedRestore, former: Record | None, setting: Record) -> list[Write]:
    """The writes that note a restore, in the place of a `former` one, and keep processes from starting.

    `setting` is the record of the number of containers, which each process reads when it starts.
    """
    body = unfinished_body(begun)
    first = Create(UNFINISHED_KEY, body) if former is None else Replace(UNFINISHED_KEY, body, former.version)
    return [first, Replace(SETTING_KEY, restoring_body(setting, begun.at_ms), setting.version)]


def end_writes(
    ended: UnfinishedRestore, noted: Record, setting: Record, now_ms: int, counts: Iterable[tuple[str, int]]
) -> list[Write]:
    """The writes that note the end of a restore, and let processes start."""
    return [
        Create(done_key(ended.at_ms, now_ms), done_body(ended, now_ms, counts)),
        Delete(UNFINISHED_KEY, noted.version),
        Replace(SETTING_KEY, restored_body(setting), setting.version),
    ]


def _unfinished(body: Body) -> UnfinishedRestore:
    containers = tuple(
        RestoredContainer(int(container), RestoredEpochs(int(epoch), int(epoch) + 1), _number(next_entry))
        for container, epoch, next_entry in body["containers"]
    )
    return UnfinishedRestore(str(body["table"]), int(body["at"]), int(body["begun"]), containers)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


# The records of the containers: of those of two tables a restore makes others.

SETTING_KEY: Final = fixed_setting_key(FixedSetting.CONTAINERS)

_KINDS: Final = ("container/", "snapshot/", "log/", STORES_FIRST)


@dataclass(slots=True)
class ContainerRecords:
    """The records of one container in one table. `epoch` is the version of the claim."""

    claim: ContainerClaim | None = None
    epoch: int | None = None
    pointer: SnapshotPointer | None = None
    log: ContainerLog | None = None

    @property
    def newest_epoch(self) -> int | None:
        """The newest epoch that a record of the container names; None if none does."""
        named = [self.epoch, None if self.pointer is None else self.pointer.epoch]
        named += [] if self.log is None else [each.epoch for each in self.log.ledgers[-1:]]
        return max((each for each in named if each is not None), default=None)


class RestoredRecord(NamedTuple):
    """A record that a restore writes. `version` is None if it is to follow the one that is there."""

    key: Key
    body: Body
    version: int | None = None


def container_keys(container: int) -> tuple[Key, Key, Key]:
    """The keys of a container's claim, snapshot pointer and log."""
    return claim_key(container), snapshot_key(container), container_log_key(container)


def read_container(container: int, records: Mapping[Key, Record]) -> ContainerRecords:
    """The records of a container among these; raises CorruptError if one cannot be read."""
    claim, pointer, log = (records.get(key) for key in container_keys(container))
    return ContainerRecords(
        None if claim is None else read_claim(claim),
        None if claim is None else claim.version,
        None if pointer is None else read_snapshot_pointer(pointer),
        None if log is None else read_container_log(log),
    )


def claim_record(restored: RestoredContainer, claim: ContainerClaim) -> RestoredRecord:
    """The claim of a container, under its restored epoch."""
    return RestoredRecord(claim_key(restored.container), claim_body(claim), restored.epochs.claim)


def pointer_record(container: int, pointer: SnapshotPointer) -> RestoredRecord:
    """The snapshot pointer of a container."""
    return RestoredRecord(snapshot_key(container), snapshot_body(pointer))


def log_record(container: int, log: ContainerLog) -> RestoredRecord:
    """The record of a container's log."""
    return RestoredRecord(container_log_key(container), container_log_body(log))


def map_record() -> RestoredRecord:
    """The map of the containers, without stores."""
    return RestoredRecord(MAP_KEY, container_map_body(ContainerMap()))


def is_special(key: Key) -> bool:
    """Whether a restore does not copy a record as it is: those of containers and stores, of certificates, of restores.

    Certificates are those of now, since their keys are.
    """
    if key.partition in (RESTORE_PARTITION, TRUST_PARTITION) or key in (SETTING_KEY, MAP_KEY):
        return True
    return key.partition == CLUSTER_PARTITION and key.sort.startswith(_KINDS)


def object_count_key(object_name: str) -> Key:
    """The key of the count of a packed object, whose container its name tells."""
    return Key(f"{OBJECTS_FIRST}{object_name.partition('/')[0]}", object_name)


OBJECTS_FIRST: Final = "objects/"
