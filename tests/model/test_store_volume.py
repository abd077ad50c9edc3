"""A disk that ends no commit for ten seconds stalls; one that did is not trusted for a minute."""

from __future__ import annotations

from headrace.model.store_volume import STALLED_AFTER_S, TRUSTED_AFTER_S, DiskWatch


def test_commit_that_does_not_end_is_a_stall():
    watch = DiskWatch()
    assert not watch.has_stalled(7, 100.0)
    assert not watch.has_stalled(7, 99.9 + STALLED_AFTER_S)
    assert watch.has_stalled(7, 100.0 + STALLED_AFTER_S)
    assert watch.commit_age_s(100.0 + STALLED_AFTER_S) == STALLED_AFTER_S


def test_commits_that_end_are_no_stall():
    watch = DiskWatch()
    assert not any(watch.has_stalled(second // 9, float(second)) for second in range(100))


def test_idle_journal_is_no_stall():
    watch = DiskWatch()
    assert not any(watch.has_stalled(None, float(second)) for second in range(100))
    assert watch.commit_age_s(100.0) == 0


def test_disk_is_trusted_a_minute_after_its_stall():
    watch = DiskWatch()
    watch.has_stalled(1, 0.0)
    assert watch.has_stalled(1, STALLED_AFTER_S)
    assert watch.has_stalled(None, STALLED_AFTER_S + TRUSTED_AFTER_S - 1)
    assert not watch.has_stalled(2, STALLED_AFTER_S + TRUSTED_AFTER_S)
