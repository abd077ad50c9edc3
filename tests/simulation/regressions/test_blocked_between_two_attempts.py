"""A log whose last copy of an entry is damaged was reported as not served, although it has to wait for an operator.

The checker asked the owner of that moment whether it was blocked. It had just begun its attempt. The disks decide now.
"""

from __future__ import annotations

from simulation.runs import run_seed
from simulation.tape import Step

TAPE = [
    Step(253586, "power cut", 0, 0, 76084590),
    Step(364873, "takeover", 2, 0, 748545440),
    Step(716984, "append", 0, 0, 9),
    Step(863391, "power cut", 2, 0, 695446529),
    Step(1395491, "replace", 1, 2, 197338310),
    Step(4564995, "rot", 2, 2, 225189588),
]


def test_damage_of_the_last_copy_blocks():
    run = run_seed(370972245, TAPE)
    assert run.violations == ()
    assert run.states["blocked, and rightly so"] == 1
