"""Carries a restore out, in steps that can be repeated after an end at any point.

The first step writes what the restore has chosen, and keeps all processes of the deployment from starting until the
last one. Claims rise before anything else changes, so that a store which is still there is fenced. No step removes an
object; records are only written if they are still as they were read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from crc32c import crc32c
from pynamodb.constants import STRING

from headrace.adapters.dynamodb.record_item import RecordItem
from headrace.adapters.dynamodb.table_items import Item, TableItems, is_same, key_of, record_of
from headrace.adapters.s3.object_versions import BucketVersions
from headrace.codec.container_snapshots import ContainerSnapshot, encode_snapshot
from headrace.codec.object_names import object_prefixes, snapshot_name
from headrace.metadata.cluster_records import ClusterRecords, StoredLease, claim_key, delete_lease
from headrace.metadata.fixed_settings import (
    FixedSetting,
    finalized_release,
    fixed_setting_key,
    is_fixed_setting,
    is_restoring,
    read_fixed_setting,
)
from headrace.metadata.reader_group import read_reader_group
from headrace.metadata.restoration import (
    SETTING_KEY,
    UNFINISHED_KEY,
    RestoredContainer,
    RestoredRecord,
    UnfinishedRestore,
    begin_writes,
    claim_record,
    end_writes,
    is_special,
    log_record,
    map_record,
    pointer_record,
    read_unfinished,
)
from headrace.metadata.restored_positions import RestoredPositions
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import ConflictError, FencedError, IllegalStateError
from headrace.model.formats import check_release
from headrace.model.log_classes import ContainerLayout
from headrace.model.reader_groups import ReaderGroup
from headrace.model.restore_plan import (
    ObjectState,
    ObjectVersion,
    RestoredEpochs,
    judged,
    restored_claim,
    restored_log,
    restored_pointer,
)
from headrace.ports.chunk_storage import ChunkStorage
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import (
    READS_PER_BATCH_MAX,
    Create,
    Key,
    MetadataStore,
    WriteConflictError,
    body_text,
)
from headrace.restore.groups import GroupStates, restore_group_states
from headrace.restore.planning import (
    ContainerPlan,
    RestorePlan,
    containers_of,
    index_objects,
    judged_objects,
    needed_under,
)
from headrace.restore.segments import Expected, completed_snapshot, expected_segments
from headrace.segmentstore.tiering.owner_writes import put_once
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore

WRITES_AT_ONCE: Final = 16
MARKERS_AT_ONCE: Final = 1_000
SNAPSHOT_NUMBER: Final = 1
"""Of the one snapshot that a restore writes for a container, under an epoch that no owner has."""

_WRITE_ID: Final = "restore"

Step = Callable[[str], None]
"""Called before each step, with its name."""


@dataclass(slots=True)
class Deployment:
    """The deployment's table and bucket, and the copy of the table. `store` and `then_store` read and write the tables
    as a metadata store does, `now` and `then` as items."""

    now: TableItems
    store: MetadataStore
    then: TableItems
    then_store: MetadataStore
    bucket: BucketVersions
    chunks: ChunkStorage
    clock: Clock


@dataclass(slots=True)
class RestoreRun:
    """What a run of `apply_restore` has done; a repetition counts only what was left to do."""

    unfinished: UnfinishedRestore
    counts: Counter[str] = field(default_factory=Counter)


def apply_restore(
    deployment: Deployment, plan: RestorePlan, *, replaces_unfinished: bool = False, on_step: Step = lambda _: None
) -> RestoreRun:
    """Restore the deployment as planned.

    Raises:
        IllegalStateError: something cannot be brought back, a store may still run, or a restore from another copy is
            not finished. Code "release_too_old": the deployment is finalized for a later release.
        ConflictError: another process writes the table. Stop it, and repeat this.
        CorruptError: a record or a snapshot cannot be read.
        ThrottledError, UnavailableError: DynamoDB or S3 does not answer: repeat this.
    """
    if plan.gap_count:
        raise IllegalStateError(
            f"{plan.gap_count} objects or records cannot be brought back: headrace restore plan names them; choose a "
            "later time"
        )
    leases = check_stopped(deployment)
    run = RestoreRun(_begin(deployment, plan, replaces_unfinished=replaces_unfinished))
    restored = {each.container: each for each in run.unfinished.containers}
    containers = [each for each in containers_of(deployment.now, deployment.then) if each.container in restored]
    steps: Mapping[str, Callable[[], None]] = {
        "claims": lambda: _raise_claims(deployment, run, containers, restored),
        "objects": lambda: _bring_objects_back(deployment, run, containers),
        "import": lambda: _import_items(deployment, run),
        "removal": lambda: _remove_items(deployment, run),
        "containers": lambda: _restore_containers(deployment, run, containers, restored),
        "positions": lambda: _move_positions_back(deployment, run, restored),
        "stores": lambda: _forget_stores(deployment, run, leases),
        "end": lambda: _end(deployment, run),
    }
    for name, step in steps.items():
        on_step(name)
        step()
    return run


def check_stopped(deployment: Deployment) -> list[StoredLease]:
    """The leases of all stores, each of which has ended or expired.

    Raises:
        IllegalStateError: a lease is valid.
    """
    leases = ClusterRecords(deployment.store).leases()
    now_ms = deployment.clock.now_ms()
    running = [each.lease.store_id for each in leases if not each.lease.has_ended and not each.lease.is_expired(now_ms)]
    if running:
        raise IllegalStateError(
            f"the stores {', '.join(running[:10])} have valid leases: stop all stores, functions and the bridge, and "
            "wait until the leases have run out (12 s)"
        )
    return leases


# Steps


def _begin(deployment: Deployment, plan: RestorePlan, *, replaces_unfinished: bool) -> UnfinishedRestore:
    """Note what the restore has chosen, or find what an earlier run of the same restore has.

    If a store has claimed a container since that run, its numbers are used up, and those of the plan replace them.
    """
    store = deployment.store
    unfinished, setting = store.get_many([UNFINISHED_KEY, SETTING_KEY])
    if setting is None:
        raise IllegalStateError(f"{deployment.now.table} is not the table of a deployment that stores have used")
    check_release(finalized_release(setting))  # again: it may have been finalized since the plan was made
    former = None if unfinished is None else read_unfinished(unfinished)
    is_same_restore = former is not None and (former.table, former.at_ms) == (plan.table, plan.at_ms)
    containers = tuple(each.restored for each in plan.containers if each.restored is not None)
    if former is not None and is_same_restore:
        known = {each.container for each in former.containers}
        if all(each.container in known for each in containers) and not _overtaken(deployment, former.containers):
            return former
    if former is not None and not is_same_restore and not replaces_unfinished:
        raise IllegalStateError(
            f"a restore from the table {former.table} is not finished: repeat it, or replace it by this one with "
            "--replace-unfinished"
        )
    _check_not_overtaken(deployment, containers)  # stores may have worked since the plan was made
    begun = UnfinishedRestore(plan.table, plan.at_ms, deployment.clock.now_ms(), containers)
    try:
        store.write(*begin_writes(begun, unfinished, setting))
    except WriteConflictError as error:
        raise ConflictError("another process has begun a restore") from error
    return begun


def _raise_claims(
    deployment: Deployment,
    run: RestoreRun,
    containers: Iterable[ContainerPlan],
    restored: Mapping[int, RestoredContainer],
) -> None:
    _check_not_overtaken(deployment, restored.values())
    for each in containers:
        claim = restored_claim(each.then.claim, each.now.claim)
        _put_record(deployment, run, "claims", claim_record(restored[each.container], claim))


def _bring_objects_back(deployment: Deployment, run: RestoreRun, containers: Iterable[ContainerPlan]) -> None:
    """Remove the delete markers of objects that containers need; those of table indexes come with their records."""
    markers: list[ObjectVersion] = []
    for container in containers:
        for prefix in object_prefixes(container.container):
            needed = needed_under(prefix, container, deployment.then_store)
            for judged_object, _ in judged_objects(needed, deployment.bucket.under(prefix)):
                if judged_object is None:
                    continue
                if not judged_object.state.is_readable:
                    raise IllegalStateError(
                        f"{judged_object.name} cannot be brought back any more: it is {judged_object.state}"
                    )
                if judged_object.state is ObjectState.DELETED:
                    markers += judged_object.markers
                    run.counts["objects"] += 1
                if len(markers) >= MARKERS_AT_ONCE:
                    deployment.bucket.remove_markers(markers)
                    markers = []
    deployment.bucket.remove_markers(markers)


def _import_items(deployment: Deployment, run: RestoreRun) -> None:
    """Write each record that differs from that of the copy. It keeps the version that it had."""
    with ThreadPoolExecutor(WRITES_AT_ONCE, thread_name_prefix="restore") as threads:
        for page in deployment.then.pages():
            wanted = {key_of(item): item for item in page if not is_special(key_of(item))}
            if not wanted:
                continue
            _bring_indexes_back(deployment, run, wanted.values())
            present = deployment.now.get_many(list(wanted))
            changed = [key for key, item in wanted.items() if not is_same(item, present.get(key))]
            list(threads.map(lambda key, at=(wanted, present): deployment.now.put(at[0][key], at[1].get(key)), changed))
            run.counts["imported"] += len(changed)


def _remove_items(deployment: Deployment, run: RestoreRun) -> None:
    """Remove each record that the copy does not have, except settings: processes are configured for those of now."""
    with ThreadPoolExecutor(WRITES_AT_ONCE, thread_name_prefix="restore") as threads:
        for page in deployment.now.pages():
            items = {key_of(item): item for item in page if not is_special(key_of(item))}
            if not items:
                continue
            kept = deployment.then.get_many(list(items))
            surplus = [item for key, item in items.items() if key not in kept and not is_fixed_setting(key)]
            list(threads.map(deployment.now.delete, surplus))
            run.counts["removed"] += len(surplus)


def _restore_containers(
    deployment: Deployment,
    run: RestoreRun,
    containers: Iterable[ContainerPlan],
    restored: Mapping[int, RestoredContainer],
) -> None:
    """Write the snapshots, the pointers and the logs. The records of streams are those of the copy by now."""
    expected = expected_segments(deployment.now, deployment.store, container_layout(deployment.store))
    for each in containers:
        wanted = expected.of(each.container)
        pointer = _restored_snapshot(deployment, run, each.then.pointer, restored[each.container], wanted)
        _put_record(deployment, run, "snapshots", pointer_record(each.container, pointer))
        next_entry = restored[each.container].next_entry
        if next_entry is not None:
            log = restored_log(each.then.log, each.now.log, next_entry)
            _put_record(deployment, run, "logs", log_record(each.container, log))


def _restored_snapshot(
    deployment: Deployment,
    run: RestoreRun,
    then: SnapshotPointer | None,
    restored: RestoredContainer,
    expected: Mapping[str, Expected],
) -> SnapshotPointer:
    """The pointer of a container: to its snapshot of then, or to one with the segments that were missing in it.

    A container without a snapshot gets one, too: otherwise stores would wait for the one that had its log.
    """
    snapshot = (
        ContainerSnapshot(1, {}, (), has_records=True) if then is None else _load(deployment, restored.container, then)
    )
    snapshot, changed = completed_snapshot(snapshot, expected, deployment.store, run.unfinished.begun_ms)
    if then is not None and not changed:
        return restored_pointer(then, restored.epochs)
    run.counts["segments"] += changed
    parts = list(encode_snapshot(snapshot))
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    name = snapshot_name(restored.container, restored.epochs.pointer, SNAPSHOT_NUMBER)
    length = sum(map(len, parts))
    asyncio.run(put_once(deployment.chunks, name, parts))
    return SnapshotPointer(name, length, checksum, restored.epochs.pointer, clean=True, restored=True)


def _move_positions_back(deployment: Deployment, run: RestoreRun, restored: Mapping[int, RestoredContainer]) -> None:
    """Change the records of subscribers, retention cuts, groups and sealed segments that are ahead of tier 2, and then
    the states of groups, whose positions may be ahead, too."""
    store, groups = deployment.store, list[ReaderGroup]()
    positions = RestoredPositions(store)
    for page in deployment.now.pages():
        for record in map(record_of, page):
            write = positions.move_back(record)
            if write is not None:
                store.write(write)
                run.counts["positions"] += 1
            if (group := read_reader_group(record)) is not None:
                groups.append(group)
    states = GroupStates(store, deployment.chunks, deployment.clock, container_layout(store))
    try:
        run.counts["groups"] += restore_group_states(states, groups, positions, restored, deployment.chunks)
    except FencedError as error:
        _check_not_overtaken(deployment, restored.values())
        raise ConflictError("another process writes the claims of containers: stop it, and repeat this") from error


def _forget_stores(deployment: Deployment, run: RestoreRun, leases: Sequence[StoredLease]) -> None:
    """Remove the leases, and empty the map."""
    _check_not_overtaken(deployment, run.unfinished.containers)
    stored_leases = check_stopped(deployment)
    if [(each.lease.store_id, each.version) for each in stored_leases] != [
        (each.lease.store_id, each.version) for each in leases
    ]:
        raise ConflictError("a store has registered, or the tick has ended a lease: stop all stores and functions")
    for each in stored_leases:
        try:
            deployment.store.write(delete_lease(each))
        except WriteConflictError as error:
            raise ConflictError(f"the store {each.lease.store_id} has come back: stop it") from error
    run.counts["stores"] += len(stored_leases)
    _put_record(deployment, run, "maps", map_record())


def _end(deployment: Deployment, run: RestoreRun) -> None:
    """Let the processes of the deployment start, and note the restore."""
    store = deployment.store
    unfinished, setting = store.get_many([UNFINISHED_KEY, SETTING_KEY])
    if unfinished is None or setting is None:
        raise ConflictError("another process has ended this restore")
    if read_unfinished(unfinished) != run.unfinished:
        raise ConflictError("another process has begun a restore, or has begun this one again: let it finish")
    now_ms = deployment.clock.now_ms()
    try:
        store.write(*end_writes(run.unfinished, unfinished, setting, now_ms, run.counts.items()))
    except WriteConflictError as error:
        raise ConflictError("another process has ended this restore") from error


# Parts of steps


def _check_not_overtaken(deployment: Deployment, restored: Iterable[RestoredContainer]) -> None:
    """Raises ConflictError: a store has claimed a container since the numbers of the restore were chosen.

    With a lower claim, its next owner would use names of objects again.
    """
    overtaken = _overtaken(deployment, restored)
    if overtaken:
        raise ConflictError(
            f"a store has claimed the containers {overtaken[:10]} since the restore was planned: stop all stores, and "
            "repeat this"
        )


def _overtaken(deployment: Deployment, restored: Iterable[RestoredContainer]) -> list[int]:
    """The containers whose claims have the epochs of the restore, or newer ones, and were not written by it."""
    left, overtaken = iter(restored), []
    while batch := list(islice(left, READS_PER_BATCH_MAX)):
        items = deployment.now.get_many([claim_key(each.container) for each in batch])
        for each in batch:
            item = items.get(claim_key(each.container))
            if item is not None and not _is_below(item, each.epochs):
                overtaken.append(each.container)
    return overtaken


def _is_below(claim: Item, epochs: RestoredEpochs) -> bool:
    """Whether a claim is older than the restore, or its own."""
    version = record_of(claim).version
    is_own = version == epochs.claim and claim.get("write_id") == {STRING: _WRITE_ID}
    return is_own or version < epochs.pointer


def is_under_way(store: MetadataStore) -> bool:
    """Whether a restore is not finished. One read."""
    setting = store.get(SETTING_KEY)
    return setting is not None and is_restoring(setting)


def _bring_indexes_back(deployment: Deployment, run: RestoreRun, items: Iterable[Item]) -> None:
    for item in items:
        for needed in index_objects(item):
            judged_object = judged(needed, deployment.bucket.of(needed.name))
            if not judged_object.state.is_readable:
                raise IllegalStateError(
                    f"{judged_object.name} cannot be brought back any more: it is {judged_object.state}"
                )
            if judged_object.state is ObjectState.DELETED:
                deployment.bucket.remove_markers(judged_object.markers)
                run.counts["objects"] += 1


def _put_record(deployment: Deployment, run: RestoreRun, kind: str, wanted: RestoredRecord) -> None:
    """Write a record, unless it is there."""
    former = deployment.now.get_many([wanted.key]).get(wanted.key)
    known, version = None if former is None else record_of(former), wanted.version
    if known is not None and known.body == wanted.body and version in (None, known.version):
        return
    if version is None:
        version = 1 if known is None else known.version + 1
    deployment.now.put(_item(wanted.key, version, wanted.body), former)
    run.counts[kind] += 1


def _item(key: Key, version: int, body: Mapping[str, Any]) -> Item:
    return RecordItem(
        key.partition, key.sort, version=version, body=body_text(Create(key, body)), write_id=_WRITE_ID
    ).serialize()


def _load(deployment: Deployment, container: int, pointer: SnapshotPointer) -> ContainerSnapshot:
    """Raises CorruptError if the snapshot is not what its pointer says."""
    snapshots = SnapshotStore(deployment.store, deployment.chunks, container, pointer.epoch)
    snapshot = asyncio.run(snapshots.load(pointer))
    return replace(snapshot, segments=list(snapshot.segments))


def container_layout(store: MetadataStore) -> ContainerLayout:
    """The containers of the deployment. One read.

    Raises:
        IllegalStateError: code "release_too_old": the deployment is finalized for a later release.
    """
    keys = [fixed_setting_key(each) for each in (FixedSetting.CONTAINERS, FixedSetting.S3_CONTAINERS)]
    records = store.get_many(keys)
    check_release(finalized_release(records[0]))
    stores, s3 = (0 if each is None else read_fixed_setting(each) for each in records)
    return ContainerLayout(stores, s3)
