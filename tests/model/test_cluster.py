"""Leases, the container map and its moves: every container once, evenly, and none moves without need."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.cluster_records import decode_store_lease, store_lease_body
from headrace.model.cluster import (
    CLOCK_SKEW_MAX_MS,
    FIRST_PROTOCOL,
    FLUSH_LAG_S_MAX,
    GIVING_WAY_MS,
    REPLICA_PROTOCOL,
    RESTARTING_WITHIN_MS,
    SILENT_S,
    STARTS_KEPT,
    STORE_FORGOTTEN_AFTER_MS,
    UNCHANGED_S,
    UNCHANGED_WITHOUT_LINK_S,
    UNHEARD_S,
    UNSERVED_MAX_MS,
    VERSION_MAX,
    ContainerAction,
    ContainerHold,
    ContainerMap,
    ContainerStanding,
    ProtocolVersions,
    ReplicationStatus,
    StoreLease,
    StoreState,
    action_when_closed,
    action_when_open,
    container_status,
    giving_way_ms,
    has_ended_silently,
    is_restarting,
    leaving,
    left,
    lost,
    may_be_ended,
    may_be_forgotten,
    may_be_taken_over,
    noted_flush_lag,
    noted_replication,
    noted_serving,
    registered,
    registration_wait_ms,
    renewed,
    task_stopped,
)
from headrace.model.errors import InvalidRequestError
from headrace.model.replica_placement import assign

NOW_MS = 1_000_000
GRACE_MS = 60_000
MINUTE_MS = 60_000


def store(name: str, zone: str = "z", capacity: int = 100, **fields: object) -> StoreLease:
    new = StoreLease(name, "h", 1, zone, capacity, f"disk-{name}", f"task-{name}", GRACE_MS)
    return replace(registered(new, None, NOW_MS), **fields)  # type: ignore[arg-type]


def spread(count: int, *stores: StoreLease, former: ContainerMap | None = None, **holds: ContainerHold) -> ContainerMap:
    held = {int(name[1:]): hold for name, hold in holds.items()}
    return assign(former or ContainerMap(), stores, held, count, NOW_MS)


def held_by(container_map: ContainerMap, epoch: int = 7) -> dict[int, ContainerHold]:
    return {container: ContainerHold(owner, epoch) for container, owner in container_map.stores.items()}


@st.composite
def clusters(draw: st.DrawFn) -> list[StoreLease]:
    count = draw(st.integers(1, 7))
    capacities = st.sampled_from([1, 50, 100, 100, 100, 250])
    return [store(f"s{index}", draw(st.sampled_from("abc")), draw(capacities)) for index in range(count)]


def bounds(stores: list[StoreLease], count: int, part: list[StoreLease]) -> tuple[int, int]:
    """A share rounded down and up."""
    total, capacity = sum(lease.capacity for lease in stores), sum(lease.capacity for lease in part)
    return count * capacity // total, -(-count * capacity // total)


@given(clusters(), st.integers(1, 40))
def test_containers_are_shared_evenly_over_stores_and_zones(stores, count):
    made = assign(ContainerMap(), stores, {}, count, NOW_MS)
    assert sorted(made.stores) == list(range(count))
    for part in [[lease] for lease in stores] + [[lease for lease in stores if lease.zone == zone] for zone in "abc"]:
        names = {lease.store_id for lease in part}
        least, most = bounds(stores, count, part)
        assert least <= sum(owner in names for owner in made.stores.values()) <= most


@given(clusters(), st.integers(1, 40))
def test_nothing_moves_when_nothing_changes(stores, count):
    made = assign(ContainerMap(), stores, {}, count, NOW_MS)
    assert assign(made, list(reversed(stores)), held_by(made), count, NOW_MS) == made


@given(clusters(), st.integers(1, 40), st.data())
def test_a_leaving_or_joining_store_moves_only_its_share(stores, count, data):
    equal = [replace(lease, capacity=100, zone="a") for lease in stores] + [store("extra", "a")]
    made = assign(ContainerMap(), equal, {}, count, NOW_MS)
    gone = data.draw(st.sampled_from(equal))
    rest = [lease for lease in equal if lease is not gone]
    after = assign(made, rest, {}, count, NOW_MS)
    moved = {each for each in made.stores if made.stores[each] != after.stores[each]}
    assert moved == set(made.containers_of(gone.store_id))
    back = assign(after, equal, {}, count, NOW_MS)
    moved_back = [each for each in after.stores if after.stores[each] != back.stores[each]]
    assert {back.stores[each] for each in moved_back} <= {gone.store_id}
    assert len(moved_back) == len(back.containers_of(gone.store_id)) >= count // len(equal)


@given(clusters(), clusters(), st.integers(1, 30))
def test_moves_are_the_fewest_that_any_even_map_allows(before, after, count):
    made = assign(ContainerMap(), before, {}, count, NOW_MS)
    then = assign(made, after, {}, count, NOW_MS)
    held = Counter(made.stores.values())
    kept = sum(then.stores[each] == owner for each, owner in made.stores.items())
    assert kept == max(_kept(after, held, count))


def _kept(stores: list[StoreLease], held: Counter[str], count: int) -> set[int]:
    """How many containers can stay, over all roundings that respect stores and zones."""
    kept_of: set[tuple[int, int]] = {(0, 0)}  # containers given, and of them kept
    for zone in sorted({lease.zone for lease in stores}):
        members = [lease for lease in stores if lease.zone == zone]
        least, most = bounds(stores, count, members)
        inside: set[tuple[int, int]] = {(0, 0)}
        for member in members:
            low, high = bounds(stores, count, [member])
            inside = {(n + part, k + min(part, held[member.store_id])) for n, k in inside for part in {low, high}}
        kept_of = {(n + m, k + j) for n, k in kept_of for m, j in inside if least <= m <= most}
    return {k for n, k in kept_of if n == count}


def test_the_first_map_alternates_between_stores():
    made = spread(4, store("b"), store("a"))
    assert made.stores == {0: "a", 1: "b", 2: "a", 3: "b"}


def test_without_a_store_that_serves_the_map_stays():
    made = spread(4, store("a"))
    assert spread(4, leaving(store("a"), NOW_MS), former=made) is made
    assert spread(4, former=made) is made


def test_a_lost_store_keeps_its_logs_until_its_time_is_over():
    a, b = store("a"), store("b")
    made = spread(4, a, b)
    holds = held_by(made) | {1: None}
    gone = lost(b, NOW_MS)
    waiting = assign(made, [a, gone], holds, 4, NOW_MS + GRACE_MS - 1)
    assert waiting == ContainerMap({0: "a", 1: "a", 2: "a", 3: "b"}, {})
    taken = assign(waiting, [a, gone], holds, 4, NOW_MS + GRACE_MS)
    assert taken == ContainerMap(dict.fromkeys(range(4), "a"), {3: 7})
    again = assign(taken, [a, gone], holds, 4, NOW_MS + GRACE_MS)
    assert again == taken
    back = assign(taken, [a, registered(b, gone, NOW_MS)], holds, 4, NOW_MS + GRACE_MS)
    assert back.discarded_logs == {3: 7}
    assert Counter(back.stores.values()) == {"a": 2, "b": 2}
    opened = {**holds, 3: ContainerHold("a", 8)}
    assert assign(back, [a, b], opened, 4, NOW_MS).discarded_logs == {}


def test_a_store_whose_task_has_stopped_is_not_waited_for():
    a, b = store("a"), store("b")
    made = spread(2, a, b)
    taken = assign(made, [a, task_stopped(b, NOW_MS)], held_by(made), 2, NOW_MS)
    assert taken == ContainerMap({0: "a", 1: "a"}, {1: 7})


def test_a_container_whose_log_is_on_an_unknown_store_waits():
    made = spread(2, store("a"), c1=ContainerHold("older", 3))
    assert made == ContainerMap({0: "a", 1: "older"}, {})
    joined = assign(made, [store("a"), store("older")], {1: ContainerHold("older", 3)}, 2, NOW_MS)
    assert joined == made


def test_an_unassigned_container_goes_to_the_store_of_its_log():
    assert spread(2, store("a"), store("b"), c0=ContainerHold("b", 1)).stores == {0: "b", 1: "a"}


@pytest.mark.parametrize(
    ("owner", "discarded", "expected"),
    [
        ("a", {}, ContainerAction.KEEP),
        (None, {}, ContainerAction.KEEP),
        ("b", {}, ContainerAction.HAND_OVER),
        ("b", {0: 7}, ContainerAction.HAND_OVER),
    ],
)
def test_action_of_a_store_about_a_container_it_serves(owner, discarded, expected):
    container_map = ContainerMap({0: owner} if owner else {}, discarded)
    assert action_when_open("a", 0, container_map) is expected


@pytest.mark.parametrize(
    ("owner", "hold", "discarded", "expected"),
    [
        ("a", None, {}, ContainerAction.OPEN),
        ("a", ("a", 7), {}, ContainerAction.OPEN),
        ("a", ("b", 7), {}, ContainerAction.WAIT),
        ("a", ("b", 7), {0: 7}, ContainerAction.OPEN),
        ("a", ("b", 8), {0: 7}, ContainerAction.WAIT),
        ("b", None, {}, ContainerAction.NOTHING),
        ("b", ("b", 7), {}, ContainerAction.NOTHING),
        ("b", ("a", 7), {}, ContainerAction.OPEN),
        ("b", ("a", 7), {0: 7}, ContainerAction.OPEN),
    ],
)
def test_action_of_a_store_about_a_container_it_does_not_serve(owner, hold, discarded, expected):
    found = None if hold is None else ContainerHold(*hold)
    assert action_when_closed("a", 0, found, ContainerMap({0: owner}, discarded)) is expected


def test_transitions_of_a_lease():
    first = store("a")
    assert (first.incarnation, first.state, first.lease_until_ms) == (1, StoreState.SERVING, NOW_MS + 10_000)
    end_ms = first.lease_until_ms + CLOCK_SKEW_MAX_MS
    assert not first.is_expired(end_ms)
    assert first.is_expired(end_ms + 1)
    assert renewed(first, NOW_MS + 5).lease_until_ms == NOW_MS + 10_005
    gone = lost(first, end_ms + 1)
    assert (gone.state, gone.ended_ms, gone.take_over_ms) == (StoreState.LOST, end_ms + 1, end_ms + 1 + GRACE_MS)
    assert not gone.is_expired(end_ms * 2)
    second = registered(first, gone, end_ms + 9)
    assert (second.incarnation, second.state, second.ended_ms, second.take_over_ms) == (
        2,
        StoreState.SERVING,
        None,
        None,
    )
    stopping = leaving(second, end_ms + 10)
    assert stopping.is_expired(stopping.lease_until_ms + CLOCK_SKEW_MAX_MS + 1)
    assert may_be_ended(stopping, stopping.lease_until_ms + CLOCK_SKEW_MAX_MS + 1)
    replicating, patience_ms = replace(stopping, replica_id="01" * 16), int(UNHEARD_S * 1000)
    assert not may_be_ended(replicating, replicating.lease_until_ms + CLOCK_SKEW_MAX_MS + patience_ms)
    assert may_be_ended(replicating, replicating.lease_until_ms + CLOCK_SKEW_MAX_MS + patience_ms + 1)
    stopped = left(stopping, end_ms + 20)
    assert (stopped.state, stopped.take_over_ms) == (StoreState.LEFT, end_ms + 20 + GRACE_MS)
    without_disk = task_stopped(stopped, end_ms + 30)
    assert (without_disk.state, without_disk.take_over_ms) == (StoreState.LEFT, end_ms + 30)
    assert task_stopped(without_disk, end_ms + 40) == without_disk


def test_ended_store_has_no_lease_any_more():
    first = store("a")
    for end in (left, lost, task_stopped):
        for at_ms in (NOW_MS + 7, first.lease_until_ms + 7):
            ended = end(first, at_ms)
            assert (ended.ended_ms, ended.lease_until_ms) == (at_ms, min(at_ms, first.lease_until_ms))
        back = renewed(ended, NOW_MS + 9)
        assert (back.ended_ms, back.take_over_ms, back.lease_until_ms) == (None, None, NOW_MS + 10_009)


def test_store_that_starts_serves_whatever_it_was_before():
    serving = noted_serving(store("a"), serves_something=True, now_ms=NOW_MS)
    again = registered(replace(serving, state=StoreState.LOST), serving, NOW_MS + 5)
    assert (again.state, again.unserved_since_ms) == (StoreState.SERVING, NOW_MS + 5)
    restarted = registered(again, again, NOW_MS + 9)
    assert restarted.unserved_since_ms == NOW_MS + 5, "it has served nothing in between"


def test_a_store_waits_for_its_former_self_on_another_disk_only():
    former = store("a")
    assert registration_wait_ms(None, "x", NOW_MS) == 0
    assert registration_wait_ms(former, former.volume, NOW_MS) == 0
    assert registration_wait_ms(left(former, NOW_MS), "x", NOW_MS) == 0
    assert registration_wait_ms(former, "x", NOW_MS) == 10_000 + CLOCK_SKEW_MAX_MS
    assert registration_wait_ms(former, "x", NOW_MS * 2) == 0


@pytest.mark.parametrize("log_in_s3", [False, True])
def test_containers_are_taken_over_when_their_store_cannot_serve(*, log_in_s3: bool):
    def may(lease: StoreLease | None, now_ms: int = NOW_MS) -> bool:
        return may_be_taken_over(lease, now_ms, log_in_s3=log_in_s3)

    serving = store("a")
    replicating = replace(serving, replica_id="01" * 16)
    assert may(None), "no store has it"
    assert not may(serving, NOW_MS * 9)
    assert not may(replicating, NOW_MS * 9)
    isolated = ReplicationStatus(isolated=True)
    assert may(replace(replicating, replication=isolated))
    assert not may(replace(serving, replication=isolated)), "its log has no other copy"
    gone = lost(serving, NOW_MS)
    assert may(gone, NOW_MS + GRACE_MS)
    assert may(gone, NOW_MS + GRACE_MS - 1) is log_in_s3


def test_status_of_a_container_is_that_of_its_log():
    there, away = store("a"), lost(store("b"), NOW_MS)
    leases = {"a": there, "b": away}
    on_a, on_b, elsewhere = (ContainerHold(name, 7) for name in ("a", "b", "c"))
    for hold, owner, discarded, status in [
        (None, "a", {}, ContainerStanding.FREE),
        (on_a, "a", {}, ContainerStanding.SERVED),
        (on_b, "b", {}, ContainerStanding.WAITING),
        (elsewhere, "c", {}, ContainerStanding.WAITING),
        (on_a, "b", {}, ContainerStanding.MOVING),
        (on_b, "a", {}, ContainerStanding.WAITING),
        (on_b, "a", {0: 7}, ContainerStanding.MOVING),
        (on_b, "a", {0: 6, 1: 7}, ContainerStanding.WAITING),
    ]:
        assert container_status(0, hold, ContainerMap({0: owner}, discarded), leases) is status


def test_a_store_is_forgotten_when_nothing_depends_on_it():
    gone, later = lost(store("a"), NOW_MS), NOW_MS + STORE_FORGOTTEN_AFTER_MS
    assert may_be_forgotten(gone, ContainerMap(), {}, later)
    assert may_be_forgotten(gone, ContainerMap(), {0: None}, later)
    assert not may_be_forgotten(gone, ContainerMap(), {}, later - 1)
    assert not may_be_forgotten(gone, ContainerMap({0: "a"}), {}, later)
    assert not may_be_forgotten(gone, ContainerMap(), {0: ContainerHold("a", 1)}, later)
    assert not may_be_forgotten(store("a"), ContainerMap(), {}, later)


def test_a_store_that_serves_nothing_gives_way_across_restarts():
    registered_store = store("a")
    assert registered_store.unserved_since_ms == NOW_MS
    served = noted_serving(registered_store, True, NOW_MS + 5)
    assert served.unserved_since_ms is None
    failing = noted_serving(served, False, NOW_MS + 10)
    assert noted_serving(failing, False, NOW_MS + 20).unserved_since_ms == NOW_MS + 10
    again = registered(registered_store, failing, NOW_MS + UNSERVED_MAX_MS)
    assert again.unserved_since_ms == NOW_MS + 10, "a restart does not count from the beginning"
    end_ms = NOW_MS + 10 + UNSERVED_MAX_MS
    assert giving_way_ms(again, end_ms) == 0
    assert giving_way_ms(served, end_ms + 1) == giving_way_ms(None, end_ms + 1) == 0
    ran_out = replace(again, lease_until_ms=end_ms)
    wait_ms = CLOCK_SKEW_MAX_MS + GRACE_MS + GIVING_WAY_MS
    assert giving_way_ms(ran_out, end_ms + 1) == wait_ms - 1
    assert giving_way_ms(lost(ran_out, end_ms + 5), end_ms + 5) == GRACE_MS + GIVING_WAY_MS
    assert giving_way_ms(ran_out, end_ms + wait_ms) == 0
    assert registered(registered_store, ran_out, end_ms + wait_ms).unserved_since_ms == end_ms + wait_ms


def test_the_disk_of_a_stopped_task_is_gone():
    running = store("a")
    assert not running.volume_gone
    assert not lost(running, NOW_MS).volume_gone
    assert not left(running, NOW_MS).volume_gone
    for ended in (running, lost(running, NOW_MS), left(running, NOW_MS)):
        gone = task_stopped(ended, NOW_MS + 5)
        assert gone.volume_gone
        assert task_stopped(gone, NOW_MS + 9) == gone
    assert not registered(running, task_stopped(running, NOW_MS), NOW_MS).volume_gone


def test_a_lease_says_what_became_of_the_stores_logs():
    status = ReplicationStatus(isolated=True, blocked=(3,), under_replicated=2)
    noted = noted_replication(store("a"), status)
    assert noted.replication == status
    assert renewed(noted, NOW_MS + 5).replication == status
    assert registered(store("a"), noted, NOW_MS).replication == ReplicationStatus()


def test_a_lease_keeps_its_newest_starts():
    lease = None
    for minute in range(STARTS_KEPT + 1):
        assert lease is None or not is_restarting(lease.starts_ms[:-1], NOW_MS), "too few starts"
        lease = registered(store("a"), lease, NOW_MS + minute * MINUTE_MS)
    assert lease is not None
    assert lease.starts_ms == tuple(NOW_MS + minute * MINUTE_MS for minute in range(1, STARTS_KEPT + 1))
    for other in (renewed, left, lost, task_stopped, leaving):
        assert other(lease, NOW_MS).starts_ms == lease.starts_ms
    first_ms = lease.starts_ms[0]
    assert is_restarting(lease.starts_ms, first_ms + RESTARTING_WITHIN_MS - 1)
    assert not is_restarting(lease.starts_ms, first_ms + RESTARTING_WITHIN_MS)
    assert not is_restarting((), NOW_MS), "of a store of release 0.2"


def test_starts_of_a_clock_that_was_ahead_are_forgotten():
    lease, day_ms = None, 24 * 60 * MINUTE_MS
    for minute in range(STARTS_KEPT):
        lease = registered(store("a"), lease, NOW_MS + day_ms + minute * MINUTE_MS)
    assert lease is not None
    assert not is_restarting(lease.starts_ms, NOW_MS)
    assert is_restarting(lease.starts_ms, lease.starts_ms[0] - RESTARTING_WITHIN_MS + 1), "the reader's clock is behind"
    assert registered(store("a"), lease, NOW_MS).starts_ms == (NOW_MS,)


def test_a_clock_that_was_set_back_makes_no_negative_time():
    lease = noted_flush_lag(store("a"), FLUSH_LAG_S_MAX + 1, 5_000)
    assert lease.unflushed_since_ms == 1
    assert decode_store_lease(store_lease_body(lease)) == lease


def test_a_lease_says_since_when_data_waits_for_tier_2():
    lease = noted_flush_lag(store("a"), FLUSH_LAG_S_MAX + 1, NOW_MS)
    assert lease.unflushed_since_ms == NOW_MS - 61_000
    assert renewed(lease, NOW_MS).unflushed_since_ms == NOW_MS - 61_000
    assert noted_flush_lag(lease, FLUSH_LAG_S_MAX, NOW_MS).unflushed_since_ms is None
    assert registered(store("a"), lease, NOW_MS).unflushed_since_ms is None, "the new process does not know it yet"


RANGES = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda pair: ProtocolVersions(min(pair), max(pair)))


@given(RANGES, RANGES)
def test_shared_versions_are_those_that_both_speak(first: ProtocolVersions, second: ProtocolVersions):
    common = set(range(first.low, first.high + 1)) & set(range(second.low, second.high + 1))
    shared = first.shared(second)
    assert shared == second.shared(first)
    assert common == (set() if shared is None else set(range(shared.low, shared.high + 1)))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 1), (1, VERSION_MAX + 1)])
def test_impossible_versions_are_refused(low: int, high: int):
    with pytest.raises(InvalidRequestError, match="the lowest one first"):
        ProtocolVersions(low, high)


def test_versions_are_named_as_people_say_them():
    assert [str(ProtocolVersions(*each)) for each in ((3, 3), (1, VERSION_MAX))] == ["version 3", "versions 1 to 65535"]


def test_this_release_speaks_that_of_leases_without_versions():
    assert REPLICA_PROTOCOL.shared(FIRST_PROTOCOL) == FIRST_PROTOCOL


def test_containers_of_a_store_are_in_order():
    assert ContainerMap({3: "a", 1: "a", 2: "b", 0: "a"}).containers_of("a") == (0, 1, 3)


def test_only_a_store_with_a_replica_ends_silently():
    alone = StoreLease("a", "h", 1, "z", 1, "disk-a", "task-a", 0)
    served = replace(alone, replica_id="r")
    ended = replace(served, state=StoreState.LOST)
    assert [has_ended_silently(lease, 1e6, 1e6) for lease in (alone, served, ended)] == [False, True, False]


@pytest.mark.parametrize(
    ("silent_s", "unchanged_s", "has_ended"),
    [
        (SILENT_S, UNCHANGED_S, True),
        (SILENT_S - 0.1, 1e6, False),
        (1e6, UNCHANGED_S - 0.1, False),
        (None, UNCHANGED_WITHOUT_LINK_S, True),
        (None, UNCHANGED_WITHOUT_LINK_S - 0.1, False),
    ],
)
def test_a_store_ends_when_its_replica_and_lease_are_still(silent_s: float | None, unchanged_s: float, has_ended: bool):
    lease = StoreLease("a", "h", 1, "z", 1, "disk-a", "task-a", 0, replica_id="r")
    assert has_ended_silently(lease, silent_s, unchanged_s) == has_ended
