"""The comparison of clients: each kind that is read was written right before, on the same stream."""

from __future__ import annotations

import pytest

from benchmarks.clients import OURS, READ_THEIRS, READS, SCENARIOS, THEIRS, Scenario, kinds


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_kinds_of_a_scenario(scenario: Scenario) -> None:
    reads, read_theirs = (READS, (READ_THEIRS,)) if scenario.read else ((), ())
    assert tuple(kinds(scenario, theirs=True)) == (*OURS, *reads, THEIRS, *read_theirs)
    assert tuple(kinds(scenario, theirs=False)) == (*OURS, *reads)
