"""Which change of an ensemble comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.container_logs import COPIES_MIN, Ensemble, ReplicaId
from headrace.model.replica_placement import Placement
from headrace.replication.ensemble_change import (
    MemberView,
    RepairBounds,
    members_after_takeover,
    next_ensemble,
    wanted_learners,
)

OWN, B, C, C2, D, E = (ReplicaId(bytes([number]) * 16) for number in range(6))
ZONES = {OWN: "a", B: "b", C: "c", C2: "c", D: "b"}
STREAMING = MemberView(True, 0, 0, True)
DOWN = MemberView(False, 20_000, 0, False)
LATE = MemberView(False, 0, 1000, False)
BOUNDS = RepairBounds(silence_ms=10_000, lag_bytes=100)


def placement(third: ReplicaId = C, destroyed: frozenset[ReplicaId] = frozenset()) -> Placement:
    return Placement({"a": OWN, "b": B, "c": third}, ZONES, destroyed)


def changed(ensemble: Ensemble, views: dict[ReplicaId, MemberView], where: Placement) -> set[ReplicaId] | None:
    wanted = next_ensemble(ensemble, OWN, views, where, BOUNDS)
    return None if wanted is None else set(wanted.members)


WHOLE = Ensemble((OWN, B, C))
ALL_STREAM = {OWN: STREAMING, B: STREAMING, C: STREAMING, C2: STREAMING}


def test_healthy_ensemble_is_kept():
    assert changed(WHOLE, ALL_STREAM, placement()) is None


def test_silent_member_is_removed_if_the_others_stream():
    assert changed(WHOLE, ALL_STREAM | {C: DOWN}, placement()) == {OWN, B}
    assert changed(WHOLE, ALL_STREAM | {B: LATE, C: DOWN}, placement()) is None


def test_member_that_lags_too_far_is_removed():
    assert changed(WHOLE, ALL_STREAM | {C: LATE}, placement()) == {OWN, B}


def test_owner_whose_own_disk_lags_stays_a_member():
    """It reads its log from its own journal."""
    assert changed(WHOLE, ALL_STREAM | {OWN: LATE}, placement()) is None


def test_owner_that_leaves_stays_a_member():
    """Its store moves its containers away before it ends."""
    assert changed(WHOLE, ALL_STREAM, placement(destroyed=frozenset([OWN]))) is None


def test_two_members_are_never_reduced_to_one():
    assert changed(Ensemble((OWN, B)), {OWN: STREAMING, B: DOWN}, placement()) is None
    assert changed(Ensemble((OWN, B)), {OWN: STREAMING, B: DOWN}, placement(destroyed=frozenset([B]))) is None


def test_learner_replaces_one_of_two_destroyed_members():
    """Without the other one no quorum could be reached: two of them must not be what remains."""
    views = {OWN: STREAMING, B: DOWN, C: DOWN}
    both = placement(C2, frozenset([B, C]))
    assert changed(WHOLE, views, both) is None
    assert changed(WHOLE, views | {C2: STREAMING}, both) == {OWN, B, C2}


def test_one_of_two_leaving_members_may_go():
    leaving = placement(destroyed=frozenset([B, C]))
    assert changed(WHOLE, ALL_STREAM, leaving) == {OWN, C}
    assert changed(WHOLE, ALL_STREAM | {C: DOWN}, leaving) == {OWN, B}


def test_destroyed_member_is_removed_at_once():
    assert changed(WHOLE, {OWN: STREAMING, B: LATE, C: DOWN}, placement(C2, frozenset([C]))) == {OWN, B}


def test_destroyed_member_is_replaced_by_a_learner_that_is_ready():
    two = Ensemble((OWN, C))
    where = Placement({"a": OWN, "b": B, "c": C2}, ZONES, frozenset([C]))
    assert changed(two, {OWN: STREAMING, C: DOWN, C2: STREAMING}, where) == {OWN, C2}


def test_two_destroyed_members_of_unknown_zones_are_replaced():
    """Neither can only be removed, since two members would not remain."""
    where = Placement({"a": OWN, "b": D, "c": C2}, {OWN: "a", D: "b", C2: "c"}, frozenset([B, C]))
    assert wanted_learners(WHOLE, OWN, where) == (D, C2)
    assert changed(WHOLE, {OWN: STREAMING, B: DOWN, C: DOWN, D: STREAMING}, where) == {OWN, C, D}


def test_learner_joins_when_it_is_ready():
    two = Ensemble((OWN, B))
    assert wanted_learners(two, OWN, placement()) == (C,)
    assert changed(two, {OWN: STREAMING, B: STREAMING, C: LATE}, placement()) is None
    assert changed(two, ALL_STREAM, placement()) == {OWN, B, C}


def test_wanted_replica_replaces_the_member_of_its_zone():
    assert wanted_learners(WHOLE, OWN, placement(C2)) == (C2,)
    assert changed(WHOLE, ALL_STREAM, placement(C2)) == {OWN, B, C2}


def test_owner_is_never_replaced_in_its_zone():
    where = Placement({"a": D, "b": B, "c": C}, ZONES | {D: "a"})
    assert wanted_learners(WHOLE, OWN, where) == ()


replicas = st.sampled_from([B, C, C2, D])
views = st.sampled_from([STREAMING, DOWN, LATE])


@given(
    st.sets(replicas, min_size=1, max_size=2).filter(
        lambda some: len({ZONES[replica] for replica in some}) == len(some)
    ),
    st.dictionaries(replicas, views),
    st.sampled_from([B, D]),
    st.sampled_from([C, C2]),
    st.frozensets(replicas),
)
def test_any_change_keeps_owner_zones_and_size(
    others: set[ReplicaId],
    seen: dict[ReplicaId, MemberView],
    second: ReplicaId,
    third: ReplicaId,
    destroyed: frozenset[ReplicaId],
):
    ensemble = Ensemble((OWN, *sorted(others)))
    where = Placement({"a": OWN, "b": second, "c": third}, ZONES, destroyed)
    wanted = next_ensemble(ensemble, OWN, seen | {OWN: STREAMING}, where, BOUNDS)
    if wanted is None:
        return
    assert OWN in wanted.members
    assert COPIES_MIN <= len(wanted.members) <= 3
    assert len({ZONES[member] for member in wanted.members}) == len(wanted.members)
    assert len(set(wanted.members) - set(ensemble.members)) <= 1
    assert len(set(ensemble.members) - set(wanted.members)) <= 1


def test_leaving_member_stays_while_another_one_is_down():
    leaving = placement(destroyed=frozenset({C}))
    assert changed(WHOLE, ALL_STREAM | {B: MemberView(False, 0, 0, False)}, leaving) is None
    assert changed(WHOLE, ALL_STREAM | {B: DOWN}, leaving) == {OWN, C}
    assert changed(WHOLE, ALL_STREAM, leaving) == {OWN, B}


def test_destroyed_member_goes_although_another_one_is_down():
    assert changed(WHOLE, {OWN: STREAMING, B: DOWN, C: DOWN}, placement(destroyed=frozenset({C}))) == {OWN, B}


def test_takeover_waits_for_zones_of_new_stores():
    known = {replica: zone for replica, zone in ZONES.items() if replica != D}
    assert members_after_takeover((OWN, D, C), Ensemble((D, C, B)), known) == (OWN, C)
    assert members_after_takeover((OWN, D), Ensemble((D, C, B)), known) == (OWN,)
    assert members_after_takeover((OWN, D), Ensemble((D, C, B)), ZONES) == (OWN, D)


def test_takeover_has_one_member_of_a_zone():
    assert members_after_takeover((OWN, B, D, C), Ensemble((B, D, C)), ZONES) == (OWN, B, C)


def test_owner_of_an_unknown_zone_stays():
    assert members_after_takeover((OWN, B), Ensemble((OWN, B, C)), {B: "b"}) == (OWN, B)


FOUR = Ensemble((OWN, B, C), copies=4)


@pytest.mark.parametrize(
    ("ensemble", "views", "where", "expected"),
    [
        (FOUR, ALL_STREAM | {C: DOWN}, placement(), (OWN, B)),
        (FOUR, {OWN: STREAMING, B: LATE, C: DOWN}, placement(C2, frozenset([C])), (OWN, B)),
        (FOUR, ALL_STREAM, placement(C2, frozenset([C])), (OWN, B, C2)),
        (FOUR, ALL_STREAM, placement(C2), (OWN, B, C2)),
        (Ensemble((OWN, B), copies=4), ALL_STREAM, placement(), (OWN, B, C)),
    ],
    ids=["silent", "removed", "replaced", "moved", "added"],
)
def test_a_change_keeps_the_wanted_copies(
    ensemble: Ensemble, views: dict[ReplicaId, MemberView], where: Placement, expected: tuple[ReplicaId, ...]
):
    assert next_ensemble(ensemble, OWN, views, where, BOUNDS) == Ensemble(expected, copies=4)


def test_a_whole_ensemble_gets_no_further_member():
    """Each copy costs the bandwidth of all appends."""
    where = Placement({"a": OWN, "b": B, "c": C, "d": E}, ZONES | {E: "d"})
    assert wanted_learners(WHOLE, OWN, where) == ()
    assert changed(WHOLE, ALL_STREAM | {E: STREAMING}, where) is None
    assert wanted_learners(Ensemble((OWN, B)), OWN, where) == (C, E)
    with_one_lost = replace(where, destroyed=frozenset([C]))
    assert wanted_learners(WHOLE, OWN, with_one_lost) == (E,)
    assert changed(WHOLE, ALL_STREAM | {E: STREAMING}, with_one_lost) == {OWN, B, E}


@pytest.mark.parametrize(
    ("view", "is_removed"),
    [
        (MemberView(False, 9_999, 0, False), False),
        (MemberView(False, 10_000, 0, False), True),
        (MemberView(False, 0, 100, False), False),
        (MemberView(False, 0, 101, False), True),
    ],
)
def test_a_member_is_late_from_its_bounds_on(view: MemberView, is_removed: bool):
    assert changed(WHOLE, ALL_STREAM | {C: view}, placement()) == ({OWN, B} if is_removed else None)


@pytest.mark.parametrize(
    ("candidates", "members", "copies", "expected"),
    [
        ((OWN, B, C), (OWN, B), 3, (OWN, B)),
        ((OWN, B, C), (C, E), 3, (OWN, B, C)),
        ((OWN, C, B), (B, E), 3, (OWN, C, B)),
        ((OWN, B, C, E), (B, C, E), 3, (OWN, B, C)),
        ((OWN, B, C, E), (B, C, E), 4, (OWN, B, C, E)),
        ((OWN, B), (OWN,), 1, (OWN,)),
    ],
)
def test_a_takeover_keeps_members_and_fills_up(
    candidates: tuple[ReplicaId, ...], members: tuple[ReplicaId, ...], copies: int, expected: tuple[ReplicaId, ...]
):
    ensemble = Ensemble(members, copies)
    assert members_after_takeover(candidates, ensemble, ZONES | {E: "d"}) == expected


def test_a_member_that_is_relied_on_gets_no_fourth_copy():
    """It leaves, but another one is away: the learner replaces it as soon as it streams."""
    where = Placement({"a": OWN, "b": B, "d": E}, ZONES | {E: "d"}, frozenset([C]))
    away = MemberView(False, 0, 0, False)
    near = MemberView(False, 0, 0, True)
    views = {OWN: STREAMING, B: away, C: STREAMING}
    assert changed(WHOLE, views | {E: near}, where) is None
    assert changed(WHOLE, views | {E: STREAMING}, where) == {OWN, B, E}


def test_destroyed_member_that_streams_is_relied_on():
    """Nothing can replace it, and without it one member would be left."""
    views = {OWN: STREAMING, B: STREAMING}
    assert changed(Ensemble((OWN, B)), views, placement(destroyed=frozenset([B]))) is None
