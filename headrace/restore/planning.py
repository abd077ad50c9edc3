"""The plan of a restore: what a copy of the table names, what the bucket still has of it, and what cannot come back.

It reads both tables and lists the versions in the bucket, and changes nothing. Memory does not grow with the number of
records: objects are compared with the records that count them while both are listed in the order of names.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.adapters.dynamodb.table_items import Item, TableItems, key_of, record_of
from headrace.adapters.s3.object_versions import BucketVersions
from headrace.codec.log_objects import container_log_prefix
from headrace.codec.object_names import object_epoch, object_prefixes, snapshot_prefix
from headrace.metadata.fixed_settings import FixedSetting, finalized_release, fixed_setting_key, read_fixed_setting
from headrace.metadata.restoration import (
    ContainerRecords,
    RestoredContainer,
    container_keys,
    object_count_key,
    read_container,
)
from headrace.model.chunks import ChunkRun, chunk_run, is_link, object_count, object_partition, packed_prefix
from headrace.model.container_logs import LogState
from headrace.model.errors import IllegalStateError
from headrace.model.formats import check_release
from headrace.model.restore_plan import (
    JudgedObject,
    NeededObject,
    ObjectState,
    ObjectVersion,
    judged,
    restored_epochs,
    restored_next_entry,
)
from headrace.model.table_indexes import TABLE_INDEX_SORT, table_index
from headrace.ports.metadata_store import READS_PER_BATCH_MAX, Key, MetadataStore, Record

CHUNKS_FIRST: Final = "chunks/"
RUNS_FIRST: Final = "run/"

COUNTS_PER_QUERY: Final = 1_000
CONTAINERS_PER_READ: Final = READS_PER_BATCH_MAX // 3
GAPS_SHOWN_MAX: Final = 1_000
"""Gaps that a plan names. It counts all of them."""

KNOWN_OBJECTS_MAX: Final = 10_000


class Gap(NamedTuple):
    """An object or a record that a restore cannot bring back, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class ContainerPlan:
    """One container: epochs in either table and in the names of objects; what its log had at the time of the restore.

    `log_bytes` counts the objects of a log in S3 that were there at that time.
    """

    container: int
    then: ContainerRecords
    now: ContainerRecords
    epoch_in_names: int | None = None
    log_bytes: int = 0

    @property
    def discards_log(self) -> bool:
        """Whether the container had a log at the time of the restore, which may have had bytes that S3 lacked."""
        if self.then.log is not None:
            return self.then.log.state is LogState.OPEN
        return self.then.claim is not None and not (self.then.pointer is not None and self.then.pointer.clean)

    @property
    def restored(self) -> RestoredContainer | None:
        """What the container gets; None if no store has ever claimed it."""
        epochs = restored_epochs((self.then.newest_epoch, self.now.newest_epoch, self.epoch_in_names))
        if epochs is None:
            return None
        return RestoredContainer(self.container, epochs, restored_next_entry(self.then.log, self.now.log))


@dataclass(slots=True)
class RestorePlan:
    """Counts of everything that a restore concerns. `deleted` objects come back; `later` ones stay, and no record names
    them after the restore. `records` counts those of the copy by the first part of their partition."""

    table: str
    at_ms: int
    containers: list[ContainerPlan] = field(default_factory=list)
    records: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    run_bytes: int = 0
    objects: Counter[ObjectState] = field(default_factory=Counter)
    deleted_bytes: int = 0
    later: int = 0
    later_bytes: int = 0
    gaps: list[Gap] = field(default_factory=list)
    gap_count: int = 0

    def note_gap(self, name: str, reason: str) -> None:
        """Count a gap, and name it if there are not too many."""
        self.gap_count += 1
        if len(self.gaps) < GAPS_SHOWN_MAX:
            self.gaps.append(Gap(name, reason))

    def note(self, judged_object: JudgedObject) -> None:
        """Count an object that a record of the copy names."""
        self.objects[judged_object.state] += 1
        if judged_object.state is ObjectState.DELETED:
            self.deleted_bytes += judged_object.length
        if not judged_object.state.is_readable:
            self.note_gap(judged_object.name, _REASONS[judged_object.state])


_REASONS: Final = {
    ObjectState.EXPIRED: "no version of the object is left",
    ObjectState.ALTERED: "it was replaced, or has another length than its record says",
}


def make_plan(
    now: TableItems, then: TableItems, then_store: MetadataStore, bucket: BucketVersions, at_ms: int
) -> RestorePlan:
    """The plan of a restore of the table `now` to what its copy `then` has. `then_store` reads the copy, too.

    Raises:
        IllegalStateError: the copy is not that of a deployment, or the bucket keeps no versions. Code
            "release_too_old": the deployment is finalized for a later release.
        CorruptError: a record of a container cannot be read.
        ThrottledError, UnavailableError: DynamoDB or S3 does not answer.
    """
    if not bucket.is_versioned():
        raise IllegalStateError("the chunk bucket keeps no versions: nothing that was deleted can come back")
    plan = RestorePlan(then.table, at_ms)
    for container in containers_of(now, then):
        plan.containers.append(container)
        _plan_objects(plan, container, then_store, bucket)
    counted = _CountedObjects(then_store)
    for page in then.pages():
        _plan_page(plan, page, bucket, counted)
    return plan


def containers_of(now: TableItems, then: TableItems) -> list[ContainerPlan]:
    """The containers of the deployment, in order, with their records. Raises as `make_plan`."""
    count = sum(_setting(then, setting) for setting in (FixedSetting.CONTAINERS, FixedSetting.S3_CONTAINERS))
    count = max(count, sum(_setting(now, setting) for setting in (FixedSetting.CONTAINERS, FixedSetting.S3_CONTAINERS)))
    if not _setting(then, FixedSetting.CONTAINERS):
        raise IllegalStateError(
            f"the table {then.table} does not say how many containers it is of: it is not the copy of a deployment's "
            "table that stores have used"
        )
    plans = []
    for first in range(0, count, CONTAINERS_PER_READ):
        batch = range(first, min(count, first + CONTAINERS_PER_READ))
        keys = [key for container in batch for key in container_keys(container)]
        then_records, now_records = then.records(keys), now.records(keys)
        plans += [
            ContainerPlan(each, read_container(each, then_records), read_container(each, now_records)) for each in batch
        ]
    return plans


def packed_objects(then: MetadataStore, container: int) -> Iterator[NeededObject]:
    """The packed objects of a container that have runs, in the order of their names."""
    after = ""
    while True:
        page = then.query(object_partition(container), first=after, limit=COUNTS_PER_QUERY)
        for record in page.records:
            count = object_count(record.body)
            if count.runs:
                yield NeededObject(record.key.sort, count.length)
        if page.next_after is None:
            return
        after = f"{page.next_after}\0"


def judged_objects(
    needed: Iterable[NeededObject], stored: Iterable[tuple[ObjectVersion, ...]]
) -> Iterator[tuple[JudgedObject | None, tuple[ObjectVersion, ...]]]:
    """Both in the order of names: each object that is needed, judged, and each other one with None."""
    versions = iter(stored)
    ahead = next(versions, None)
    for each in needed:
        while ahead is not None and ahead[0].name < each.name:
            yield None, ahead
            ahead = next(versions, None)
        if ahead is not None and ahead[0].name == each.name:
            yield judged(each, ahead), ahead
            ahead = next(versions, None)
        else:
            yield judged(each, ()), ()
    while ahead is not None:
        yield None, ahead
        ahead = next(versions, None)


def needed_under(prefix: str, container: ContainerPlan, then: MetadataStore) -> Iterable[NeededObject]:
    """The objects with this prefix that records of the container name, except those of table indexes."""
    if prefix == packed_prefix(container.container):
        return packed_objects(then, container.container)
    pointer = container.then.pointer
    if prefix == snapshot_prefix(container.container) and pointer is not None:
        return [NeededObject(pointer.object_name, pointer.length)]
    return []


def index_objects(item: Item) -> list[NeededObject]:
    """The objects that an item names, if it is the record of a table's index."""
    if key_of(item).sort != TABLE_INDEX_SORT:
        return []
    body = record_of(item).body
    index = table_index(body["created"], body)
    runs = () if index is None else index.runs
    return [NeededObject(each.name, each.data_bytes + each.sparse_bytes) for run in runs for each in run]


def _plan_objects(plan: RestorePlan, container: ContainerPlan, then: MetadataStore, bucket: BucketVersions) -> None:
    for prefix in object_prefixes(container.container):
        is_log = prefix == container_log_prefix(container.container)
        needed = needed_under(prefix, container, then)
        for judged_object, versions in judged_objects(needed, bucket.under(prefix)):
            if judged_object is not None:
                plan.note(judged_object)
            for each in versions:
                epoch = object_epoch(container.container, each.name)
                container.epoch_in_names = max(container.epoch_in_names or 0, epoch or 0)
            for each in versions[:1]:
                kept = next((version for version in versions if not version.is_marker), each)
                if is_log and kept.modified_ms <= plan.at_ms and _is_there_at(versions, plan.at_ms):
                    container.log_bytes += kept.length
                if judged_object is None and not is_log and kept.is_latest and kept.modified_ms > plan.at_ms:
                    plan.later += 1
                    plan.later_bytes += kept.length


def _is_there_at(versions: tuple[ObjectVersion, ...], at_ms: int) -> bool:
    """Whether no delete marker is older than a time."""
    return all(each.modified_ms > at_ms for each in versions if each.is_marker)


def _plan_page(plan: RestorePlan, page: list[Item], bucket: BucketVersions, counted: _CountedObjects) -> None:
    runs: list[tuple[Key, ChunkRun]] = []
    for item in page:
        key = key_of(item)
        plan.records[key.partition.partition("/")[0]] += 1
        for needed in index_objects(item):
            plan.note(judged(needed, bucket.of(needed.name)))
        run = run_in(item)
        if run is not None:
            runs.append((key, run))
            plan.runs += 1
            plan.run_bytes += run.length
    for key, reason in counted.problems(runs):
        plan.note_gap(f"{key.partition}/{key.sort}", reason)


def is_in_directory(key: Key) -> bool:
    """Whether a key is that of a run or a link of the chunk directory."""
    return key.partition.startswith(CHUNKS_FIRST) and key.sort.startswith(RUNS_FIRST)


def run_in(item: Item) -> ChunkRun | None:
    """The run in an item of the chunk directory; None for a link, and for any other item."""
    key = key_of(item)
    if not is_in_directory(key):
        return None
    record = record_of(item)
    return None if is_link(record.body) else chunk_run(key.sort, record.body, record.version)


class _CountedObjects:
    """Looks whether the objects of runs are counted, since only those were compared with the bucket.

    A restored table may have a part of a transaction that ended at that second.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lengths: OrderedDict[str, int] = OrderedDict()

    def problems(self, runs: list[tuple[Key, ChunkRun]]) -> Iterator[tuple[Key, str]]:
        """The runs whose object has no count, or is too short for them."""
        wanted = {run.object_name for _, run in runs}
        lengths = {name: self._lengths[name] for name in wanted if name in self._lengths}
        missing = sorted(wanted - lengths.keys())
        for first in range(0, len(missing), READS_PER_BATCH_MAX):
            batch = missing[first : first + READS_PER_BATCH_MAX]
            records = self._store.get_many([object_count_key(name) for name in batch])
            lengths |= {name: _counted_length(record) for name, record in zip(batch, records, strict=True)}
        self._lengths.update(lengths)
        while len(self._lengths) > KNOWN_OBJECTS_MAX:
            self._lengths.popitem(last=False)
        for key, run in runs:
            length = lengths[run.object_name]
            if not length:
                yield key, f"its object {run.object_name} is not counted: the copy has a part of a transaction only"
            elif run.position + run.length > length:
                yield key, f"its object {run.object_name} has {length} bytes only"


def _counted_length(record: Record | None) -> int:
    count = None if record is None else object_count(record.body)
    return count.length if count is not None and count.runs else 0


def _setting(table: TableItems, setting: FixedSetting) -> int:
    key = fixed_setting_key(setting)
    record = table.records([key]).get(key)
    check_release(finalized_release(record))
    return 0 if record is None else read_fixed_setting(record)
