"""What `headrace restore verify` finds in a deployment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from restore_world import RestoreWorld

from headrace.doctor.findings import Verdict
from headrace.metadata.history_records import SealedSegment, extend_sealed_segments, shard_of_segment
from headrace.metadata.stream import epoch_key
from headrace.metadata.stream_records import StreamRecords
from headrace.metadata.subscriber import subscriber_body, subscriber_key
from headrace.metadata.transaction import create_open
from headrace.model.chunks import ChunkRun, RunLink, chunk_body, chunk_partition, chunk_sort, link_body
from headrace.model.stream_cuts import PlacedCut, StreamCut
from headrace.model.subscribers import Subscriber
from headrace.model.transactions import Transaction, TransactionState, transaction_id_of
from headrace.ports.metadata_store import Create, Delete, Key
from headrace.restore.applying import apply_restore
from headrace.restore.verification import QUESTIONS, verify


@pytest.fixture
def restored(world: RestoreWorld) -> RestoreWorld:
    """A deployment that was restored well."""
    apply_restore(world.deployment, world.plan())
    return world


def failed(world: RestoreWorld) -> dict[str, str]:
    """The evidence of each check that has failed."""
    made = world.deployment
    findings = verify(made.now, made.store, made.bucket, made.chunks, made.clock)
    assert [each.check for each in findings] == list(QUESTIONS)
    return {each.check: each.evidence for each in findings if each.verdict is not Verdict.WELL}


def run_without_bytes(world: RestoreWorld) -> None:
    run = ChunkRun(10, 5, world.packed, 10)
    world.deployment.store.write(Create(Key(chunk_partition(world.segment), chunk_sort(10)), chunk_body(run)))


def run_behind_a_hole(world: RestoreWorld) -> None:
    run = ChunkRun(12, 5, world.packed, 2)
    world.deployment.store.write(Create(Key(chunk_partition(world.segment), chunk_sort(12)), chunk_body(run)))


def put_link(world: RestoreWorld, offset: int, segment: str) -> None:
    link = RunLink(offset, 5, segment, 0, 1)
    world.deployment.store.write(Create(Key(chunk_partition(world.segment), chunk_sort(offset)), link_body(link)))


def missing_epoch(world: RestoreWorld) -> None:
    world.deployment.store.write(Delete(epoch_key("shop", "orders", 0), None))


def long_segment(world: RestoreWorld) -> None:
    stream = StreamRecords(world.deployment.store).get("shop", "orders").stream
    for segment in stream.epoch.segments[:1]:
        shard = shard_of_segment(segment.segment_id)
        write = extend_sealed_segments(
            world.deployment.store, stream, shard, {segment.segment_id: SealedSegment(9, None)}
        )
        assert write is not None
        world.deployment.store.write(write)


def subscriber_ahead(world: RestoreWorld) -> None:
    place = PlacedCut(StreamCut.of("shop", "orders", {0: 11}), world.stream.epoch.segments)
    body = subscriber_body(Subscriber("ahead", 0, place, 1))
    world.deployment.store.write(Create(subscriber_key("shop", "orders", 0, "ahead"), body))


def group_ahead(world: RestoreWorld) -> None:
    """Tier 2 loses the entry that the restore has appended."""
    *_, appended = world.deployment.store.query(chunk_partition(world.state_segment), limit=10).records
    world.deployment.store.write(Delete(appended.key, None))


def group_behind_the_end(world: RestoreWorld) -> None:
    """Tier 2 loses the bytes up to which the group has read."""
    world.deployment.store.write(Delete(Key(chunk_partition(world.segment), chunk_sort(0)), None))


def transaction_of_no_epoch(world: RestoreWorld) -> None:
    transaction = Transaction(transaction_id_of(5, 1), TransactionState.OPEN, 1, 2, 0)
    world.deployment.store.write(create_open("shop", "orders", transaction))


def test_nothing_is_wrong_after_a_restore(restored: RestoreWorld):
    assert failed(restored) == {}


def test_link_to_runs_of_another_segment_is_well(restored: RestoreWorld):
    put_link(restored, 10, restored.segment)
    assert failed(restored) == {}


@pytest.mark.parametrize(
    ("damage", "check", "evidence"),
    [
        (run_without_bytes, "directory", "has no byte 10"),
        (run_behind_a_hole, "directory", "has nothing from 10 to 12"),
        (lambda world: put_link(world, 10, "shop/orders/9"), "directory", "leads to nothing"),
        (lambda world: put_link(world, 12, world.segment), "directory", "has nothing from 10 to 12"),
        (missing_epoch, "epochs", "has no epoch 0"),
        (long_segment, "lengths", "lacks 9 bytes"),
        (subscriber_ahead, "cuts", "subscriber ahead of shop/orders is behind the end"),
        (group_ahead, "groups", "shop/billing has the readers worker"),
        (group_behind_the_end, "groups", "shop/billing has positions behind the ends of their segments"),
        (transaction_of_no_epoch, "transactions", "epoch 5, which does not exist"),
        (lambda world: world.expire(world.index), "tables", "is expired"),
        (lambda world: world.put(world.index, b"x"), "tables", "is altered"),
    ],
)
def test_damage_is_found_by_its_check(
    restored: RestoreWorld, damage: Callable[[RestoreWorld], None], check: str, evidence: str
):
    damage(restored)
    assert evidence in failed(restored)[check]


def test_unfinished_restore_is_found(world: RestoreWorld):
    def stop(step: str) -> None:
        if step == "import":
            raise RuntimeError("the end of the process")

    with pytest.raises(RuntimeError):
        apply_restore(world.deployment, world.plan(), on_step=stop)
    assert failed(world)["finished"] == "repeat headrace restore apply"
