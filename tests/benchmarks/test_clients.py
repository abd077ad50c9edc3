"""The comparison of clients: all that read read the stream that ours has written right before."""

from __future__ import annotations

import pytest

from benchmarks.clients import OURS, READ_THEIRS, READS, SCENARIOS, THEIRS, Scenario, kinds


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_kinds_of_a_scenario(scenario: Scenario) -> None:
    reads, read_theirs = (READS, (READ_THEIRS,)) if scenario.read else ((), ())
    assert tuple(kinds(scenario, theirs=True)) == (*OURS, *reads, *read_theirs, THEIRS)
    assert tuple(kinds(scenario, theirs=False)) == (*OURS, *reads)


def test_kinds_that_compare_the_reading() -> None:
    assert tuple(kinds(SCENARIOS[0], theirs=True, reads=True)) == (OURS[-1], *READS, READ_THEIRS)
