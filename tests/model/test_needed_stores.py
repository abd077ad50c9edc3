"""Until when a store that stops is needed, and when a copy may be dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.model.cluster import StoreLease, StoreState
from headrace.model.container_logs import ContainerLog, LedgerChain, LedgerStart, LogState, emptied
from headrace.model.ensembles import ReplicaId
from headrace.model.needed_stores import is_copy_unneeded, keeps_leaving_store

OWN, OTHER, THIRD = (ReplicaId(bytes([number]) * 16) for number in (1, 2, 3))
LOG = ContainerLog(3, LogState.OPEN, (OWN, OTHER), (LedgerStart(4, 0), LedgerStart(7, 10)))


def lease(replica: ReplicaId, state: StoreState = StoreState.SERVING) -> StoreLease:
    identity = StoreLease(replica.hex(), "h", 1, "z", 100, "v", "", 0, replica_id=replica.hex())
    return replace(identity, state=state)


@pytest.mark.parametrize("state", [StoreState.SERVING, StoreState.LEAVING])
def test_a_store_stays_while_a_log_names_it_and_another_is_there(state: StoreState):
    assert keeps_leaving_store(OWN, [None, LOG], [lease(OWN), lease(OTHER, state)])
    assert not keeps_leaving_store(THIRD, [None, LOG], [lease(OWN), lease(OTHER, state)])
    assert not keeps_leaving_store(OWN, [emptied(LOG, 20)], [lease(OWN), lease(OTHER, state)])


@pytest.mark.parametrize("state", [StoreState.LEFT, StoreState.LOST])
def test_the_last_store_does_not_wait(state: StoreState):
    assert not keeps_leaving_store(OWN, [LOG], [lease(OWN, StoreState.LEAVING), lease(OTHER, state)])


@pytest.mark.parametrize(
    ("log", "own", "promise", "unneeded"),
    [
        (None, THIRD, 0, False),
        (LOG, OWN, 0, False),
        (LOG, THIRD, 7, False),
        (LOG, THIRD, 9, False),
        (LOG, THIRD, 6, True),
        (emptied(LOG, 20), THIRD, 9, True),
    ],
)
def test_a_copy_is_kept_while_its_owner_may_count_on_it(log, own, promise, unneeded):
    assert is_copy_unneeded(log, own, promise) is unneeded


def test_parts_of_a_chain_are_clipped():
    chain = LedgerChain((LedgerStart(1, 0), LedgerStart(2, 5), LedgerStart(4, 5), LedgerStart(6, 8)))
    assert list(chain.parts(3, 12)) == [(1, 3, 5), (4, 5, 8), (6, 8, 12)]
    assert list(chain.parts(9, 9)) == []
