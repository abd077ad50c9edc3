"""The answer to the read of one container was taken for the answer to another container's read of the same number.

A process recovered two containers at once. Entries of the one, and their truncation point, became part of the other.
"""

from __future__ import annotations

from simulation.runs import run_seed
from simulation.tape import Step

TAPE = [
    Step(436223, "metadata outage", 1, 3, 4363533),
    Step(936628, "append", 1, 0, 13),
    Step(1107043, "append", 1, 0, 14),
    Step(1153208, "pause", 1, 3, 3117082),
    Step(1521537, "duel", 2, 0, 558998968),
    Step(1666422, "checkpoint", 1, 0, 54),
    Step(1921924, "append", 0, 0, 6),
    Step(1961358, "append", 0, 0, 3),
    Step(1996030, "duel", 0, 1, 701585429),
    Step(2069845, "pause", 3, 3, 3014358),
    Step(2184639, "duel", 1, 0, 282271163),
    Step(2707254, "duel", 3, 0, 280747532),
    Step(3444779, "duel", 2, 0, 116838146),
    Step(3687920, "kill", 2, 2, 117969931),
    Step(3758546, "duel", 3, 0, 705462407),
]


def test_entries_answer_only_the_container_that_asked():
    assert run_seed(370972056, TAPE).violations == ()
