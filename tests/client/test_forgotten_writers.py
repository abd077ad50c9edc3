"""A store forgets writers that were away for very long. A writer notices, and writes no event twice because of it."""

from __future__ import annotations

import threading

import pytest
from scripted_cluster import Cluster

from headrace import wire
from headrace.client import HeadraceError, IllegalStateError
from headrace.client.writing import elapsed_time
from headrace.client.writing.elapsed_time import Moment
from headrace.model.limits import WRITER_KEPT_S_MIN
from headrace.wire.connections.asynchronous import AsyncConnection


class _Forgetful:
    """The cluster's store, which forgets all writers each time a connection breaks, and knows that it did."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._honest = cluster._reply
        self.refused = 0
        cluster._reply = self._reply

    def forget(self) -> None:
        for segment in self._cluster.segments.values():
            segment.writers.clear()

    def _reply(self, command: wire.WireCommand, names: dict[int, str]) -> wire.WireCommand | None:
        if isinstance(command, wire.AppendBlockEnd):
            segment = self._cluster._segment(names[command.writer_id])
            if command.writer_id not in segment.writers and command.last_event_number != command.num_events:
                self.refused += 1
                return wire.InvalidEventNumber(
                    command.writer_id, command.request_id, wire.WRITER_FORGOTTEN, command.last_event_number
                )
        return self._honest(command, names)


def _drop_idle_connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Returns when the client has noticed: until then it would send over the connection that is gone."""
    noticed, honest = threading.Event(), AsyncConnection._fail

    def end(connection: AsyncConnection, problem: HeadraceError) -> None:
        honest(connection, problem)
        noticed.set()

    monkeypatch.setattr(AsyncConnection, "_fail", end)
    cluster.drop_connections()
    assert noticed.wait(30)


def test_a_writer_with_nothing_in_flight_starts_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _Forgetful(cluster)
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        for number in range(3):
            writer.write_batch([b"%d" % number, b"%d again" % number], "key").result(timeout_s=30)
        known = set(cluster.segments[1].writers)
        store.forget()
        _drop_idle_connection(cluster, monkeypatch)
        writer.write(b"3", "key").result(timeout_s=30)
        assert list(cluster.segments[1].writers.values()) == [1]
        assert not known & set(cluster.segments[1].writers)
    assert store.refused == 0
    assert cluster.events(1) == [b"0", b"0 again", b"1", b"1 again", b"2", b"2 again", b"3"]


def test_events_in_flight_of_a_forgotten_writer_fail(cluster: Cluster) -> None:
    """The second one is stored, but its acknowledgement was lost, and the store has forgotten the writer since."""
    store = _Forgetful(cluster)

    def stored_then_away(number: int) -> bool:
        if number == 2:
            store.forget()
        return number == 2

    cluster.after_append = stored_then_away
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        writer.write(b"first", "key").result(timeout_s=30)
        with pytest.raises(IllegalStateError, match="are stored is unknown") as failed:
            writer.write(b"second", "key").result(timeout_s=30)
        assert failed.value.specific_code == wire.WRITER_FORGOTTEN
        writer.close()
    assert cluster.events(1) == [b"first", b"second"]
    assert store.refused == 1


@pytest.mark.parametrize("clock_that_fails", ["wall", "running"])
@pytest.mark.parametrize("away_s", [WRITER_KEPT_S_MIN - 60, WRITER_KEPT_S_MIN])
def test_first_events_fail_if_the_store_may_forget_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, away_s: float, clock_that_fails: str
) -> None:
    """To the store they look like those of a new writer: only the writer knows for how long it was away.

    The other clock is set back, or stands still because the machine sleeps.
    """
    now_s = 10_000.0

    def now() -> Moment:
        return Moment(now_s, 0.0) if clock_that_fails == "running" else Moment(10_000.0 - now_s, now_s)

    monkeypatch.setattr(elapsed_time, "now", now)

    def away(number: int) -> bool:
        nonlocal now_s
        now_s += away_s if number == 1 else 0
        return number == 1

    cluster.before_append = away
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        ack = writer.write(b"first", "key")
        if away_s < WRITER_KEPT_S_MIN:
            ack.result(timeout_s=30)
            writer.close()
            assert cluster.events(1) == [b"first"]
            return
        with pytest.raises(IllegalStateError) as failed:
            ack.result(timeout_s=30)
        assert failed.value.specific_code == wire.WRITER_FORGOTTEN
        writer.close()
    assert cluster.events(1) == []
