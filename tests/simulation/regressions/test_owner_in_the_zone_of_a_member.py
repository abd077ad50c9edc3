"""A store took over a log that had a member in the store's own zone, and the record got two members of one zone.

No fault is needed: any store may take over. The recovery now leaves that member out.
"""

from __future__ import annotations

from simulation.runs import run_seed


def test_takeover_from_the_zone_of_a_member():
    assert run_seed(0, []).violations == ()
