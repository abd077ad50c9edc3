"""A restore of a small deployment, also one that ends before each of its changes and is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from botocore.client import BaseClient
from killed_restore import CHANGES
from restore_world import AHEAD, AT_MS, CLAIM, CONTAINERS, EPOCH, HOME, MEMBERS, OBJECT, READ, Content, RestoreWorld

from headrace.codec.container_snapshots import SegmentSnapshot
from headrace.controller.services.watermark_service import WatermarkService
from headrace.metadata.cluster_records import (
    ClusterRecords,
    decode_snapshot_pointer,
    lease_key,
    snapshot_key,
    write_claim,
    write_lease,
    write_snapshot_pointer,
)
from headrace.metadata.container_log import ContainerLogRecords
from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting, finalized_body, fixed_setting_key
from headrace.metadata.history_records import HistoryRecords, create_epoch
from headrace.metadata.reader_group import ReaderGroupRecords, group_body, reader_group_key
from headrace.metadata.restoration import UNFINISHED_KEY, read_unfinished, unfinished_body
from headrace.metadata.stream import current_key, stream_body
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import SubscriberRecords
from headrace.metadata.watermark_records import (
    decode_watermark_state,
    decode_writer_mark,
    watermark_key,
    watermark_state_body,
    writer_mark_body,
    writer_mark_key,
)
from headrace.model.chunks import ChunkRun, chunk_body, chunk_partition, chunk_run
from headrace.model.cluster import StoreLease
from headrace.model.container_logs import LOST_ENTRIES_MAX, LogState
from headrace.model.containers import SnapshotPointer
from headrace.model.epochs import scaled_epoch
from headrace.model.errors import ConflictError, IllegalStateError, NotFoundError
from headrace.model.group_state import GroupState
from headrace.model.log_classes import ContainerLayout
from headrace.model.segment_attributes import EVENT_COUNT, REVISION_MARK
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import StreamCut
from headrace.model.watermarks import Watermark, WatermarkState
from headrace.model.writer_marks import WriterMark, positions_of
from headrace.ports.metadata_store import Create, Replace
from headrace.restore import applying
from headrace.restore.applying import apply_restore, is_under_way
from headrace.restore.groups import GroupStates
from headrace.restore.verification import verify
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory
from headrace.segmentstore.tiering.restoration import restore_container
from headrace.segmentstore.tiering.snapshot_store import SnapshotStore


class KilledError(BaseException):
    """The end of the process: no handler of errors runs."""


@contextmanager
def killed_after(changes: int, monkeypatch: pytest.MonkeyPatch, *, answered: bool = True) -> Iterator[None]:
    """Within the block no more than so many changes are made. If not `answered`, the answer of the last one is lost."""
    left = [changes]
    send = BaseClient._make_api_call  # type: ignore[attr-defined]

    def counted(client: BaseClient, operation: str, parameters: Any) -> Any:
        if operation not in CHANGES:
            return send(client, operation, parameters)
        if not left[0]:
            raise KilledError
        left[0] -= 1
        answer = send(client, operation, parameters)
        if not left[0] and not answered:
            raise KilledError
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(BaseClient, "_make_api_call", counted)
        yield


def restored(world: RestoreWorld) -> Content:
    """Restores the deployment in one run."""
    apply_restore(world.deployment, world.plan())
    return world.content()


@pytest.mark.parametrize("at_once", [1, 2, applying.MARKERS_AT_ONCE])
def test_objects_and_records_of_then_are_back(world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, at_once: int):
    monkeypatch.setattr(applying, "MARKERS_AT_ONCE", at_once)
    before = world.versions()
    restored(world)
    assert world.is_there(world.packed)
    assert world.is_there(world.snapshot)
    assert world.is_there(world.index)
    records = StreamRecords(world.deployment.store)
    assert records.get("shop", "orders").stream.epoch.number == 1
    with pytest.raises(NotFoundError):
        records.get("shop", "invoices")
    assert before < world.versions(), "no version goes, and a snapshot came"
    assert world.is_there(world.later), "what is newer stays"


def test_claims_and_logs_are_above_all_that_was_used(world: RestoreWorld):
    restored(world)
    states = ClusterRecords(world.deployment.store).containers(range(CONTAINERS))
    highest_in_names = EPOCH + 3
    epochs = [each.epoch or 0 for each in states]
    assert epochs[HOME] > highest_in_names
    assert min(epochs) > EPOCH
    assert [each.hold for each in states] == [None] * CONTAINERS, "no store is waited for"
    for stored in ContainerLogRecords(world.deployment.store).read_many(range(CONTAINERS)).values():
        assert stored.log is not None
        assert (stored.log.state, stored.log.next_entry) == (LogState.LOST, 60 + LOST_ENTRIES_MAX)
        assert not set(stored.log.members) & set(MEMBERS)


def test_stores_and_their_map_are_forgotten(world: RestoreWorld):
    restored(world)
    records = ClusterRecords(world.deployment.store)
    assert records.leases() == []
    assert records.container_map().map.stores == {}


def test_segments_that_only_a_log_knew_are_in_the_snapshot(world: RestoreWorld):
    restored(world)
    store = world.deployment.store
    found: dict[str, SegmentSnapshot] = {}
    for container in range(CONTAINERS):
        record = store.get(snapshot_key(container))
        if record is not None:
            pointer = decode_snapshot_pointer(record.body)
            snapshots = SnapshotStore(store, world.chunks, container, 1)
            found |= {each.name: each for each in asyncio.run(snapshots.load(pointer)).segments}
    assert set(found) == {world.segment, *world.halves}
    assert found[world.segment].sealed
    assert not any(found[name].sealed for name in world.halves)


def test_no_record_is_ahead_of_tier_2(world: RestoreWorld):
    restored(world)
    store = world.deployment.store
    stream = StreamRecords(store).get("shop", "orders").stream
    assert HistoryRecords(store).sealed_segments(stream, [0])[0].length == len(OBJECT)
    (subscriber,) = SubscriberRecords(store).all(stream)
    assert subscriber.position.cut.offsets == {0: len(OBJECT)}


def state_of_group(world: RestoreWorld) -> GroupState:
    """The state that the next reader of the group finds in tier 2."""
    made = world.deployment
    found = GroupStates(made.store, made.chunks, made.clock, ContainerLayout(CONTAINERS)).load(world.group)
    assert found is not None
    return found.state


def test_group_is_moved_back_and_has_no_reader(world: RestoreWorld):
    assert world.group_state.readers == ("worker",)
    assert world.group_state.positions == {READ: AHEAD}
    restored(world)
    state = state_of_group(world)
    assert state.unassigned == {READ: len(OBJECT)}
    assert state.readers == ()
    assert not state.checkpoints.is_ongoing
    assert not state.is_updating
    (stream,) = ReaderGroupRecords(world.deployment.store).get("shop", "billing").group.configuration.streams
    assert stream.start == StreamCut.of("shop", "orders", {0: len(OBJECT)})


def test_group_with_a_lost_reset_looks_for_it(world: RestoreWorld):
    """The controller had accepted it, and only the log had the state that followed."""
    key, body = reader_group_key("shop", "billing"), group_body(replace(world.group, generation=1))
    world.deployment.then_store.write(Replace(key, body, 0))
    restored(world)
    assert state_of_group(world).is_updating


def test_group_that_cannot_be_read_is_left_alone(world: RestoreWorld):
    """No entry is a part of another one; the other groups and all streams are restored."""
    run = ChunkRun(0, 9, world.state_object, 0)
    (old,) = world.deployment.then_store.query(chunk_partition(world.state_segment), limit=2).records
    world.deployment.then_store.write(Replace(old.key, chunk_body(run), old.version))
    apply_restore(world.deployment, world.plan())
    made = world.deployment
    findings = {each.check: each for each in verify(made.now, made.store, made.bucket, made.chunks, made.clock)}
    assert "ends inside an entry" in findings["groups"].evidence


def test_group_whose_state_was_scaled_is_left_alone(world: RestoreWorld):
    """A stream of any name can be scaled by who may write it. All else is restored."""
    made, name = world.deployment, world.group.state_stream
    stream = StreamRecords(made.then_store).get("shop", name).stream
    scaled = scaled_epoch(stream.epoch, [0], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)], 2_000)
    key = current_key("shop", name)
    record = made.then_store.get(key)
    assert record is not None
    body = stream_body(replace(stream, epoch=scaled, recorded_epoch=1))
    made.then_store.write(Replace(key, body, record.version), *create_epoch(stream, scaled))
    apply_restore(made, world.plan())
    findings = {each.check: each for each in verify(made.now, made.store, made.bucket, made.chunks, made.clock)}
    assert "more than one segment" in findings["groups"].evidence


@pytest.mark.parametrize("start", [0, 10_000])
def test_group_whose_last_compaction_is_lost_is_readable(world: RestoreWorld, start: int):
    """The snapshot knows the mark and the truncation of a compaction, and tier 2 lacks the state at the mark."""
    made, segment = world.deployment, world.state_segment
    container = ContainerLayout(CONTAINERS).container_of_segment(segment)
    (old,) = made.then_store.query(chunk_partition(segment), limit=2).records
    end = chunk_run(old.key.sort, old.body).end
    lost = {REVISION_MARK: end + 10, EVENT_COUNT: 2}
    world.put_copied_snapshot(container, SegmentSnapshot(9, segment, start, end, False, 1, lost))
    apply_restore(made, world.plan())

    snapshots = SnapshotStore(made.store, made.chunks, container, epochs_of(world)[container] + 1)
    made.store.write(write_claim(container, CLAIM, epochs_of(world)[container]))
    directory = ChunkDirectory(made.store, container, epochs_of(world)[container], made.clock)

    async def found_by_a_store() -> SegmentSnapshot:
        snapshot = await restore_container(snapshots, directory, await snapshots.pointer())
        return next(each for each in snapshot.segments if each.name == segment)

    found = asyncio.run(found_by_a_store())
    assert REVISION_MARK not in found.attributes
    assert found.attributes[EVENT_COUNT] == 2
    (first, second) = made.store.query(chunk_partition(segment), limit=3).records
    entry = chunk_run(second.key.sort, second.body)
    assert (chunk_run(first.key.sort, first.body).end, entry.end) == (end, found.length)
    assert found.start_offset == 0


@pytest.mark.parametrize("answered", [True, False])
def test_restore_killed_at_each_change_ends_like_a_whole_one(
    world: RestoreWorld, monkeypatch: pytest.MonkeyPatch, answered: bool
):
    """Each run makes one change more than what is done already; the last one has nothing to do but to end."""
    runs = 0
    while True:
        runs += 1
        try:
            with killed_after(runs, monkeypatch, answered=answered):
                apply_restore(world.deployment, world.plan())
        except KilledError:
            if not is_under_way(world.deployment.store):
                break  # it had ended, and only the answer was lost
            with pytest.raises(IllegalStateError, match="not finished"):
                check_fixed_setting(world.deployment.store, FixedSetting.CONTAINERS, CONTAINERS)
            continue
        break
    assert runs > 5
    content, whole = world.content(), RestoreWorld()
    try:
        wanted = restored(whole)
    finally:
        whole.close()
    assert {key: body for key, (_, body) in content.items()} == {key: body for key, (_, body) in wanted.items()}
    claims = [key for key in wanted if key.sort.startswith("container/")]
    assert [content[key] for key in claims] == [wanted[key] for key in claims]


def test_restore_is_refused_while_a_store_runs(world: RestoreWorld):
    record = world.deployment.store.get(lease_key("store-0"))
    assert record is not None
    running = StoreLease("store-0", "10.0.0.1", 1, "a", 1, "volume", "", 0, lease_until_ms=AT_MS + 1)
    world.deployment.store.write(write_lease(running, record.version))
    before = world.content()
    with pytest.raises(IllegalStateError, match="store-0"):
        apply_restore(world.deployment, world.plan())
    assert world.content() == before
    world.clock.advance(60_000)
    apply_restore(world.deployment, world.plan())


def test_restore_of_a_later_release_is_refused(world: RestoreWorld):
    """This release cannot read all that is stored then."""
    plan, store = world.plan(), world.deployment.store
    key = fixed_setting_key(FixedSetting.CONTAINERS)
    store.write(Replace(key, finalized_body(CONTAINERS, "99.0"), 0))
    before = world.content()
    made = world.deployment
    for refused in (
        world.plan,
        lambda: apply_restore(made, plan),
        lambda: verify(made.now, made.store, made.bucket, made.chunks, made.clock),
    ):
        with pytest.raises(IllegalStateError) as error:
            refused()
        assert error.value.specific_code == "release_too_old"
    assert world.content() == before


def test_restore_that_lacks_an_object_changes_nothing(world: RestoreWorld):
    world.expire(world.packed)
    before = world.content()
    with pytest.raises(IllegalStateError, match="1 objects or records"):
        apply_restore(world.deployment, world.plan())
    assert world.content() == before
    assert not is_under_way(world.deployment.store)


def test_store_that_registers_meanwhile_ends_the_restore(world: RestoreWorld):
    def register(step: str) -> None:
        if step == "stores":
            late = StoreLease("store-9", "10.0.0.1", 1, "a", 1, "volume", "", 0, lease_until_ms=1)
            world.deployment.store.write(write_lease(late, None))

    with pytest.raises(ConflictError, match="registered"):
        apply_restore(world.deployment, world.plan(), on_step=register)
    assert is_under_way(world.deployment.store)


def test_other_unfinished_restore_is_not_mixed_with_this_one(world: RestoreWorld, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(KilledError), killed_after(3, monkeypatch):
        apply_restore(world.deployment, world.plan())
    plan = world.plan()
    plan.at_ms += 1
    with pytest.raises(IllegalStateError, match="--replace-unfinished"):
        apply_restore(world.deployment, plan)
    apply_restore(world.deployment, plan, replaces_unfinished=True)
    assert not is_under_way(world.deployment.store)
    assert world.deployment.store.get(UNFINISHED_KEY) is None


def epochs_of(world: RestoreWorld) -> list[int]:
    states = ClusterRecords(world.deployment.store).containers(range(CONTAINERS))
    return [each.epoch or 0 for each in states]


def claim_home(world: RestoreWorld, times: int = 1) -> int:
    """A store claims the container, some times. Its epoch, under which it names objects."""
    for _ in range(times):
        world.deployment.store.write(write_claim(HOME, CLAIM, epochs_of(world)[HOME]))
    return epochs_of(world)[HOME]


@pytest.mark.parametrize("times", range(1, 9))
def test_plan_that_is_older_than_a_claim_changes_nothing(world: RestoreWorld, times: int):
    """The plan was made while stores still worked, or the operator was asked for a long time."""
    plan = world.plan()
    used = claim_home(world, times)
    chosen = next(each.restored for each in plan.containers if each.container == HOME)
    assert chosen is not None
    before = world.content()
    if used < chosen.epochs.pointer:
        apply_restore(world.deployment, plan)
    else:
        with pytest.raises(ConflictError, match="since the restore was planned"):
            apply_restore(world.deployment, plan)
        assert world.content() == before
        apply_restore(world.deployment, world.plan())
    assert epochs_of(world)[HOME] > used


@pytest.mark.parametrize("step", ["claims", "objects", "import", "containers", "positions", "stores"])
def test_store_that_claims_meanwhile_is_fenced_by_a_repetition(world: RestoreWorld, step: str):
    """It had read the settings before the mark was there. Its lease is gone before the restore looks for it."""
    used: list[int] = []

    def come_back(name: str) -> None:
        if name == step:
            used.append(claim_home(world, times=4 if step == "claims" else 1))

    with pytest.raises(ConflictError, match="since the restore was planned"):
        apply_restore(world.deployment, world.plan(), on_step=come_back)
    assert is_under_way(world.deployment.store)
    apply_restore(world.deployment, world.plan())
    assert epochs_of(world)[HOME] > used[0]
    pointer = world.deployment.store.get(snapshot_key(HOME))
    assert pointer is not None
    assert decode_snapshot_pointer(pointer.body).epoch > used[0], "stores discard its log"


def test_restore_that_was_begun_again_is_not_ended_twice(world: RestoreWorld):
    def begin_again(step: str) -> None:
        if step == "end":
            record = world.deployment.store.get(UNFINISHED_KEY)
            assert record is not None
            later = replace(read_unfinished(record), begun_ms=AT_MS + 1)
            world.deployment.store.write(Replace(UNFINISHED_KEY, unfinished_body(later), record.version))

    with pytest.raises(ConflictError, match="begun"):
        apply_restore(world.deployment, world.plan(), on_step=begin_again)
    assert is_under_way(world.deployment.store)


def test_containers_that_came_after_the_copy_are_restored_too(world: RestoreWorld):
    """Also in a repetition, when the records that the copy does not have are gone."""
    store, added = world.deployment.store, CONTAINERS
    check_fixed_setting(store, FixedSetting.S3_CONTAINERS, 1)
    store.write(write_claim(added, CLAIM, None))
    store.write(write_snapshot_pointer(added, SnapshotPointer("snapshots/later", 1, 1, 3, clean=False), None))

    def stop(step: str) -> None:
        if step == "containers":
            raise KilledError

    with pytest.raises(KilledError):
        apply_restore(world.deployment, world.plan(), on_step=stop)
    apply_restore(world.deployment, world.plan())
    pointer = store.get(snapshot_key(added))
    assert pointer is not None
    assert decode_snapshot_pointer(pointer.body).object_name != "snapshots/later"
    check_fixed_setting(store, FixedSetting.S3_CONTAINERS, 1)


def test_times_that_writers_noted_are_not_ahead_of_tier_2(world: RestoreWorld):
    """A writer could not note its time again before it was behind the bytes that are lost."""
    made, stream = world.deployment, world.stream
    (segment,) = stream.epoch.segments
    lost = positions_of({segment: 25})
    watermark = WatermarkState(0, Watermark(5, 6, lost), last_offset=40, end_offset=80)
    for key, body in (
        (writer_mark_key("shop", "orders", "till"), writer_mark_body(WriterMark("till", 7, lost), 0)),
        (watermark_key("shop", "orders"), watermark_state_body(watermark)),
    ):
        made.then_store.write(Create(key, body))
    restored(world)
    records = made.store.get_many([writer_mark_key("shop", "orders", "till"), watermark_key("shop", "orders")])
    assert records[0] is not None
    assert records[1] is not None
    kept = positions_of({segment: len(OBJECT)})
    assert decode_writer_mark(records[0].body) == (WriterMark("till", 7, kept), 0)
    state = decode_watermark_state(records[1].body)
    assert state == WatermarkState(0, Watermark(5, 6, kept), last_offset=0, end_offset=0)
    WatermarkService(made.store).note_position("shop", "orders", "till", 8, {0: len(OBJECT)})
