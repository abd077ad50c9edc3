"""The metrics of replicated logs on the page of a store. A store with one copy of its logs does not have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.model.container_logs import ReplicaId
from headrace.segmentstore.log.replicated.owned_log import OwnedLog
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedgers
from segmentstore_fargate.metric_families import Metric, Value

_OF_A_CONTAINER: Final = ("container",)


@dataclass(frozen=True, slots=True)
class MeasuredReplication:
    """`round_trips` has the links that are up, with the seconds of the last pulse and its echo."""

    ledgers: ReplicatedLedgers
    round_trips: Callable[[], Mapping[ReplicaId, float | None]]


Values = Mapping[tuple[str, ...], Value]


def _by_container(measured: MeasuredReplication, read: Callable[[OwnedLog], Value]) -> Values:
    """A value for each log that is recovered."""
    owned = sorted(measured.ledgers.owned.items())
    return {(str(number),): read(log) for number, log in owned if log.writer is not None}


def _acknowledged(log: OwnedLog) -> int:
    assert log.writer is not None
    return log.writer.acknowledged_entry


def _ledgers(log: OwnedLog) -> int:
    assert log.writer is not None
    return len(log.writer.log.ledgers)


def _positions(measured: MeasuredReplication) -> Values:
    return {
        (str(number), replica.hex()): position
        for number, log in sorted(measured.ledgers.owned.items())
        if log.writer is not None
        for replica, position in log.writer.positions.items()
    }


def _states(measured: MeasuredReplication) -> Values:
    states: Counter[tuple[str, ...]] = Counter()
    for number, log in sorted(measured.ledgers.owned.items()):
        if log.writer is not None:
            states.update((str(number), state.value) for state in log.writer.member_states().values())
    return states


REPLICATION_METRICS: Final[tuple[Metric[MeasuredReplication], ...]] = (
    Metric(
        "gauge",
        "headrace_replica_received_bytes",
        "entries of other stores that were received and are not on disk yet",
        lambda r: r.ledgers.received_bytes,
    ),
    Metric(
        "counter",
        "headrace_replica_catch_up_bytes_total",
        "entries that were read from the own journal and sent to a replica that lacked them",
        lambda r: r.ledgers.metrics.catch_up_bytes,
    ),
    Metric(
        "counter",
        "headrace_replica_nacks_total",
        "refusals that replicas answered to this store, by reason",
        lambda r: {(code,): count for code, count in r.ledgers.metrics.nacks.items()},
        ("code",),
    ),
    Metric(
        "histogram",
        "headrace_replica_batch_bytes",
        "bytes that a link to a replica sends in one turn of the event loop",
        lambda r: r.ledgers.metrics.batch_bytes,
    ),
    Metric(
        "counter",
        "headrace_replica_sent_bytes_total",
        "bytes sent to replicas of other stores, by the zone of the store; before TLS",
        lambda r: {(zone,): count for zone, count in sorted(r.ledgers.metrics.sent_bytes.items())},
        ("zone",),
    ),
    Metric(
        "counter",
        "headrace_replica_corrupt_messages_total",
        "messages of other stores that could not be decoded, such as entries with a wrong checksum; each ends its link",
        lambda r: r.ledgers.metrics.corrupt_messages,
    ),
    Metric("gauge", "headrace_replica_links", "links to replicas of other stores", lambda r: len(r.round_trips())),
    Metric(
        "gauge",
        "headrace_replica_round_trip_seconds",
        "time of the last pulse to a replica and back",
        lambda r: {(replica.hex(),): seconds for replica, seconds in r.round_trips().items() if seconds is not None},
        ("replica",),
    ),
    Metric(
        "gauge",
        "headrace_log_acknowledged_entry",
        "last entry of the log that is acknowledged",
        lambda r: _by_container(r, _acknowledged),
        _OF_A_CONTAINER,
    ),
    Metric(
        "gauge",
        "headrace_log_member_position",
        "last entry that a member is known to have on disk, with all before it",
        _positions,
        ("container", "replica"),
    ),
    Metric(
        "gauge",
        "headrace_log_members",
        "replicas that get the log, by state; `streaming` ones get each entry as it is appended",
        _states,
        ("container", "state"),
    ),
    Metric(
        "gauge",
        "headrace_log_unreplicated_bytes",
        "about the acknowledged bytes that the slowest member lacks",
        lambda r: {(str(number),): count for number, count in r.ledgers.unreplicated_bytes().items()},
        _OF_A_CONTAINER,
    ),
    Metric(
        "histogram",
        "headrace_log_acknowledge_seconds",
        "time from sending an entry until a quorum has it on disk, of the oldest entry of each acknowledgement; "
        "`zone` is that of the member whose answer completed the quorum",
        lambda r: {
            (str(number), zone): seconds
            for number, log in sorted(r.ledgers.metrics.logs.items())
            for zone, seconds in log.acknowledge_seconds.items()
        },
        ("container", "zone"),
    ),
    Metric(
        "counter",
        "headrace_log_ensemble_changes_total",
        "changes of the members of the log since this store has owned it",
        lambda r: {(str(number),): log.ensemble_changes for number, log in sorted(r.ledgers.metrics.logs.items())},
        _OF_A_CONTAINER,
    ),
    Metric(
        "gauge",
        "headrace_log_ledgers",
        "ledgers of the log: owners that have written to it since it was truncated",
        lambda r: _by_container(r, _ledgers),
        _OF_A_CONTAINER,
    ),
    Metric(
        "histogram",
        "headrace_log_recovery_seconds",
        "time from the claim of a container until its log was read from the replicas and closed",
        lambda r: {(str(number),): log.recovery_seconds for number, log in sorted(r.ledgers.metrics.logs.items())},
        _OF_A_CONTAINER,
    ),
)
