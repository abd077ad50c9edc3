"""A recovery wrote the log record again while its first write was under way.

The first answer ended the recovery. The second one reached the writer of the new ledger, which took it for the answer
to a change of its own. A machine now has one request under way at a time.
"""

from __future__ import annotations

from simulation.runs import run_seed
from simulation.tape import Step


def test_request_is_repeated_after_its_outcome_only():
    assert run_seed(182, [Step(1158839, "swizzle", 2, 2, 1506023)]).violations == ()
