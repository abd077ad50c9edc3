from __future__ import annotations

import pytest
from scripted_cluster import Cluster

from headrace.client import CorruptError, NotFoundError, TruncatedError, UnavailableError
from headrace.client.reading.segment_reads import SegmentReads


def _fill(cluster: Cluster, length_bytes: int) -> bytes:
    data = bytes(range(251)) * (length_bytes // 251 + 1)
    cluster.segments[0].data += data[:length_bytes]
    return data[:length_bytes]


@pytest.mark.parametrize("window_bytes", [7, 1000, 1 << 20])
def test_any_range_in_windows(cluster: Cluster, window_bytes: int) -> None:
    data = _fill(cluster, 2000)
    with cluster.client() as headrace, SegmentReads(headrace.admin, "s", "t", window_bytes=window_bytes) as reads:
        for start, stop in ((0, 2000), (1, 1999), (700, 701), (5, 5)):
            windows = list(reads.read(0, start, stop))
            assert b"".join(windows) == data[start:stop]
            assert all(len(window) <= window_bytes for window in windows)
    assert cluster.connections == 1


def test_reading_resumes_where_a_connection_broke(cluster: Cluster) -> None:
    data = _fill(cluster, 2000)
    waits: list[float] = []
    with (
        cluster.client() as headrace,
        SegmentReads(headrace.admin, "s", "t", window_bytes=100, sleep=waits.append) as reads,
    ):
        read = b""
        for window in reads.read(0, 0, 2000):
            read += window
            if len(read) % 500 == 0:
                cluster.drop_connections()
        reads.close()
    assert read == data
    assert len(waits) >= 3


def test_a_caller_that_stops_early_leaves_no_answer_behind(cluster: Cluster) -> None:
    data = _fill(cluster, 2000)
    with cluster.client() as headrace, SegmentReads(headrace.admin, "s", "t") as reads:
        reads._window_bytes = 100
        for _ in reads.read(0, 0, 2000):
            break
        assert b"".join(reads.read(0, 300, 900)) == data[300:900]


def test_what_is_not_there(cluster: Cluster) -> None:
    _fill(cluster, 100)
    cluster.seal_stream()
    with cluster.client() as headrace, SegmentReads(headrace.admin, "s", "t") as reads:
        with pytest.raises(CorruptError, match="ends at 100, before 200"):
            list(reads.read(0, 50, 200))
        cluster.segments[0].start = 60
        with pytest.raises(TruncatedError):
            list(reads.read(0, 50, 70))
        cluster.segments[1].deleted = True
        with pytest.raises(NotFoundError):
            list(reads.read(1, 0, 10))


def test_a_store_that_stays_away(cluster: Cluster) -> None:
    cluster.stop_store()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with (
        cluster.client() as headrace,
        SegmentReads(headrace.admin, "s", "t", sleep=sleep, monotonic_s=lambda: now[0], give_up_after_s=5) as reads,
        pytest.raises(UnavailableError, match="cannot be reached"),
    ):
        list(reads.read(0, 0, 10))
    assert 5 <= now[0] < 15


def test_bytes_that_do_not_come_are_given_up(cluster: Cluster) -> None:
    """A wrong end behind the tail of an open segment must not hold its task for ever."""
    data = _fill(cluster, 100)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with (
        cluster.client() as headrace,
        SegmentReads(headrace.admin, "s", "t", sleep=sleep, monotonic_s=lambda: now[0], give_up_after_s=5) as reads,
    ):
        windows = reads.read(0, 0, 200)
        assert next(windows) == data
        with pytest.raises(UnavailableError, match="up to 200, but its store has none after 100 yet"):
            next(windows)
        reads.close()
