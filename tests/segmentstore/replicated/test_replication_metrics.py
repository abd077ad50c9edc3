"""The metrics of replicated logs: what is counted, and what the page shows of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from replicated_world import ReplicatedWorld, append, numbered, replicated_world, until

from headrace.codec.replica_messages import NACK_DISK_FULL
from headrace.segmentstore.log.journal.entry_runs import HeldBytes
from headrace.segmentstore.log.replicated.shared_log_resources import LogMetrics, ReplicationMetrics
from headrace.segmentstore.metrics import Histogram
from segmentstore_fargate.metric_families import Value, metric_family
from segmentstore_fargate.replication_metrics import REPLICATION_METRICS, MeasuredReplication

pytestmark = pytest.mark.anyio

LOG = 3


def values(world: ReplicatedWorld, name: str) -> dict[str, Mapping[tuple[str, ...], Value]]:
    node = world.nodes[name]
    node.ledgers.metrics.count_sent("another zone", 7)  # links of this world have no sockets
    measured = MeasuredReplication(node.ledgers, lambda: {node.replica: 0.001})
    metrics = {}
    for metric in REPLICATION_METRICS:
        value = metric.read(measured)
        metrics[metric.name] = value if isinstance(value, Mapping) else {(): value}
        assert metric_family(metric, {(): measured}, ()).samples, metric.name
    return metrics


def count(histograms: Mapping[tuple[str, ...], Value]) -> int:
    return sum(sum(each.counts) for each in histograms.values() if isinstance(each, Histogram))


async def test_a_log_with_three_members_is_measured():
    async with replicated_world() as world:
        ledger = await world.nodes["a"].ledgers.open(LOG, world.claim(LOG))
        await append(ledger, *numbered(0, 20))
        writer = world.nodes["a"].ledgers.owned[LOG].writer
        assert writer is not None
        await until(lambda: set(writer.positions.values()) == {19} and len(writer.positions) == 3)
        shown = values(world, "a")
        assert shown["headrace_log_acknowledged_entry"] == {("3",): 19}
        members = {("3", node.replica.hex()): 19 for node in world.nodes.values()}
        assert shown["headrace_log_member_position"] == members
        assert shown["headrace_log_members"] == {("3", "streaming"): 3}
        assert shown["headrace_log_unreplicated_bytes"] == {("3",): 0}
        assert count(shown["headrace_log_acknowledge_seconds"]) >= 1
        assert {zone for _, zone in shown["headrace_log_acknowledge_seconds"]} <= {"a", "b", "c"}
        assert count(shown["headrace_log_recovery_seconds"]) == 1
        assert shown["headrace_replica_links"] == {(): 1}
        assert shown["headrace_replica_sent_bytes_total"] == {("another zone",): 7}
        assert shown["headrace_replica_received_bytes"] == {(): 0}


async def test_changes_and_catch_up_are_counted():
    async with replicated_world() as world:
        ledger = await world.nodes["a"].ledgers.open(LOG, world.claim(LOG))
        await append(ledger, *numbered(0, 20))
        owned = world.nodes["a"].ledgers.owned[LOG]
        await until(lambda: len(owned.log.members) == 3)  # the last one may join after the opening: a change, too
        metrics = world.nodes["a"].ledgers.metrics
        before, sent = metrics.logs[LOG].ensemble_changes, metrics.catch_up_bytes
        await world.destroy(world.nodes["b"])
        await until(lambda: len(owned.log.members) == 2)
        await world.start("b")
        await until(lambda: len(owned.log.members) == 3)
        assert metrics.logs[LOG].ensemble_changes == before + 2
        assert metrics.catch_up_bytes >= sent + sum(len(each) for each in numbered(0, 20))


async def test_what_the_slowest_member_lacks_is_counted():
    async with replicated_world() as world:
        ledger = await world.nodes["a"].ledgers.open(LOG, world.claim(LOG))
        await append(ledger, b"first")
        writer = world.nodes["a"].ledgers.owned[LOG].writer
        assert writer is not None
        await until(lambda: len(writer.positions) == 3 and set(writer.positions.values()) == {0})
        world.network.hold(world.nodes["a"].replica, world.nodes["c"].replica)
        await append(ledger, *[bytes(100_000) for _ in range(4)])
        lacks = ledger.unreplicated_bytes
        world.network.release(world.nodes["a"].replica, world.nodes["c"].replica)
        assert 300_000 <= lacks <= 4 * 100_080 + 85


def test_bytes_behind_an_entry():
    held = HeldBytes()
    for entry in range(5, 25):
        held.count(entry, 1 << 20)
    assert [held.behind(entry) >> 20 for entry in (3, 4, 5, 23)] == [20, 20, 19, 1]


def test_refusals_are_counted_by_name():
    metrics = ReplicationMetrics()
    metrics.count_nack(NACK_DISK_FULL)
    assert {name for name, number in metrics.nacks.items() if number} == {"disk_full"}


def test_an_acknowledgement_without_callers_is_not_timed():
    log = LogMetrics()
    log.acknowledged(None, "z")
    log.acknowledged(0.003, "z")
    assert count({("z",): log.acknowledge_seconds["z"]}) == 1
