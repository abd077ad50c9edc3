"""Seed 21220 violated I12: a former member, in the zone of the owner, had the only intact copy of an entry.

A recovery asked the members and the replicas that its own store wanted, so the container was blocked for ever.
"""

from __future__ import annotations

from simulation.runs import run_seed
from simulation.tape import Step

TAPE = [
    Step(74862, "append", 0, 0, 45),
    Step(185183, "append", 1, 0, 37),
    Step(187999, "rot", 1, 3, 473732394),
    Step(195770, "append", 0, 0, 16),
    Step(208822, "duel", 3, 1, 209842850),
    Step(220756, "append", 0, 0, 63),
    Step(467375, "power cut", 2, 2, 601408385),
    Step(764567, "duel", 2, 3, 718930404),
    Step(970242, "duel", 1, 2, 88777699),
    Step(976424, "power cut", 2, 2, 184856904),
    Step(1468440, "rot", 3, 1, 97565906),
    Step(1493839, "power cut", 0, 2, 459718565),
    Step(1993282, "duel", 0, 2, 517787468),
    Step(1998911, "rot", 1, 0, 1047398604),
]


def test_seed_21220_keeps_its_invariants():
    run = run_seed(21220, TAPE)
    assert run.violations == ()
    assert run.states["blocked, and rightly so"] == 1, "of the other container no replica has an entry intact"
