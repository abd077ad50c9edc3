"""The comparison of clients: all that read read the stream that ours has written right before."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import clients
from benchmarks.clients import OURS, READ_THEIRS, READS, SCENARIOS, THEIRS, Scenario, kinds
from benchmarks.results import Results
from benchmarks.settings import AppendLoad


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_kinds_of_a_scenario(scenario: Scenario) -> None:
    reads, read_theirs = (READS, (READ_THEIRS,)) if scenario.read else ((), ())
    assert tuple(kinds(scenario, theirs=True)) == (*OURS, *reads, *read_theirs, THEIRS)
    assert tuple(kinds(scenario, theirs=False)) == (*OURS, *reads)


def test_without_the_package_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(clients, "has_package", lambda: False)
    results = Results()
    clients.measure_once(results, tmp_path, AppendLoad(100, 10))
    assert results.as_json() == {}
    assert capsys.readouterr().err.splitlines() == ["not compared: the package `pravega` is not installed"]


def test_kinds_that_compare_the_reading() -> None:
    assert tuple(kinds(SCENARIOS[0], theirs=True, reads=True)) == (OURS[-1], *READS, READ_THEIRS)
