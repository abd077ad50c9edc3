"""The checks of what the controller says: each fault is found by its check, and by no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace

import pytest
from healthy_cluster import CONTAINERS, NOW_MS, with_container, with_letters, with_log, with_store

from headrace.api.cluster import ClusterView, ContainerLogsView, ContainerMapView, LedgerView
from headrace.api.upgrades import StoreRelease, UpgradeView
from headrace.doctor.cluster_checks import (
    LATE_FLUSH_MS,
    LATE_TICK_MS,
    SKEW_MS_MAX,
    AnswerFacts,
    ClusterFacts,
    answer_findings,
    cluster_findings,
)
from headrace.doctor.findings import CHECKS, NAMES_SHOWN, Finding, Verdict, in_order, listed, worst
from headrace.model.cluster import RESTARTING_WITHIN_MS, STARTS_KEPT, ContainerStanding, StoreState
from headrace.model.container_logs import LEDGERS_REPORTED_FROM
from headrace.model.dead_letters import DeadLetterStatus
from headrace.model.formats import FIRST_RELEASE, RELEASE
from headrace.zones import LOCAL_ZONE

Change = Callable[[ClusterFacts], ClusterFacts]


def _unwell(facts: ClusterFacts) -> dict[str, Finding]:
    return {
        finding.check: finding for finding in cluster_findings(facts, NOW_MS) if finding.verdict is not Verdict.WELL
    }


def test_a_healthy_cluster_is_well(facts: ClusterFacts):
    assert _unwell(facts) == {}


def _without_lease(facts: ClusterFacts) -> ClusterFacts:
    return with_store(facts, 1, lease_until_ms=NOW_MS - LATE_TICK_MS - 1)


def _starts(count: int) -> tuple[int, ...]:
    """Once a minute, the last one a minute ago."""
    return tuple(NOW_MS - minute * 60_000 for minute in range(count, 0, -1))


def _without_map(facts: ClusterFacts) -> ClusterFacts:
    cluster = ClusterView(map_version=None, container_count=CONTAINERS, stores=facts.cluster.stores)
    return dataclasses.replace(facts, cluster=cluster)


def _with_upgrade(facts: ClusterFacts, finalized: str, *releases: str | None) -> ClusterFacts:
    stores = tuple(StoreRelease(f"store-{number}", release) for number, release in enumerate(releases))
    return dataclasses.replace(facts, upgrade=UpgradeView(RELEASE, finalized, stores, ()))


FAULTS: dict[str, tuple[Change, dict[str, Verdict], str]] = {
    "a lost store": (
        lambda facts: with_store(facts, 2, state=StoreState.LOST),
        {"stores": Verdict.FAILURE, "zones": Verdict.FAILURE},
        "store-2",
    ),
    "a store that shuts down": (
        lambda facts: with_store(facts, 2, state=StoreState.LEAVING, containers=()),
        {"stores": Verdict.WARNING, "zones": Verdict.WARNING},
        "store-2",
    ),
    "two zones, with a store that shuts down": (
        lambda facts: with_store(
            with_store(facts, 2, state=StoreState.LEAVING, zone="a", containers=()), 0, capacity=200
        ),
        {"stores": Verdict.WARNING, "zones": Verdict.FAILURE},
        "zones with stores: a, b",
    ),
    "a store that starts again and again": (
        lambda facts: with_store(facts, 1, starts_ms=_starts(STARTS_KEPT)),
        {"stores": Verdict.WARNING},
        "serving: 3; started again and again: store-1 (5 times in 5 min)",
    ),
    "a store that starts again and again, and is away now": (
        lambda facts: with_store(facts, 1, state=StoreState.LOST, starts_ms=_starts(STARTS_KEPT)),
        {"stores": Verdict.FAILURE, "zones": Verdict.FAILURE},
        "without a lease: store-1; serving: 2; started again and again: store-1 (5 times in 5 min)",
    ),
    "data that waits for S3": (
        lambda facts: with_store(facts, 1, unflushed_since_ms=NOW_MS - 120_000),
        {"storage": Verdict.WARNING},
        "store-1 (for 2 min)",
    ),
    "data that has waited for S3 for long": (
        lambda facts: with_store(facts, 1, unflushed_since_ms=NOW_MS - LATE_FLUSH_MS - 1),
        {"storage": Verdict.FAILURE},
        "store-1 (for 5 min)",
    ),
    "ticks that have stopped": (
        _without_lease,
        {"ticks": Verdict.FAILURE, "stores": Verdict.FAILURE},
        "store-1",
    ),
    "no container map": (_without_map, {"ticks": Verdict.FAILURE}, "3 stores"),
    "a container that waits for its store": (
        lambda facts: with_container(facts, 4, state=ContainerStanding.WAITING),
        {"containers": Verdict.FAILURE},
        "4 WAITING",
    ),
    "a container that moves": (
        lambda facts: with_container(facts, 4, state=ContainerStanding.MOVING),
        {"containers": Verdict.WARNING},
        "4 MOVING",
    ),
    "a container that its store has left": (
        lambda facts: with_container(facts, 4, state=ContainerStanding.FREE),
        {"containers": Verdict.WARNING},
        "4 FREE",
    ),
    "a container that no store will open": (
        lambda facts: with_container(facts, 4, state=ContainerStanding.FREE, store=None),
        {"containers": Verdict.FAILURE},
        "4 FREE (map: none)",
    ),
    "an uneven map": (
        lambda facts: with_store(with_store(facts, 0, containers=tuple(range(6))), 1, containers=()),
        {"spread": Verdict.WARNING},
        "store-0 has 6 instead of 3.0",
    ),
    "a blocked container": (
        lambda facts: with_log(facts, 3, blocked=True),
        {"log-recovery": Verdict.FAILURE},
        "3 (members: store-0, store-1, store-2)",
    ),
    "a log with two copies": (
        lambda facts: with_log(facts, 5, members=facts.logs.logs[5].members[:2], complete=False),
        {"log-copies": Verdict.WARNING},
        "5 (2 members)",
    ),
    "owners that do not last": (
        lambda facts: with_log(facts, 6, ledgers=tuple(LedgerView(epoch, 0) for epoch in range(LEDGERS_REPORTED_FROM))),
        {"log-owners": Verdict.WARNING},
        "container 6",
    ),
    "a request that is stuck": (
        lambda facts: with_letters(facts, DeadLetterStatus.DONE, DeadLetterStatus.STUCK),
        {"dead-letters": Verdict.FAILURE},
        "1 STUCK: shop/orders-1 (unavailable)",
    ),
    "a request that was undone": (
        lambda facts: with_letters(facts, DeadLetterStatus.UNDONE, DeadLetterStatus.UNPROCESSED),
        {"dead-letters": Verdict.WARNING},
        "1 UNDONE, 1 UNPROCESSED",
    ),
    "a store of a former release": (
        lambda facts: _with_upgrade(facts, RELEASE, RELEASE, None),
        {"releases": Verdict.WARNING},
        f"two releases run: controller: {RELEASE}; stores: 1 of {FIRST_RELEASE}, 1 of {RELEASE}",
    ),
    "an upgrade that is not finalized": (
        lambda facts: _with_upgrade(facts, FIRST_RELEASE, RELEASE),
        {"releases": Verdict.WARNING},
        f"`headrace upgrade finalize` is pending: controller: {RELEASE}; stores: 1 of {RELEASE}; "
        f"finalized: {FIRST_RELEASE}",
    ),
    "a controller of a former release": (
        lambda facts: dataclasses.replace(facts, upgrade=None),
        {"releases": Verdict.SKIPPED},
        "does not say its release",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a15_each_fault_is_named_by_its_check(fault: str, facts: ClusterFacts):
    change, expected, evidence = FAULTS[fault]
    unwell = _unwell(change(facts))
    assert {check: finding.verdict for check, finding in unwell.items()} == expected
    assert evidence in " ".join(finding.evidence for finding in unwell.values())


def test_letters_that_are_done_need_no_operator(facts: ClusterFacts):
    assert _unwell(with_letters(facts, DeadLetterStatus.DONE, DeadLetterStatus.REPLAYED)) == {}


@pytest.mark.parametrize(
    ("status", "verdict", "evidence"),
    [
        (DeadLetterStatus.DONE, Verdict.WARNING, "none of the oldest 1 waits"),
        (DeadLetterStatus.STUCK, Verdict.FAILURE, "more than 1 letters"),
    ],
)
def test_letters_that_were_not_read_are_named(
    status: DeadLetterStatus, verdict: Verdict, evidence: str, facts: ClusterFacts
):
    finding = _unwell(replace(with_letters(facts, status), has_more_letters=True))["dead-letters"]
    assert finding.verdict is verdict
    assert evidence in finding.evidence


def test_some_restarts_are_no_fault(facts: ClusterFacts):
    assert _unwell(with_store(facts, 1, starts_ms=_starts(STARTS_KEPT - 1))) == {}
    long_ago = tuple(start_ms - RESTARTING_WITHIN_MS for start_ms in _starts(STARTS_KEPT))
    assert _unwell(with_store(facts, 1, starts_ms=long_ago)) == {}


def test_a_store_that_has_ended_says_nothing_of_s3(facts: ClusterFacts):
    gone = with_store(facts, 1, state=StoreState.LEFT, unflushed_since_ms=NOW_MS - LATE_FLUSH_MS - 1)
    assert "storage" not in _unwell(gone)


def test_the_longest_wait_for_s3_decides(facts: ClusterFacts):
    """A store that is shutting down flushes, and tells of S3 as well."""
    late = with_store(facts, 0, state=StoreState.LEAVING, unflushed_since_ms=NOW_MS - LATE_FLUSH_MS - 1)
    finding = _unwell(with_store(late, 1, unflushed_since_ms=NOW_MS - 120_000))["storage"]
    assert finding.verdict is Verdict.FAILURE
    assert "store-0 (for 5 min)" in finding.evidence
    assert "store-1 (for 2 min)" in finding.evidence


def test_no_serving_store_may_be_one_that_restarts(facts: ClusterFacts):
    for index in range(len(facts.cluster.stores)):
        facts = with_store(facts, index, state=StoreState.LEFT, starts_ms=_starts(STARTS_KEPT))
    assert "stores serves; started again and again: store-0 (5 times" in _unwell(facts)["stores"].evidence


def test_stores_without_zones_count_as_zones(facts: ClusterFacts):
    """As copies are placed on a laptop."""
    changed = facts
    for number in range(3):
        changed = with_store(changed, number, zone=LOCAL_ZONE)
    assert _unwell(changed) == {}


def test_a_lease_that_ends_now_is_no_fault(facts: ClusterFacts):
    assert _unwell(with_store(facts, 1, lease_until_ms=NOW_MS - SKEW_MS_MAX)) == {}


def test_one_copy_needs_no_zones(facts: ClusterFacts):
    """A deployment with one copy has no logs with records, or logs that say so."""
    changed = facts
    for number in range(CONTAINERS):
        changed = with_log(changed, number, copies=1)
    for number in range(1, 3):
        changed = with_store(changed, number, zone="a")
    assert _unwell(changed) == {}


def test_a_cluster_without_stores_has_failed():
    facts = ClusterFacts(
        ClusterView(map_version=None, container_count=0, stores=()),
        ContainerMapView(map_version=None, containers=()),
        ContainerLogsView(logs=()),
        (),
    )
    unwell = _unwell(facts)
    assert unwell["stores"].verdict is Verdict.FAILURE
    assert unwell["spread"].verdict is Verdict.SKIPPED


@pytest.mark.parametrize(
    ("status", "is_on_loopback", "verdict"),
    [
        (403, False, Verdict.WELL),
        (401, False, Verdict.WELL),
        (200, False, Verdict.FAILURE),
        (404, False, Verdict.FAILURE),
        (200, True, Verdict.WELL),
        (503, False, Verdict.SKIPPED),
    ],
)
def test_an_api_without_signatures_is_a_fault(status: int, is_on_loopback: bool, verdict: Verdict):
    clock, signatures = answer_findings(AnswerFacts(status, NOW_MS, NOW_MS, is_on_loopback))
    assert (clock.verdict, signatures.verdict) == (Verdict.WELL, verdict)


@pytest.mark.parametrize(
    ("ahead_ms", "verdict", "word"),
    [
        (SKEW_MS_MAX - 1, Verdict.WELL, "ahead of"),
        (SKEW_MS_MAX, Verdict.FAILURE, "ahead of"),
        (-SKEW_MS_MAX, Verdict.FAILURE, "behind"),
    ],
)
def test_a_wrong_clock_is_a_fault(ahead_ms: int, verdict: Verdict, word: str):
    clock, _ = answer_findings(AnswerFacts(403, NOW_MS, NOW_MS + ahead_ms, False))
    assert (clock.verdict, word in clock.evidence) == (verdict, True)


def test_an_answer_without_a_date_says_nothing_of_the_clock():
    assert answer_findings(AnswerFacts(403, None, NOW_MS, False))[0].verdict is Verdict.SKIPPED


def test_the_worst_verdict_decides():
    checks = list(CHECKS)
    findings = [Finding(checks[1], Verdict.WARNING, ""), Finding(checks[0], Verdict.SKIPPED, "")]
    assert worst(findings) is Verdict.WARNING
    assert worst([*findings, Finding(checks[2], Verdict.FAILURE, "")]) is Verdict.FAILURE
    assert worst(findings[1:]) is Verdict.WELL
    assert [finding.check for finding in in_order(findings)] == checks[:2]


def test_long_lists_are_cut():
    names = [f"n{number}" for number in range(NAMES_SHOWN + 2)]
    assert listed(names[:NAMES_SHOWN]) == ", ".join(names[:NAMES_SHOWN])
    assert listed(names).endswith("n4 and 2 more")
