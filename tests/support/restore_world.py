"""A small deployment of two containers as its records and objects, made without stores, and a copy of its table.

After the copy, stores have written, compacted and deleted: what the copy names is deleted in the bucket.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from crc32c import crc32c

from headrace.adapters.dynamodb.client import dynamodb_client
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.dynamodb.table_items import TableItems, key_of, record_of
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.s3.chunk_storage import S3ChunkStorage
from headrace.adapters.s3.client import s3_client
from headrace.adapters.s3.object_versions import BucketVersions
from headrace.codec.container_snapshots import ContainerSnapshot, SegmentSnapshot, encode_snapshot
from headrace.codec.events import frame_event
from headrace.codec.group_state import state_bytes, update_bytes
from headrace.codec.object_names import snapshot_name, table_indexes_prefix
from headrace.codec.stored_objects import InitialEntry, UpdatesEntry, entry_bytes
from headrace.metadata.cluster_records import snapshot_key, write_claim, write_lease, write_map, write_snapshot_pointer
from headrace.metadata.container_log import write_container_log
from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting
from headrace.metadata.history_records import (
    SealedSegment,
    create_epoch,
    extend_sealed_segments,
    shard_of_segment,
)
from headrace.metadata.reader_group import group_body, reader_group_key
from headrace.metadata.restoration import RESTORE_PARTITION
from headrace.metadata.stream import current_key, stream_body
from headrace.metadata.subscriber import subscriber_body, subscriber_key
from headrace.model.chunks import ChunkRun, chunk_partition, packed_name
from headrace.model.cluster import ContainerMap, StoreLease, StoreState
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.containers import ContainerClaim, SnapshotPointer
from headrace.model.epochs import scaled_epoch
from headrace.model.group_state import SharedConfiguration, initial_state
from headrace.model.group_updates import AcquireSegment, AddReader, BeginCheckpoint, GroupUpdate
from headrace.model.log_classes import ContainerLayout
from headrace.model.names import StreamSegmentName, segment_name
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroupConfiguration,
    new_reader_group,
    settled,
    state_stream_name,
)
from headrace.model.segments import KeyRange, segment_id
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream, new_stream
from headrace.model.subscribers import Subscriber
from headrace.model.table_indexes import TABLE_INDEX_SORT, IndexObject, TableIndex, index_body
from headrace.ports.metadata_store import Create, Delete, Key
from headrace.restore.applying import Deployment
from headrace.restore.planning import RestorePlan, make_plan
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory

CONTAINERS = 2
HOME = ContainerLayout(CONTAINERS).container_of_segment(segment_name("shop", "orders", 0))
"""The container of the stream's first segment."""

AT_MS = 1_900_000_000_000
EPOCH = 4
OBJECT = b"0123456789"
CLAIM = ContainerClaim("store-0", "10.0.0.1", 12345, "a")
AHEAD = 25
"""An offset of the stream's first segment that only the log had."""

MEMBERS = tuple(ReplicaId(bytes([each]) * 16) for each in range(3))

READ = StreamSegmentName("shop", "orders", 0)
"""The stream's first segment, as groups name it."""

Content = Mapping[Key, tuple[int, Mapping[str, Any]]]
"""Versions and bodies by key."""


def _create(stream: Stream) -> Create:
    return Create(current_key(stream.scope, stream.name), stream_body(stream))


class RestoreWorld:
    """`stream` was scaled once, by a scale of which only the log of its sealed segment knew."""

    def __init__(self) -> None:
        unique = uuid.uuid4().hex
        self._dynamodb, self._s3 = dynamodb_client(), s3_client()
        self.bucket = f"chunks-{unique}"
        self._s3.create_bucket(Bucket=self.bucket)
        self._s3.put_bucket_versioning(Bucket=self.bucket, VersioningConfiguration={"Status": "Enabled"})
        names = [f"{kind}-{unique}" for kind in ("now", "then")]
        for name in names:
            create_table(name, self._dynamodb)
        items = [TableItems(name, self._dynamodb) for name in names]
        stores = [DynamoMetadataStore(name, self._dynamodb) for name in names]
        self.clock = ManualClock(AT_MS)
        self.chunks = S3ChunkStorage(self.bucket, self._s3, concurrency=4)
        versions = BucketVersions(self.bucket, self._s3)
        self.deployment = Deployment(items[0], stores[0], items[1], stores[1], versions, self.chunks, self.clock)
        self.stream = self._make_stream("orders")
        self._fill()
        for page in items[0].pages():
            for item in page:
                items[1].put(item, None)
        self._go_on()

    def close(self) -> None:
        self.chunks.close()

    def plan(self) -> RestorePlan:
        """The plan of a restore to the copy."""
        made = self.deployment
        return make_plan(made.now, made.then, made.then_store, made.bucket, AT_MS)

    def content(self) -> Content:
        """All records of the deployment's table, except those of restores."""
        records = [record_of(item) for page in self.deployment.now.pages() for item in page]
        return {each.key: (each.version, each.body) for each in records if each.key.partition != RESTORE_PARTITION}

    def versions(self) -> set[str]:
        """The ids of all versions in the bucket that are objects."""
        found = self.deployment.bucket.under("")
        return {each.version_id for versions in found for each in versions if not each.is_marker}

    def is_there(self, name: str) -> bool:
        """Whether an object can be read."""
        return any(each.is_latest and not each.is_marker for each in self.deployment.bucket.of(name))

    def expire(self, name: str) -> None:
        """Remove all versions of an object, as S3 does after a week."""
        for each in self.deployment.bucket.of(name):
            self._s3.delete_object(Bucket=self.bucket, Key=name, VersionId=each.version_id)

    def put(self, name: str, body: bytes) -> None:
        """Write an object, also over another one."""
        self._s3.put_object(Bucket=self.bucket, Key=name, Body=body)

    # What the deployment has at the time of the copy

    @property
    def segment(self) -> str:
        """The stream's first segment."""
        return segment_name("shop", "orders", 0)

    @property
    def packed(self) -> str:
        return packed_name(HOME, EPOCH, 1)

    @property
    def snapshot(self) -> str:
        return snapshot_name(HOME, EPOCH, 1)

    @property
    def index(self) -> str:
        return f"{table_indexes_prefix(HOME)}{'0' * 32}-{7:013d}/{EPOCH:010d}-{1:010d}"

    def _make_stream(self, name: str) -> Stream:
        configuration = StreamConfiguration(ScalingPolicy.fixed(1))
        return replace(new_stream("shop", name, configuration, 0, 1_000), state=StreamState.ACTIVE, pending=None)

    def _fill(self) -> None:
        made, store = self.deployment, self.deployment.store
        check_fixed_setting(store, FixedSetting.CONTAINERS, CONTAINERS)
        for container in range(CONTAINERS):
            store.write(write_claim(container, CLAIM, None))
            for version in range(EPOCH):
                store.write(write_claim(container, CLAIM, version))
            log = ContainerLog(3, LogState.OPEN, MEMBERS, (LedgerStart(EPOCH, 50),), 60)
            store.write(write_container_log(container, log, 0))
        epoch = self.stream.epoch
        halves = [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)]
        scaled = scaled_epoch(epoch, [0], halves, 2_000)
        stream = replace(self.stream, epoch=scaled, recorded_epoch=1)
        store.write(_create(stream), *create_epoch(stream, epoch), *create_epoch(stream, scaled))
        sealed = extend_sealed_segments(store, stream, shard_of_segment(0), {0: SealedSegment(AHEAD, 1)})
        assert sealed is not None
        store.write(sealed)
        place = PlacedCut(StreamCut.of("shop", "orders", {0: AHEAD}), epoch.segments)
        store.write(
            Create(subscriber_key("shop", "orders", 0, "mail"), subscriber_body(Subscriber("mail", 0, place, 1)))
        )
        directory = ChunkDirectory(store, HOME, EPOCH, made.clock)
        run = ChunkRun(0, len(OBJECT), self.packed, 0)
        asyncio.run(directory.add([(self.segment, run)], {self.packed: len(OBJECT)}))
        for name in (self.packed, self.index):
            asyncio.run(self.chunks.put(name, [OBJECT]))
        index = TableIndex(1, ((IndexObject(self.index, b"k", 6, 4, 1, 1, 1, 1),),))
        store.write(Create(Key(chunk_partition("shop/stock_kvtable/0"), TABLE_INDEX_SORT), index_body(7, index)))
        self._put_snapshot(self.snapshot, None)
        self._make_group()

    def _make_group(self) -> None:
        """A group whose reader has read what only the log had, while a checkpoint waited for it."""
        store, made = self.deployment.store, self._make_stream(state_stream_name("billing"))
        start = StreamCut.of("shop", "orders", {0: AHEAD})
        configuration = ReaderGroupConfiguration((GroupStream("shop", "orders", start),))
        self.group = settled(new_reader_group("shop", "billing", str(uuid.UUID(int=1)), configuration, 0))
        store.write(
            Create(reader_group_key("shop", "billing"), group_body(self.group)),
            _create(made),
            *create_epoch(made, made.epoch),
        )
        self.put_state([AddReader("worker"), AcquireSegment("worker", READ), BeginCheckpoint("waiting")])

    def put_state(self, updates: Sequence[GroupUpdate]) -> None:
        """Write the first state of the group and these updates, and have them in tier 2."""
        configuration = SharedConfiguration({"shop/orders": {0: AHEAD}}, {"shop/orders": None}, generation=0)
        self.group_state = initial_state(configuration, {READ: AHEAD}, {})
        first = InitialEntry(state_bytes(self.group_state))
        second = UpdatesEntry([update_bytes(each) for each in updates])
        body = frame_event(entry_bytes(first)) + frame_event(entry_bytes(second))
        for update in updates:
            self.group_state = update.applied_to(self.group_state)
        container = ContainerLayout(CONTAINERS).container_of_segment(self.state_segment)
        self.state_object = packed_name(container, EPOCH, 2)
        directory = ChunkDirectory(self.deployment.store, container, EPOCH, self.deployment.clock)
        asyncio.run(self.chunks.put(self.state_object, [body]))
        run = ChunkRun(0, len(body), self.state_object, 0)
        asyncio.run(directory.add([(self.state_segment, run)], {self.state_object: len(body)}))

    @property
    def state_segment(self) -> str:
        """The segment with the state of the group."""
        return segment_name("shop", state_stream_name("billing"), 0)

    def put_copied_snapshot(self, container: int, *segments: SegmentSnapshot) -> None:
        """Let the copy name a snapshot that has these segments of a container, too."""
        then, name = self.deployment.then_store, snapshot_name(container, EPOCH, 7)
        orders = [SegmentSnapshot(1, self.segment, 0, len(OBJECT), False, 1, {})] if container == HOME else []
        body = b"".join(encode_snapshot(ContainerSnapshot(10, {}, [*orders, *segments])))
        asyncio.run(self.chunks.put(name, [body]))
        pointer = SnapshotPointer(name, len(body), crc32c(body), EPOCH, clean=False)
        record = then.get(snapshot_key(container))
        then.write(write_snapshot_pointer(container, pointer, None if record is None else record.version))

    def _put_snapshot(self, name: str, version: int | None) -> None:
        known = SegmentSnapshot(1, self.segment, 0, len(OBJECT), False, 1, {})
        body = b"".join(encode_snapshot(ContainerSnapshot(2, {}, [known])))
        asyncio.run(self.chunks.put(name, [body]))
        pointer = SnapshotPointer(name, len(body), crc32c(body), EPOCH, clean=False)
        self.deployment.store.write(write_snapshot_pointer(HOME, pointer, version))

    def _go_on(self) -> None:
        """What happens after the copy."""
        made, store = self.deployment, self.deployment.store
        other = self._make_stream("invoices")
        store.write(_create(other), *create_epoch(other, other.epoch))
        for key in [key_of(item) for page in made.now.pages() for item in page]:
            if key.partition.startswith(("chunks/", "objects/", "stream/shop/orders")):
                store.write(Delete(key, None))
        self.later = packed_name(HOME, EPOCH + 3, 1)
        asyncio.run(self.chunks.put(self.later, [OBJECT]))
        self._put_snapshot(snapshot_name(HOME, EPOCH + 3, 1), 0)
        asyncio.run(self.chunks.delete([self.packed, self.index, self.snapshot, self.state_object]))
        for version in (EPOCH, EPOCH + 1):
            store.write(write_claim(HOME, CLAIM, version))
        store.write(write_map(ContainerMap(dict.fromkeys(range(CONTAINERS), "store-0")), None))
        lease = StoreLease("store-0", "10.0.0.1", 12345, "a", 1, "volume", "", 0, state=StoreState.LOST, ended_ms=1)
        store.write(write_lease(lease, None))

    @property
    def halves(self) -> list[str]:
        """The segments of the stream's second epoch, of which no store had told tier 2."""
        return [segment_name("shop", "orders", segment_id(1, number)) for number in (1, 2)]
