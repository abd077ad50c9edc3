"""The work of a tick of each kind: one bounded piece of work on a bucket. True requests another piece at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from functions import wiring
from functions.observability import count, logger

if TYPE_CHECKING:
    from headrace.controller.ticks.assign_containers import ClusterChecked
    from headrace.model.replication_health import ReplicationHealth

RESEND_AFTER_MS = 30_000
"""The message of an intent that is older than this was probably lost. Sending a needless second one is harmless."""


# Workflows are imported where they are needed, because imports are most of a cold start.
def _resend_intents(bucket: int) -> bool:
    from headrace.controller.ticks.resend_intents import IntentSweep

    sweep = IntentSweep(
        wiring.metadata_store(),
        wiring.request_queues(),
        wiring.clock(),
        RESEND_AFTER_MS,
        wiring.workers(),
        wiring.note_undecodable,
    )
    sent, more = sweep.run(bucket)
    if sent:
        count("IntentsResent", sent)
        logger.info("sent %d intents of bucket %d again", sent, bucket)
    return more


def _expire_transactions(bucket: int) -> bool:
    from headrace.controller.ticks.expire_transactions import transaction_ticks

    ticks = transaction_ticks(
        wiring.tools(),
        wiring.transaction_queues(),
        wiring.workers(),
        wiring.environment().completed_transactions_kept_ms,
        wiring.note_undecodable,
    )
    return ticks.run(bucket)


def _advance_watermarks(bucket: int) -> bool:
    return wiring.watermark_ticks().run(bucket)


def _apply_retention(bucket: int) -> bool:
    return wiring.retention_ticks().run(bucket)


def _look_at_creations(bucket: int) -> bool:
    from headrace.controller.ticks.remove_orphans import creation_ticks

    return creation_ticks(wiring.tools(), wiring.workers(), wiring.note_undecodable).run(bucket)


def _detect_failed_stores(_bucket: int) -> bool:
    from headrace.controller.ticks.assign_containers import detect_failed_stores

    container_count = wiring.environment().all_containers
    checked = detect_failed_stores(wiring.metadata_store(), wiring.clock(), container_count)
    note_cluster(checked)
    _note_replication(checked.replication, container_count)
    return False


def _note_replication(health: ReplicationHealth, container_count: int) -> None:
    """Count what the stores say of the copies of their logs. Nothing is counted, and not billed, while all is well."""
    if health.blocked:
        count("LogsBlocked", len(health.blocked))
        logger.error("containers that wait for replicas: %s; see docs/operating/cluster.md", health.blocked)
    if health.isolated:
        count("StoresIsolated", len(health.isolated))
        logger.error("stores that reach no other store: %s", ", ".join(health.isolated))
    if health.under_replicated:
        from headrace.controller.ticks.assign_containers import find_single_copies

        count("LogsUnderReplicated", health.under_replicated)
        single = find_single_copies(wiring.metadata_store(), wiring.clock(), container_count)
        if single:
            count("LogsWithOneCopy", len(single))
            logger.error("containers whose log has one copy left: %s", single)


def note_cluster(checked: ClusterChecked) -> None:
    """Count and log the result of a check of the segment stores."""
    if checked.stores_lost:
        count("StoresLost", len(checked.stores_lost))
    if checked.newly_lost:
        logger.warning("stores lost: %s", ", ".join(checked.newly_lost))
    if checked.moved:
        logger.info("containers that got another store: %s", checked.moved)
    if checked.discarded_logs:
        count("ContainersGivenUp", len(checked.discarded_logs))
        logger.error(
            "containers that continue without the log of their lost store: %s; see docs/operating/cluster.md",
            checked.discarded_logs,
        )


TICK_WORK: Mapping[str, Callable[[int], bool]] = {
    "resend-intents": _resend_intents,
    "transactions": _expire_transactions,
    "watermarks": _advance_watermarks,
    "retention": _apply_retention,
    "creations": _look_at_creations,
    "failed-stores": _detect_failed_stores,
}
"""The work by the kinds of ticks that the topology declares."""
