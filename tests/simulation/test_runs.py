"""Seeds of the simulator, and the same run for the same seed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from simulation.owner import Owner
from simulation.runs import run_seed

BLOCK = 25
FIXED_BLOCKS = 3
DAILY_BLOCKS = 3
"""Most seeds are fixed. The others change every day, and with it the runs that were never tried. `make nightly` runs
tens of thousands."""

TODAY = 1_000 * datetime.now(UTC).toordinal()
FIRST_SEEDS = [
    *(BLOCK * block for block in range(FIXED_BLOCKS)),
    *(TODAY + BLOCK * block for block in range(DAILY_BLOCKS)),
]


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_seeds_keep_all_invariants(first: int):
    runs = [run_seed(seed) for seed in range(first, first + BLOCK)]
    assert {run.seed: run.violations[0] for run in runs if run.violations} == {}
    assert sum(run.acknowledged for run in runs) > BLOCK
    assert sum(run.states["recovery served"] for run in runs) >= BLOCK


def test_same_seed_is_the_same_run():
    for seed in range(10):
        assert run_seed(seed) == run_seed(seed)


def test_any_exception_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch):
    def fail(_self: object, _payload: bytes) -> None:
        raise ValueError("a defect of a machine")

    monkeypatch.setattr(Owner, "append", fail)
    run = run_seed(3)
    assert run.seed == 3
    assert [(each.checker, "a defect of a machine" in each.what) for each in run.violations] == [("machine", True)]
