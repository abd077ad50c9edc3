"""A deployment goes on only while every log has its copies in different zones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.container_logs import NO_COPIES, ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.replication_health import missing_copies

REPLICAS = [ReplicaId(bytes([number]) * 16) for number in range(6)]
ZONE_OF = {replica: f"use1-az{number % 3}" for number, replica in enumerate(REPLICAS[:5])}
"""The last replica belongs to a store that does not serve."""


def _log(*members: int, state: LogState = LogState.OPEN) -> ContainerLog:
    if state is not LogState.OPEN:
        return ContainerLog(3, state, (), (), 7, 7)
    return ContainerLog(3, state, tuple(REPLICAS[each] for each in members), (LedgerStart(1, 0),))


def test_a_log_with_three_copies_lets_the_deployment_go_on():
    assert missing_copies({0: _log(0, 1, 2), 1: _log(3, 4, 2)}, ZONE_OF, (), 3) == []


def test_containers_whose_log_is_not_needed_do_not_wait():
    in_s3 = ContainerLog(NO_COPIES, LogState.OPEN, (), (LedgerStart(1, 0),))
    logs = {0: None, 1: _log(state=LogState.EMPTY), 2: _log(state=LogState.LOST), 3: in_s3}
    assert missing_copies(logs, ZONE_OF, (), 3) == []


def test_a_log_waits_for_members_that_serve_in_each_zone():
    logs = {9: _log(0, 1), 2: _log(0, 3, 1), 4: _log(0, 1, 5), 5: _log(0)}
    assert missing_copies(logs, ZONE_OF, (), 3) == [
        "the log of container 2 has copies in 2 of 3 zones",
        "the log of container 4 has copies in 2 of 3 zones",
        "the log of container 5 has copies in 1 of 3 zones",
        "the log of container 9 has copies in 2 of 3 zones",
    ]


def test_more_zones_than_copies_need_three_copies():
    assert missing_copies({0: _log(0, 1, 2)}, ZONE_OF, (), 6) == []
    assert missing_copies({0: _log(0, 1)}, ZONE_OF, (), 2) == []


def test_a_blocked_container_waits_whatever_its_record_says():
    logs = {0: _log(0, 1, 2), 1: None}
    assert missing_copies(logs, ZONE_OF, (1, 0), 3) == [
        "container 0 is blocked: it waits for replicas",
        "container 1 is blocked: it waits for replicas",
    ]


@given(st.dictionaries(st.integers(0, 20), st.sets(st.integers(0, 5), min_size=1, max_size=3)), st.integers(1, 4))
def test_an_open_gate_leaves_two_copies_without_any_zone(members, zones):
    """What the gate is for: with three zones or more, the loss of one zone's stores leaves two copies of each log."""
    logs = {container: _log(*sorted(each)) for container, each in members.items()}
    is_open = not missing_copies(logs, ZONE_OF, (), zones)
    for zone in set(ZONE_OF.values()):
        left = [
            sum(ZONE_OF.get(member, zone) != zone for member in log.members) for log in logs.values() if log is not None
        ]
        assert not is_open or all(count >= min(3, zones) - 1 for count in left)
