"""Ensembles: quorums overlap, and positions follow from them."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.container_logs import NO_POSITION, Ensemble, ReplicaId, joint_quorum_position

A, B, C, D = (ReplicaId(bytes([number]) * 16) for number in range(4))


@pytest.mark.parametrize(
    ("members", "copies", "ack", "read"),
    [((A, B, C), 3, 2, 2), ((A, B), 3, 2, 1), ((A,), 3, 2, 1), ((A,), 1, 1, 1)],
)
def test_quorums_follow_from_members_and_copies(members: tuple[ReplicaId, ...], copies: int, ack: int, read: int):
    ensemble = Ensemble(members, copies)
    assert (ensemble.ack_quorum, ensemble.read_quorum) == (ack, read)


@pytest.mark.parametrize("ensemble", [Ensemble((A, B, C)), Ensemble((A, B)), Ensemble((A,), 1)])
def test_each_read_quorum_meets_each_ack_quorum(ensemble: Ensemble):
    for writers in combinations(ensemble.members, ensemble.ack_quorum):
        for readers in combinations(ensemble.members, ensemble.read_quorum):
            assert set(writers) & set(readers)


def test_quorum_position_is_the_second_largest():
    positions = {A: 9, B: 7, C: 3}
    assert Ensemble((A, B, C)).quorum_position(positions) == 7
    assert Ensemble((A, C)).quorum_position(positions) == 3
    assert {Ensemble(members).quorum_position(positions) for members in permutations((A, B, C))} == {7}


def test_members_without_a_position_hold_nothing():
    assert Ensemble((A, B, C)).quorum_position({A: 9}) == NO_POSITION


def test_single_member_of_three_copies_acknowledges_nothing():
    assert Ensemble((A,)).quorum_position({A: 9}) == NO_POSITION


def test_one_copy_acknowledges_by_itself():
    assert Ensemble((A,), 1).quorum_position({A: 9}) == 9


def test_replicas_outside_the_ensemble_do_not_answer_for_it():
    assert not Ensemble((A, B, C)).is_read_quorum({A, D})
    assert Ensemble((A, B, C)).is_read_quorum({A, C, D})


@given(st.dictionaries(st.sampled_from([A, B, C, D]), st.integers(-1, 20)))
def test_joint_position_never_exceeds_either_ensemble(positions: dict[ReplicaId, int]):
    current, wanted = Ensemble((A, B, C)), Ensemble((A, B, D))
    joint = joint_quorum_position(current, wanted, positions)
    assert joint == min(current.quorum_position(positions), wanted.quorum_position(positions))
    assert joint_quorum_position(current, None, positions) == current.quorum_position(positions)
