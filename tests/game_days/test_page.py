"""The page about game days is that of the declarations, and names signals and tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from game_days import DAYS, PAGE, ROOT, GameDay, generated, page_with

from headrace.doctor.findings import CHECKS

RUNBOOKS = (ROOT / "docs" / "operating" / "runbooks.md").read_text()
LOG_LINES = (ROOT / "docs" / "operating" / "log-lines.md").read_text()
REHEARSAL = (ROOT / "rehearsal" / "deployment.py").read_text()
TESTS = "".join(
    path.read_text() for name in ("game_days", "restore") for path in Path(ROOT, "tests", name).glob("*.py")
)


def test_page_is_current():
    """PYTHONPATH=. python tests/support/game_days.py writes it."""
    assert PAGE.read_text() == page_with(generated())


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.name)
def test_signals_of_a_day_are_in_the_manual(day: GameDay):
    for event in day.signals.events:
        assert f"| `{event}` |" in LOG_LINES
    for alarm in (*day.signals.alarms, *re.findall(r"`(headrace-[\w-]+)`", f"{day.more} {day.abort}")):
        assert f"### `{alarm}`" in RUNBOOKS
    assert set(day.signals.checks) <= CHECKS.keys()


def test_each_day_runs_as_a_test_or_in_a_rehearsal():
    tested = [day.test for day in DAYS if day.test]
    assert len(tested) == len(set(tested))
    assert all(f"def {name}(" in TESTS for name in tested)
    assert all(f'phase("{day.phase}"' in REHEARSAL for day in DAYS if not day.test)
