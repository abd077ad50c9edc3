"""One change of the ensemble at a time, and what is written while its outcome is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from takeovers import LOG, OWN, B, C, D

from headrace.model.container_logs import COPIES_MIN, Ensemble, LedgerStart, ReplicaId
from headrace.model.replica_placement import Placement
from headrace.replication.bounds import WriterBounds
from headrace.replication.effects import ReadRecord, WriteRecord, WriterEffect
from headrace.replication.ensemble_change import (
    ChangePhase,
    EnsembleChange,
    MemberView,
    RepairBounds,
    members_after_takeover,
    next_ensemble,
    wanted_learners,
)

BOUNDS = WriterBounds(record_retry_ms=200, change_patience_ms=5_000)
VERSION, EPOCH = 7, 6
WANTED = Ensemble((OWN, B, D))
BEGAN = 1_000


def change() -> EnsembleChange:
    made = EnsembleChange(LOG, VERSION, EPOCH, BOUNDS)
    made.begin(WANTED, BEGAN)
    return made


def advance(
    made: EnsembleChange, now_ms: int, *, holds: int = 20, truncated: int = 12, stalls: bool = False
) -> list[WriterEffect]:
    return made.advance(holds, 20, truncated, now_ms, stalls=stalls)


def written_members(effects: list[WriterEffect]) -> tuple[object, ...]:
    (effect,) = effects
    assert isinstance(effect, WriteRecord)
    return effect.log.members


def test_nothing_is_written_without_a_change():
    made = EnsembleChange(LOG, VERSION, EPOCH, BOUNDS)
    assert advance(made, 0) == advance(made, 10**9, stalls=True) == []
    assert made.phase is ChangePhase.NONE
    assert made.wanted is None


def test_the_record_waits_for_what_is_acknowledged():
    made = change()
    assert advance(made, BEGAN, holds=19) == []
    assert made.wanted == WANTED
    assert not made.is_asking
    assert advance(made, BEGAN, holds=20) == [WriteRecord(LOG.with_members(WANTED.members, 12), VERSION, EPOCH)]
    assert made.is_asking
    assert advance(made, BEGAN) == [], "the request is under way"
    made.written(VERSION + 1)
    assert (made.phase, made.wanted, made.version) == (ChangePhase.NONE, None, VERSION + 1)
    assert made.current == WANTED
    assert made.log.truncated_before == 12


def test_a_change_that_gets_nowhere_is_given_up():
    made = change()
    assert advance(made, BEGAN + BOUNDS.change_patience_ms - 1, holds=0) == []
    assert made.wanted == WANTED
    assert advance(made, BEGAN + BOUNDS.change_patience_ms, holds=0) == []
    assert (made.phase, made.wanted) == (ChangePhase.NONE, None)
    made.begin(Ensemble((OWN, B)), BEGAN + 6_000)
    assert made.wanted == Ensemble((OWN, B))


def test_an_unknown_write_is_repeated_under_its_version():
    made = change()
    first = advance(made, BEGAN)
    made.unknown(BEGAN + 50)
    assert advance(made, BEGAN + 50 + BOUNDS.record_retry_ms - 1, truncated=15) == []
    assert advance(made, BEGAN + 50 + BOUNDS.record_retry_ms, truncated=15) == first
    assert made.wanted == WANTED, "both ensembles count until a higher version is seen"


def test_an_unknown_change_that_stalls_is_written_back():
    made = change()
    advance(made, BEGAN)
    made.unknown(BEGAN + 10)
    early = BEGAN + BOUNDS.change_patience_ms - 1
    assert written_members(advance(made, early, stalls=True)) == WANTED.members
    made.unknown(early)
    late = early + BOUNDS.record_retry_ms
    assert written_members(advance(made, late, stalls=False)) == WANTED.members, "it holds up nothing"
    made.unknown(late)
    back_ms = late + BOUNDS.record_retry_ms
    assert advance(made, back_ms, truncated=17, stalls=True) == [
        WriteRecord(LOG.with_members(LOG.members, 17), VERSION, EPOCH)
    ]
    made.unknown(back_ms)
    again = advance(made, back_ms + BOUNDS.record_retry_ms, truncated=19, stalls=True)
    assert again == [WriteRecord(LOG.with_members(LOG.members, 17), VERSION, EPOCH)], "patience begins again"
    made.written(VERSION + 1)
    assert made.current.members == LOG.members


def test_patience_counts_to_the_millisecond():
    made = change()
    advance(made, BEGAN)
    made.unknown(BEGAN)
    assert written_members(advance(made, BEGAN + BOUNDS.change_patience_ms, stalls=True)) == LOG.members


def test_only_a_higher_version_ends_the_change():
    made = change()
    advance(made, BEGAN)
    assert made.conflict() == [ReadRecord()]
    assert made.is_asking
    assert advance(made, BEGAN + 10_000, stalls=True) == [], "the read is under way"
    made.record_read(LOG, VERSION, BEGAN + 20)
    assert made.phase is ChangePhase.UNKNOWN
    assert made.wanted == WANTED
    assert advance(made, BEGAN + 20 + BOUNDS.record_retry_ms - 1) == []
    assert advance(made, BEGAN + 20 + BOUNDS.record_retry_ms)
    made.conflict()
    seen = LOG.with_members((OWN, C), 10)
    made.record_read(seen, VERSION + 2, BEGAN + 500)
    assert (made.log, made.version, made.phase, made.wanted) == (seen, VERSION + 2, ChangePhase.NONE, None)


@pytest.mark.parametrize("truncated", [10, 14])
def test_the_record_gets_the_truncation_point(truncated: int):
    made = change()
    (effect,) = advance(made, BEGAN, truncated=truncated)
    assert isinstance(effect, WriteRecord)
    assert effect.log.truncated_before == truncated
    assert effect.log.ledgers == (LedgerStart(5, 10),)


REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C, C2, REPAIR_POLICY_D, E = (
    ReplicaId(bytes([number]) * 16) for number in range(6)
)
ZONES = {REPAIR_POLICY_OWN: "a", REPAIR_POLICY_B: "b", REPAIR_POLICY_C: "c", C2: "c", REPAIR_POLICY_D: "b"}
STREAMING = MemberView(True, 0, 0, True)
DOWN = MemberView(False, 20_000, 0, False)
LATE = MemberView(False, 0, 1000, False)
REPAIR_POLICY_BOUNDS = RepairBounds(silence_ms=10_000, lag_bytes=100)


def placement(third: ReplicaId = REPAIR_POLICY_C, destroyed: frozenset[ReplicaId] = frozenset()) -> Placement:
    return Placement({"a": REPAIR_POLICY_OWN, "b": REPAIR_POLICY_B, "c": third}, ZONES, destroyed)


def changed(ensemble: Ensemble, views: dict[ReplicaId, MemberView], where: Placement) -> set[ReplicaId] | None:
    wanted = next_ensemble(ensemble, REPAIR_POLICY_OWN, views, where, REPAIR_POLICY_BOUNDS)
    return None if wanted is None else set(wanted.members)


WHOLE = Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C))
ALL_STREAM = {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: STREAMING, REPAIR_POLICY_C: STREAMING, C2: STREAMING}


def test_healthy_ensemble_is_kept():
    assert changed(WHOLE, ALL_STREAM, placement()) is None


def test_silent_member_is_removed_if_the_others_stream():
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_C: DOWN}, placement()) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B}
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_B: LATE, REPAIR_POLICY_C: DOWN}, placement()) is None


def test_member_that_lags_too_far_is_removed():
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_C: LATE}, placement()) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B}


def test_owner_whose_own_disk_lags_stays_a_member():
    """It reads its log from its own journal."""
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_OWN: LATE}, placement()) is None


def test_owner_that_leaves_stays_a_member():
    """Its store moves its containers away before it ends."""
    assert changed(WHOLE, ALL_STREAM, placement(destroyed=frozenset([REPAIR_POLICY_OWN]))) is None


def test_two_members_are_never_reduced_to_one():
    assert (
        changed(
            Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B)),
            {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: DOWN},
            placement(),
        )
        is None
    )
    assert (
        changed(
            Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B)),
            {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: DOWN},
            placement(destroyed=frozenset([REPAIR_POLICY_B])),
        )
        is None
    )


def test_learner_replaces_one_of_two_destroyed_members():
    """Without the other one no quorum could be reached: two of them must not be what remains."""
    views = {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: DOWN, REPAIR_POLICY_C: DOWN}
    both = placement(C2, frozenset([REPAIR_POLICY_B, REPAIR_POLICY_C]))
    assert changed(WHOLE, views, both) is None
    assert changed(WHOLE, views | {C2: STREAMING}, both) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B, C2}


def test_one_of_two_leaving_members_may_go():
    leaving = placement(destroyed=frozenset([REPAIR_POLICY_B, REPAIR_POLICY_C]))
    assert changed(WHOLE, ALL_STREAM, leaving) == {REPAIR_POLICY_OWN, REPAIR_POLICY_C}
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_C: DOWN}, leaving) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B}


def test_destroyed_member_is_removed_at_once():
    assert changed(
        WHOLE,
        {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: LATE, REPAIR_POLICY_C: DOWN},
        placement(C2, frozenset([REPAIR_POLICY_C])),
    ) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B}


def test_destroyed_member_is_replaced_by_a_learner_that_is_ready():
    two = Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_C))
    where = Placement({"a": REPAIR_POLICY_OWN, "b": REPAIR_POLICY_B, "c": C2}, ZONES, frozenset([REPAIR_POLICY_C]))
    assert changed(two, {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_C: DOWN, C2: STREAMING}, where) == {
        REPAIR_POLICY_OWN,
        C2,
    }


def test_two_destroyed_members_of_unknown_zones_are_replaced():
    """Neither can only be removed, since two members would not remain."""
    where = Placement(
        {"a": REPAIR_POLICY_OWN, "b": REPAIR_POLICY_D, "c": C2},
        {REPAIR_POLICY_OWN: "a", REPAIR_POLICY_D: "b", C2: "c"},
        frozenset([REPAIR_POLICY_B, REPAIR_POLICY_C]),
    )
    assert wanted_learners(WHOLE, REPAIR_POLICY_OWN, where) == (REPAIR_POLICY_D, C2)
    assert changed(
        WHOLE,
        {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: DOWN, REPAIR_POLICY_C: DOWN, REPAIR_POLICY_D: STREAMING},
        where,
    ) == {REPAIR_POLICY_OWN, REPAIR_POLICY_C, REPAIR_POLICY_D}


def test_learner_joins_when_it_is_ready():
    two = Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B))
    assert wanted_learners(two, REPAIR_POLICY_OWN, placement()) == (REPAIR_POLICY_C,)
    assert (
        changed(two, {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: STREAMING, REPAIR_POLICY_C: LATE}, placement())
        is None
    )
    assert changed(two, ALL_STREAM, placement()) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C}


def test_wanted_replica_replaces_the_member_of_its_zone():
    assert wanted_learners(WHOLE, REPAIR_POLICY_OWN, placement(C2)) == (C2,)
    assert changed(WHOLE, ALL_STREAM, placement(C2)) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B, C2}


def test_owner_is_never_replaced_in_its_zone():
    where = Placement(
        {"a": REPAIR_POLICY_D, "b": REPAIR_POLICY_B, "c": REPAIR_POLICY_C}, ZONES | {REPAIR_POLICY_D: "a"}
    )
    assert wanted_learners(WHOLE, REPAIR_POLICY_OWN, where) == ()


replicas = st.sampled_from([REPAIR_POLICY_B, REPAIR_POLICY_C, C2, REPAIR_POLICY_D])
views = st.sampled_from([STREAMING, DOWN, LATE])


@given(
    st.sets(replicas, min_size=1, max_size=2).filter(lambda some: len({ZONES[one] for one in some}) == len(some)),
    st.dictionaries(replicas, views),
    st.sampled_from([REPAIR_POLICY_B, REPAIR_POLICY_D]),
    st.sampled_from([REPAIR_POLICY_C, C2]),
    st.frozensets(replicas),
)
def test_any_change_keeps_owner_zones_and_size(
    others: set[ReplicaId],
    seen: dict[ReplicaId, MemberView],
    second: ReplicaId,
    third: ReplicaId,
    destroyed: frozenset[ReplicaId],
):
    ensemble = Ensemble((REPAIR_POLICY_OWN, *sorted(others)))
    where = Placement({"a": REPAIR_POLICY_OWN, "b": second, "c": third}, ZONES, destroyed)
    wanted = next_ensemble(
        ensemble, REPAIR_POLICY_OWN, seen | {REPAIR_POLICY_OWN: STREAMING}, where, REPAIR_POLICY_BOUNDS
    )
    if wanted is None:
        return
    assert REPAIR_POLICY_OWN in wanted.members
    assert COPIES_MIN <= len(wanted.members) <= 3
    assert len({ZONES[one] for one in wanted.members}) == len(wanted.members)
    assert len(set(wanted.members) - set(ensemble.members)) <= 1
    assert len(set(ensemble.members) - set(wanted.members)) <= 1


def test_leaving_member_stays_while_another_one_is_down():
    leaving = placement(destroyed=frozenset({REPAIR_POLICY_C}))
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_B: MemberView(False, 0, 0, False)}, leaving) is None
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_B: DOWN}, leaving) == {REPAIR_POLICY_OWN, REPAIR_POLICY_C}
    assert changed(WHOLE, ALL_STREAM, leaving) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B}


def test_destroyed_member_goes_although_another_one_is_down():
    assert changed(
        WHOLE,
        {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: DOWN, REPAIR_POLICY_C: DOWN},
        placement(destroyed=frozenset({REPAIR_POLICY_C})),
    ) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B}


def test_takeover_waits_for_zones_of_new_stores():
    known = {one: zone for one, zone in ZONES.items() if one != REPAIR_POLICY_D}
    assert members_after_takeover(
        (REPAIR_POLICY_OWN, REPAIR_POLICY_D, REPAIR_POLICY_C),
        Ensemble((REPAIR_POLICY_D, REPAIR_POLICY_C, REPAIR_POLICY_B)),
        known,
    ) == (REPAIR_POLICY_OWN, REPAIR_POLICY_C)
    assert members_after_takeover(
        (REPAIR_POLICY_OWN, REPAIR_POLICY_D), Ensemble((REPAIR_POLICY_D, REPAIR_POLICY_C, REPAIR_POLICY_B)), known
    ) == (REPAIR_POLICY_OWN,)
    assert members_after_takeover(
        (REPAIR_POLICY_OWN, REPAIR_POLICY_D), Ensemble((REPAIR_POLICY_D, REPAIR_POLICY_C, REPAIR_POLICY_B)), ZONES
    ) == (REPAIR_POLICY_OWN, REPAIR_POLICY_D)


def test_takeover_has_one_member_of_a_zone():
    assert members_after_takeover(
        (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_D, REPAIR_POLICY_C),
        Ensemble((REPAIR_POLICY_B, REPAIR_POLICY_D, REPAIR_POLICY_C)),
        ZONES,
    ) == (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C)


def test_owner_of_an_unknown_zone_stays():
    assert members_after_takeover(
        (REPAIR_POLICY_OWN, REPAIR_POLICY_B),
        Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C)),
        {REPAIR_POLICY_B: "b"},
    ) == (REPAIR_POLICY_OWN, REPAIR_POLICY_B)


FOUR = Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C), copies=4)


@pytest.mark.parametrize(
    ("ensemble", "views", "where", "expected"),
    [
        (FOUR, ALL_STREAM | {REPAIR_POLICY_C: DOWN}, placement(), (REPAIR_POLICY_OWN, REPAIR_POLICY_B)),
        (
            FOUR,
            {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: LATE, REPAIR_POLICY_C: DOWN},
            placement(C2, frozenset([REPAIR_POLICY_C])),
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B),
        ),
        (FOUR, ALL_STREAM, placement(C2, frozenset([REPAIR_POLICY_C])), (REPAIR_POLICY_OWN, REPAIR_POLICY_B, C2)),
        (FOUR, ALL_STREAM, placement(C2), (REPAIR_POLICY_OWN, REPAIR_POLICY_B, C2)),
        (
            Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B), copies=4),
            ALL_STREAM,
            placement(),
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C),
        ),
    ],
    ids=["silent", "removed", "replaced", "moved", "added"],
)
def test_a_change_keeps_the_wanted_copies(
    ensemble: Ensemble, views: dict[ReplicaId, MemberView], where: Placement, expected: tuple[ReplicaId, ...]
):
    assert next_ensemble(ensemble, REPAIR_POLICY_OWN, views, where, REPAIR_POLICY_BOUNDS) == Ensemble(
        expected, copies=4
    )


def test_a_whole_ensemble_gets_no_further_member():
    """Each copy costs the bandwidth of all appends."""
    where = Placement({"a": REPAIR_POLICY_OWN, "b": REPAIR_POLICY_B, "c": REPAIR_POLICY_C, "d": E}, ZONES | {E: "d"})
    assert wanted_learners(WHOLE, REPAIR_POLICY_OWN, where) == ()
    assert changed(WHOLE, ALL_STREAM | {E: STREAMING}, where) is None
    assert wanted_learners(Ensemble((REPAIR_POLICY_OWN, REPAIR_POLICY_B)), REPAIR_POLICY_OWN, where) == (
        REPAIR_POLICY_C,
        E,
    )
    with_one_lost = replace(where, destroyed=frozenset([REPAIR_POLICY_C]))
    assert wanted_learners(WHOLE, REPAIR_POLICY_OWN, with_one_lost) == (E,)
    assert changed(WHOLE, ALL_STREAM | {E: STREAMING}, with_one_lost) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B, E}


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
    assert changed(WHOLE, ALL_STREAM | {REPAIR_POLICY_C: view}, placement()) == (
        {REPAIR_POLICY_OWN, REPAIR_POLICY_B} if is_removed else None
    )


@pytest.mark.parametrize(
    ("candidates", "members", "copies", "expected"),
    [
        (
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C),
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B),
            3,
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B),
        ),
        (
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C),
            (REPAIR_POLICY_C, E),
            3,
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C),
        ),
        (
            (REPAIR_POLICY_OWN, REPAIR_POLICY_C, REPAIR_POLICY_B),
            (REPAIR_POLICY_B, E),
            3,
            (REPAIR_POLICY_OWN, REPAIR_POLICY_C, REPAIR_POLICY_B),
        ),
        (
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C, E),
            (REPAIR_POLICY_B, REPAIR_POLICY_C, E),
            3,
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C),
        ),
        (
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C, E),
            (REPAIR_POLICY_B, REPAIR_POLICY_C, E),
            4,
            (REPAIR_POLICY_OWN, REPAIR_POLICY_B, REPAIR_POLICY_C, E),
        ),
        ((REPAIR_POLICY_OWN, REPAIR_POLICY_B), (REPAIR_POLICY_OWN,), 1, (REPAIR_POLICY_OWN,)),
    ],
)
def test_a_takeover_keeps_members_and_fills_up(
    candidates: tuple[ReplicaId, ...], members: tuple[ReplicaId, ...], copies: int, expected: tuple[ReplicaId, ...]
):
    ensemble = Ensemble(members, copies)
    assert members_after_takeover(candidates, ensemble, ZONES | {E: "d"}) == expected


def test_a_member_that_is_relied_on_gets_no_fourth_copy():
    """It leaves, but another one is away: the learner replaces it as soon as it streams."""
    where = Placement(
        {"a": REPAIR_POLICY_OWN, "b": REPAIR_POLICY_B, "d": E}, ZONES | {E: "d"}, frozenset([REPAIR_POLICY_C])
    )
    away = MemberView(False, 0, 0, False)
    near = MemberView(False, 0, 0, True)
    views = {REPAIR_POLICY_OWN: STREAMING, REPAIR_POLICY_B: away, REPAIR_POLICY_C: STREAMING}
    assert changed(WHOLE, views | {E: near}, where) is None
    assert changed(WHOLE, views | {E: STREAMING}, where) == {REPAIR_POLICY_OWN, REPAIR_POLICY_B, E}
