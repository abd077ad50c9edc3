"""A store accepts a writer, and takes that back at once: the news comes with the reply, before the writer goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_cluster import Cluster
from scripted_tokens import DROPPED

from headrace import wire
from headrace.client.writing.segment_appender import SegmentAppender

End = Callable[[SegmentAppender, wire.AppendSetup], None]


def _connection_lost(appender: SegmentAppender, reply: wire.AppendSetup) -> None:
    assert appender._flow is not None
    appender._flow.connection.close()


def _token_ended(appender: SegmentAppender, reply: wire.AppendSetup) -> None:
    appender.replied(wire.AuthTokenCheckFailed(reply.request_id, "", wire.TOKEN_EXPIRED))


@pytest.mark.parametrize("end", [_connection_lost, _token_ended])
def test_writer_sets_up_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, end: End) -> None:
    set_ups = 0
    honest, store = SegmentAppender.replied, cluster._reply

    def replied(self: SegmentAppender, reply: wire.WireCommand) -> None:
        nonlocal set_ups
        honest(self, reply)
        if isinstance(reply, wire.AppendSetup):
            set_ups += 1
            if set_ups == 1:
                end(self, reply)

    def answer(command: wire.WireCommand, names: dict[int, str]) -> wire.WireCommand | None:
        if isinstance(command, wire.AppendBlockEnd) and set_ups == 1:
            return DROPPED  # the writer is not set up any longer
        return store(command, names)

    monkeypatch.setattr(SegmentAppender, "replied", replied)
    monkeypatch.setattr(cluster, "_reply", answer)
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        # Otherwise it would wait for an acknowledgement as long as for that of a store that hangs.
        writer.write(b"event", "key").result(timeout_s=10)
    assert set_ups == 2
    assert cluster.all_events() == [b"event"]
