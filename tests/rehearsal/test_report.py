"""The report of a rehearsal."""

from __future__ import annotations

import pytest

from rehearsal.report import Report


def test_a_report_has_phases_with_what_was_seen():
    report = Report("c78b1205", "2026-11-30 01:00")
    with report.phase("live use") as phase:
        phase.seen.append("10 events read")
    text = report.text()
    assert "Revision c78b1205, began 2026-11-30 01:00 UTC, passed after 0 s." in text
    assert "| live use | 0 | passed |" in text
    assert "## Live use\n\n- 10 events read\n" in text
    assert not report.has_failed


def test_a_failure_is_reported_and_goes_on():
    report = Report("c78b1205", "2026-11-30 01:00")
    with pytest.raises(RuntimeError), report.phase("deletion"):
        raise RuntimeError("a bucket is left")
    assert report.has_failed
    assert "| deletion | 0 | failed |" in report.text()
    assert "a bucket is left" in report.text()


def test_an_interruption_is_a_failure():
    report = Report("c78b1205", "2026-11-30 01:00")
    with pytest.raises(KeyboardInterrupt), report.phase("deletion", is_needed=False):
        raise KeyboardInterrupt
    assert report.has_failed


def test_a_failure_that_no_later_phase_needs_ends_no_run():
    report = Report("c78b1205", "2026-11-30 01:00")
    with report.phase("live use", is_needed=False):
        raise RuntimeError("an event is lost")
    assert report.has_failed
