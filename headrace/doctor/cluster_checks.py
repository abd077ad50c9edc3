"""Checks of what the controller says: stores, containers, logs, dead letters, and how it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.api.cluster import ClusterView, ContainerLogsView, ContainerMapView, StoreView
from headrace.api.dead_letters import DeadLetterView
from headrace.api.upgrades import UpgradeView
from headrace.doctor.findings import Finding, failure, listed, skipped, warning, well
from headrace.model.cluster import ContainerStanding, StoreState, is_restarting
from headrace.model.container_logs import COPIES, LEDGERS_REPORTED_FROM
from headrace.model.dead_letters import DeadLetterStatus
from headrace.model.formats import FIRST_RELEASE
from headrace.model.replica_placement import zone_of

SKEW_MS_MAX: Final = 60_000
LATE_TICK_MS: Final = 180_000
"""The tick notices each minute that a lease has ended. A store that replicates gets fifty seconds more."""

LATE_FLUSH_MS: Final = 300_000
"""Data that waits for S3 for so long needs an operator. The alarm of a deployment is raised then, too."""

SPREAD_MAX: Final = 1.0
"""How many containers more or fewer than its share a store may have: shares are no whole numbers."""

_MOVING: Final = (ContainerStanding.MOVING, ContainerStanding.FREE)
"""A store is about to open these. One that shuts down leaves its containers free."""

_OPEN_LETTERS: Final = (DeadLetterStatus.STUCK, DeadLetterStatus.UNDONE, DeadLetterStatus.UNPROCESSED)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the controller answered. `letters` are the oldest; with `has_more_letters` there are others."""

    cluster: ClusterView
    containers: ContainerMapView
    logs: ContainerLogsView
    letters: Sequence[DeadLetterView]
    has_more_letters: bool = False
    upgrade: UpgradeView | None = None
    """None: the controller is of a release that does not say it."""


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """How the controller answers a request without a signature. Times in milliseconds since 1970.

    `date_ms` is the time of the answer, None if it has none; `now_ms` that of this machine. `is_on_loopback`: the
    controller runs on this machine, so that no other machine reaches it.
    """

    status: int
    date_ms: int | None
    now_ms: int
    is_on_loopback: bool


def cluster_findings(facts: ClusterFacts, now_ms: int) -> list[Finding]:
    """`now_ms` is the time of the controller."""
    return [
        _dead_letters(facts.letters, has_more=facts.has_more_letters),
        _ticks(facts.cluster, now_ms),
        _stores(facts.cluster, now_ms),
        _storage(facts.cluster, now_ms),
        _zones(facts.cluster, facts.logs),
        _containers(facts.containers),
        _spread(facts.cluster),
        _log_recovery(facts.logs),
        _log_copies(facts.logs),
        _log_owners(facts.logs),
        _releases(facts.upgrade),
    ]


def _releases(upgrade: UpgradeView | None) -> Finding:
    if upgrade is None:
        return skipped("releases", "the controller does not say its release: it is older than this program")
    counts = Counter(store.release or FIRST_RELEASE for store in upgrade.stores)
    counted = ", ".join(f"{count} of {release}" for release, count in sorted(counts.items())) or "none"
    evidence = f"controller: {upgrade.release}; stores: {counted}; finalized: {upgrade.finalized}"
    if counts.keys() - {upgrade.release}:
        return warning("releases", f"two releases run: {evidence}")
    if not upgrade.is_finalized:
        return warning("releases", f"`headrace upgrade finalize` is pending: {evidence}")
    return well("releases", evidence)


def answer_findings(facts: AnswerFacts) -> list[Finding]:
    return [_clock(facts), _signatures(facts)]


def _clock(facts: AnswerFacts) -> Finding:
    if facts.date_ms is None:
        return skipped("clock", "the controller's answer has no date")
    skew_ms = facts.now_ms - facts.date_ms
    direction = "behind" if skew_ms < 0 else "ahead of"
    evidence = f"this machine is {abs(skew_ms) / 1000:.0f} s {direction} the controller"
    return well("clock", evidence) if abs(skew_ms) < SKEW_MS_MAX else failure("clock", evidence)


def _signatures(facts: AnswerFacts) -> Finding:
    if facts.status in (401, 403):
        return well("signatures", f"a request without a signature got status {facts.status}")
    if facts.is_on_loopback:
        return well("signatures", "the controller is on this machine, and other machines do not reach it")
    if facts.status >= 500:
        return skipped("signatures", f"the controller answered with status {facts.status}")
    return failure("signatures", f"a request without a signature got status {facts.status}")


def _dead_letters(letters: Sequence[DeadLetterView], *, has_more: bool) -> Finding:
    counts = Counter(letter.status for letter in letters)
    waiting = [letter for letter in letters if letter.status in _OPEN_LETTERS]
    if not waiting and has_more:
        return warning("dead-letters", f"none of the oldest {len(letters)} waits, and the others were not looked at")
    if not waiting:
        return well("dead-letters", "no letter waits for an operator")
    counted = ", ".join(f"{counts[status]} {status}" for status in _OPEN_LETTERS if counts[status])
    names = listed([f"{letter.subject or letter.queue} ({letter.cause.code})" for letter in waiting])
    verdict = failure if counts[DeadLetterStatus.STUCK] else warning
    others = f"; more than {len(letters)} letters, others were not looked at" if has_more else ""
    return verdict("dead-letters", f"{counted}: {names}{others}")


def _ticks(cluster: ClusterView, now_ms: int) -> Finding:
    unnoticed = [
        store.store_id
        for store in cluster.stores
        if store.state in (StoreState.SERVING, StoreState.LEAVING) and now_ms - store.lease_until_ms > LATE_TICK_MS
    ]
    if unnoticed:
        return failure("ticks", f"the leases of {listed(unnoticed)} ended minutes ago, and no tick has noticed it")
    if cluster.stores and cluster.map_version is None:
        return failure("ticks", f"no tick has written a container map for {len(cluster.stores)} stores")
    return well("ticks", "leases and container map are as ticks leave them")


def _stores(cluster: ClusterView, now_ms: int) -> Finding:
    if not cluster.stores:
        return failure("stores", "no segment store has registered")
    lost = [
        store.store_id
        for store in cluster.stores
        if store.state is StoreState.LOST or (store.state is StoreState.SERVING and _is_expired(store, now_ms))
    ]
    leaving = [store.store_id for store in cluster.stores if store.state is StoreState.LEAVING]
    serving = sum(store.state is StoreState.SERVING and not _is_expired(store, now_ms) for store in cluster.stores)
    restarting = [
        f"{store.store_id} ({len(store.starts_ms)} times in {_minutes(now_ms - store.starts_ms[0])})"
        for store in cluster.stores
        if is_restarting(store.starts_ms, now_ms)
    ]
    evidence = f"; started again and again: {listed(restarting)}" if restarting else ""
    if lost:
        return failure("stores", f"without a lease: {listed(lost)}; serving: {serving}{evidence}")
    if not serving:
        return failure("stores", f"none of {len(cluster.stores)} stores serves{evidence}")
    if leaving:
        return warning("stores", f"shutting down: {listed(leaving)}; serving: {serving}{evidence}")
    return (warning if restarting else well)("stores", f"serving: {serving}{evidence}")


def _minutes(duration_ms: int) -> str:
    return f"{max(0, duration_ms) / 60_000:.0f} min"


def _storage(cluster: ClusterView, now_ms: int) -> Finding:
    """What a store says of S3. One without data to flush does not notice that S3 fails."""
    waits_ms = {
        store.store_id: now_ms - store.unflushed_since_ms
        for store in cluster.stores
        if store.unflushed_since_ms is not None and store.state in (StoreState.SERVING, StoreState.LEAVING)
    }
    if not waits_ms:
        return well("storage", "no store says that its data waits for S3 for more than a minute")
    names = listed([f"{store_id} (for {_minutes(wait_ms)})" for store_id, wait_ms in waits_ms.items()])
    verdict = failure if max(waits_ms.values()) > LATE_FLUSH_MS else warning
    return verdict("storage", f"stores with data that waits for S3: {names}")


def _is_expired(store: StoreView, now_ms: int) -> bool:
    return now_ms - store.lease_until_ms > SKEW_MS_MAX


def _zones(cluster: ClusterView, logs: ContainerLogsView) -> Finding:
    """A store that shuts down is replaced in its zone by a deployment; until then a log has a copy less."""
    zones = sorted({zone_of(store) for store in cluster.stores if store.state is StoreState.SERVING})
    leaving = {zone_of(store) for store in cluster.stores if store.state is StoreState.LEAVING}
    copies = max((log.copies for log in logs.logs if log.copies is not None), default=1)
    evidence = f"copies of a log: {copies}; zones with stores: {listed(zones) or 'none'}"
    if copies < COPIES or len(zones) >= COPIES:
        return well("zones", evidence)
    return (warning if len(leaving.union(zones)) >= COPIES else failure)("zones", evidence)


def _containers(containers: ContainerMapView) -> Finding:
    away = [each for each in containers.containers if each.state is not ContainerStanding.SERVED]
    if not away:
        return well("containers", f"served: {len(containers.containers)}")
    names = listed([f"{each.container} {each.state} (map: {each.store or 'none'})" for each in away])
    is_moving = all(each.state in _MOVING and each.store is not None for each in away)
    return (warning if is_moving else failure)("containers", f"{len(away)} not served: {names}")


def _spread(cluster: ClusterView) -> Finding:
    serving = [store for store in cluster.stores if store.state is StoreState.SERVING]
    capacity = sum(store.capacity for store in serving)
    if not capacity:
        return skipped("spread", "no store serves")
    held = sum(len(store.containers) for store in serving)
    uneven = [
        f"{store.store_id} has {len(store.containers)} instead of {share:.1f}"
        for store in serving
        if abs(len(store.containers) - (share := held * store.capacity / capacity)) > SPREAD_MAX
    ]
    if uneven:
        return warning("spread", listed(uneven))
    return well("spread", f"containers: {held}, stores: {len(serving)}")


def _log_recovery(logs: ContainerLogsView) -> Finding:
    blocked = [log for log in logs.logs if log.blocked]
    if not blocked:
        return well("log-recovery", "no container waits for its log")
    names = listed(
        [
            f"{log.container} (members: {', '.join(each.store or each.replica[:8] for each in log.members)})"
            for log in blocked
        ]
    )
    return failure("log-recovery", f"containers that wait for members of their log: {names}")


def _log_copies(logs: ContainerLogsView) -> Finding:
    lacking = [f"{log.container} ({len(log.members)} members)" for log in logs.logs if not log.complete]
    if lacking:
        return warning("log-copies", f"logs of containers with fewer copies than wanted: {listed(lacking)}")
    replicated = sum(log.copies == COPIES for log in logs.logs)
    return well("log-copies", f"logs with {COPIES} copies: {replicated} of {len(logs.logs)}, none lacks one")


def _log_owners(logs: ContainerLogsView) -> Finding:
    longest = max(logs.logs, key=lambda log: len(log.ledgers), default=None)
    if longest is None or not longest.ledgers:
        return well("log-owners", "no log has a ledger")
    evidence = f"the most ledgers are in the log of container {longest.container}: {len(longest.ledgers)}"
    return (warning if len(longest.ledgers) >= LEDGERS_REPORTED_FROM else well)("log-owners", evidence)
