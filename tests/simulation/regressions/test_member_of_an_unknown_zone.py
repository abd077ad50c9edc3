"""A store took over from a store that was newer than its list of stores, and kept it as a member in its own zone.

It counted a replica whose zone it did not know as a zone of its own. Now such a replica is left out until its zone is
known (`members_after_takeover`).
"""

from __future__ import annotations

from simulation.runs import run_seed


def test_replica_of_an_unknown_zone_is_no_member():
    assert run_seed(4159).violations == ()
