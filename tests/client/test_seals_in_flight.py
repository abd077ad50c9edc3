"""A segment is sealed while blocks are in flight: they go to its successors only if it is sure that it lacks them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_cluster import Cluster

from headrace import wire
from headrace.client import InvalidRequestError, UnavailableError, WriterOptions

Refuse = Callable[[wire.SetupAppend], wire.WireCommand]

REFUSALS: dict[str, Refuse] = {
    "moved": lambda asked: wire.WrongHost(asked.request_id, asked.segment),
    "failed": lambda asked: wire.ErrorMessage(asked.request_id, asked.segment, "not now"),
    "sealed": lambda asked: wire.SegmentIsSealed(asked.request_id, asked.segment),
}


class _SealedAfterStoring:
    """The first block is stored, then its segment is sealed: the writer hears of the seal only.

    Set-ups after that are refused `times` times with `refuse`.
    """

    def __init__(self, cluster: Cluster, refuse: Refuse, times: float) -> None:
        self._cluster = cluster
        self._refuse = refuse
        self._times = times
        self._honest = cluster._reply
        self.sealed = False
        self.refused = 0
        cluster._reply = self._reply

    def _reply(self, command: wire.WireCommand, names: dict[int, str]) -> wire.WireCommand | None:
        if isinstance(command, wire.SetupAppend) and self.sealed and self.refused < self._times:
            self.refused += 1
            return self._refuse(command)
        reply = self._honest(command, names)
        if isinstance(command, wire.AppendBlockEnd) and not self.sealed:
            assert isinstance(reply, wire.DataAppended)
            self.sealed = True
            self._scale()
            return wire.SegmentIsSealed(command.request_id, names[command.writer_id])
        return reply

    def _scale(self) -> None:
        notify, self._cluster._notify = self._cluster._notify, lambda: None  # we are on the loop that it would wait for
        try:
            self._cluster.scale([1], [(0.5, 1.0)])
        finally:
            self._cluster._notify = notify


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("times", [1, 3])
def test_blocks_in_flight_wait_until_a_set_up_tells(cluster: Cluster, refusal: str, times: int) -> None:
    store = _SealedAfterStoring(cluster, REFUSALS[refusal], times)
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        writer.write(b"once", "key").result(timeout_s=30)
        writer.write(b"next", "key").result(timeout_s=30)
    assert store.refused == times
    assert cluster.all_events() == [b"once", b"next"]


def test_a_store_that_never_tells_fails_the_blocks(cluster: Cluster) -> None:
    _SealedAfterStoring(cluster, REFUSALS["sealed"], times=float("inf"))
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t", WriterOptions(give_up_after_s=0.05))
        with pytest.raises(UnavailableError, match="does not report which events in flight it has stored"):
            writer.write(b"once", "key").result(timeout_s=30)
        writer.close()
    assert cluster.all_events() == [b"once"]


def test_a_refusal_that_repeating_cannot_help_fails_the_blocks(cluster: Cluster) -> None:
    _SealedAfterStoring(cluster, lambda asked: wire.OperationUnsupported(asked.request_id, "SetupAppend"), times=1)
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        with pytest.raises(InvalidRequestError, match="does not support"):
            writer.write(b"once", "key").result(timeout_s=30)
        writer.close()
    assert cluster.all_events() == [b"once"]
