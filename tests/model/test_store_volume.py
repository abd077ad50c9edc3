"""A disk that ends no commit for ten seconds stalls; one that did is not trusted for a minute."""

from __future__ import annotations

from dataclasses import replace

from headrace.model.store_volume import (
    STALLED_AFTER_S,
    TRUSTED_AFTER_S,
    DiskWatch,
    LogSpace,
    copying_pays,
    room_bytes,
)


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


def test_clients_get_what_a_full_volume_does_not_need():
    space = LogSpace(log_bytes=350, volume_bytes=0, room_bytes=1000, file_bytes=100)
    assert (space.client_bytes, space.fill) == (700, 0.5)
    assert replace(space, room_bytes=399).client_bytes == replace(space, room_bytes=0).client_bytes == 100
    assert not replace(space, log_bytes=799).is_exhausted
    assert replace(space, log_bytes=800).is_exhausted
    assert [space.container_bytes_max(count) for count in (0, 1, 2, 7)] == [350, 350, 175, 50]


def test_logs_of_a_volume_share_it():
    assert room_bytes(total_bytes=1000, free_bytes=800, volume_bytes=100, logs_on_volume=2) == 500
    assert room_bytes(total_bytes=1000, free_bytes=300, volume_bytes=100, logs_on_volume=2) == 400


def test_copying_pays_if_it_writes_less_than_it_frees():
    assert copying_pays(log_bytes=100, needed_bytes=50, files=8, copy_from_files=8)
    assert not copying_pays(log_bytes=101, needed_bytes=51, files=8, copy_from_files=8)
    assert not copying_pays(log_bytes=100, needed_bytes=50, files=7, copy_from_files=8)
