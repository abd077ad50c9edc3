"""Clients get the tokens that a deployment wants by themselves; nothing is lost, written twice or asked for in vain."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from scripted_cluster import Cluster
from scripted_tokens import ScriptedTokens

from headrace import wire
from headrace.client import UnauthorizedError, delegation_tokens
from headrace.client.reading.segment_reads import SegmentReads
from headrace.wire.connections.asynchronous import SingleReply

READ = ("GET", "/v1/scopes/s/streams/t/delegation-token")
WRITE = ("POST", "/v1/scopes/s/streams/t/delegation-token")


def _write_and_read(cluster: Cluster, count: int) -> None:
    with cluster.client() as headrace:
        with headrace.writer("s", "t") as writer:
            for number in range(count):
                writer.write(b"%d" % number, f"key {number % 7}")
        end = headrace.admin.stream_cut("s", "t")
        with headrace.reader("s", "t", end=end) as reader:
            read = [int(event.event) for event in reader]
        assert sorted(read) == list(range(count))


def test_without_tokens_none_is_asked_for(cluster: Cluster) -> None:
    sent: list[str] = []

    def note(command: wire.WireCommand) -> None:
        sent.append(getattr(command, "delegation_token", ""))

    cluster.refuse = note
    _write_and_read(cluster, 100)
    assert set(sent) == {""}
    assert not [path for _, path in cluster.requests if "token" in path]


def test_one_request_for_each_level(cluster: Cluster) -> None:
    tokens = ScriptedTokens(cluster)
    _write_and_read(cluster, 100)
    assert tokens.issued == [WRITE]
    assert tokens.refused == []
    with cluster.client() as headrace, headrace.reader("s", "t") as reader:
        next(iter(reader))
    assert tokens.issued == [WRITE, READ]
    assert tokens.refused == []


def test_a_refusal_says_that_tokens_are_wanted(cluster: Cluster) -> None:
    tokens = ScriptedTokens(cluster, announces=False)
    with cluster.client() as headrace:
        with headrace.writer("s", "t") as writer:
            writer.write(b"event", "key")
        assert tokens.refused == [wire.TOKEN_CHECK_FAILED]
        with headrace.reader("s", "t") as reader:
            assert next(iter(reader)).event == b"event"
    assert tokens.refused == [wire.TOKEN_CHECK_FAILED]
    assert tokens.issued == [WRITE]


def test_blocking_reads_have_tokens(cluster: Cluster) -> None:
    cluster.put(0, b"event")
    for announces in (False, True):
        tokens = ScriptedTokens(cluster, announces=announces)
        with cluster.client() as headrace, SegmentReads(headrace.admin, "s", "t") as reads:
            assert b"".join(reads.read(0, 0, 13))[8:] == b"event"
            assert tokens.refused == ([] if announces else [wire.TOKEN_CHECK_FAILED])
            tokens.revoke_all()
            assert b"".join(reads.read(0, 8, 13)) == b"event"
        assert tokens.issued == [READ, READ]


def test_credentials_that_may_not_write(cluster: Cluster) -> None:
    tokens = ScriptedTokens(cluster)
    tokens.denied = {"POST"}
    cluster.put(0, b"event")
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        with pytest.raises(
            UnauthorizedError, match=r"no permission to write to stream s/t.*may not call POST /v1/scopes"
        ):
            writer.write(b"refused", "key").result(timeout_s=30)
        with headrace.reader("s", "t") as reader:
            assert next(iter(reader)).event == b"event"
        writer.close()
    assert cluster.all_events() == [b"event"]


def test_credentials_that_may_not_read(cluster: Cluster) -> None:
    ScriptedTokens(cluster).denied = {"GET"}
    cluster.put(0, b"event")
    with cluster.client() as headrace:
        with (
            pytest.raises(UnauthorizedError, match="no permission to read stream s/t"),
            headrace.reader("s", "t") as reader,
        ):
            next(iter(reader))
        with pytest.raises(UnauthorizedError, match="no permission to read stream s/t"):
            list(SegmentReads(headrace.admin, "s", "t").read(0, 0, 13))


def test_tokens_that_are_always_expired(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "EXPIRED_WAITS_S", (0.0, 0.0))
    tokens = ScriptedTokens(cluster)
    tokens.always_expired = True
    with cluster.client() as headrace:
        with pytest.raises(
            UnauthorizedError, match="does not know the key that signed them, or its clock is ahead"
        ) as failed:
            list(SegmentReads(headrace.admin, "s", "t").read(0, 0, 13))
        assert failed.value.specific_code == "token_expired"
        writer = headrace.writer("s", "t")
        with pytest.raises(UnauthorizedError, match="does not know the key that signed them, or its clock is ahead"):
            writer.write(b"refused", "key").result(timeout_s=30)
        writer.close()
    assert tokens.issued == [READ] * 3 + [WRITE] * 3


def test_a_token_of_other_keys_is_refused_at_once(cluster: Cluster) -> None:
    tokens = ScriptedTokens(cluster)
    tokens._code_of = lambda command: wire.TOKEN_CHECK_FAILED
    with cluster.client() as headrace, pytest.raises(UnauthorizedError, match="have the same token keys") as failed:
        list(SegmentReads(headrace.admin, "s", "t").read(0, 0, 13))
    assert failed.value.specific_code == "token_invalid"
    assert tokens.issued == [READ]


def test_revoked_tokens_are_replaced_in_traffic(cluster: Cluster) -> None:
    tokens = ScriptedTokens(cluster)
    with cluster.client() as headrace, headrace.writer("s", "t") as writer, headrace.reader("s", "t") as reader:
        events = iter(reader)
        for number in range(20):
            if number % 5 == 4:
                tokens.revoke_all()
            writer.write(b"%d" % number, "key").result(timeout_s=30)
            assert next(events).event == b"%d" % number
    assert wire.TOKEN_EXPIRED in tokens.refused


@pytest.mark.parametrize("announces", [True, False])
def test_writers_whose_tokens_end(cluster: Cluster, announces: bool) -> None:
    """The store drops what a writer has sent since, and the writer sends it again."""
    tokens = ScriptedTokens(cluster, announces=announces)
    count, due, ended = 3_000, threading.Semaphore(0), threading.Semaphore(0)

    def end() -> None:
        for _ in range(5):
            due.acquire()
            tokens.end_writers()
            ended.release()

    ending = threading.Thread(target=end)
    ending.start()
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        for number in range(count):
            ack = writer.write(b"%d" % number, "one key")
            if number % 600 == 0:
                ack.result(timeout_s=30)  # there is a writer to end
                due.release()
            elif number % 600 == 599:
                assert ended.acquire(timeout=30)
                ack.result(timeout_s=30)
    ending.join()
    assert cluster.all_events() == [b"%d" % number for number in range(count)]
    assert tokens.set_ups in (5, 6)  # when the last one ends, all may be acknowledged


def test_writers_change_to_new_tokens(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 0.01 % of their life: the store never refuses one, and nothing is written twice or out of order."""
    monkeypatch.setattr(delegation_tokens, "RENEWED_AT", 1e-4)
    monkeypatch.setattr(delegation_tokens, "RENEWED_EARLIER_MAX", 0.0)
    tokens, number = ScriptedTokens(cluster), 0
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        while tokens.set_ups < 5:
            writer.write(b"%d" % number, "one key")
            number += 1
            if number % 1000 == 0:
                writer.flush()
    assert cluster.all_events() == [b"%d" % written for written in range(number)]
    assert tokens.refused == []
    assert cluster.connections == 1
    assert set(tokens.issued) == {WRITE}


def test_idle_writers_change_to_new_tokens(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "RENEWED_AT", 1e-4)
    monkeypatch.setattr(delegation_tokens, "RENEWED_EARLIER_MAX", 0.0)
    tokens, renewed = ScriptedTokens(cluster), threading.Event()
    answer = tokens._refuse

    def note(command: wire.WireCommand) -> wire.WireCommand | None:
        reply = answer(command)
        if tokens.set_ups == 3:
            renewed.set()
        return reply

    cluster.refuse = note
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        writer.write(b"first", "key").result(timeout_s=30)
        assert renewed.wait(30)
        writer.write(b"second", "key").result(timeout_s=30)
    assert cluster.all_events() == [b"first", b"second"]


def test_conditional_writers_whose_token_ends(
    make_cluster: Callable[[int], Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle writer hears of it before its next entry, which would else be dropped."""
    cluster = make_cluster(1)
    tokens, told = ScriptedTokens(cluster), threading.Event()
    honest = SingleReply.replied

    def replied(self: SingleReply, reply: wire.WireCommand) -> None:
        honest(self, reply)
        if isinstance(reply, wire.AuthTokenCheckFailed):
            told.set()

    monkeypatch.setattr(SingleReply, "replied", replied)
    with cluster.client() as headrace, headrace.revisioned_stream("s", "t") as stream:
        for number in range(3):
            stream.write(b"%d" % number)
            told.clear()
            tokens.end_writers()
            assert told.wait(30)
    assert cluster.all_events() == [b"0", b"1", b"2"]
    assert tokens.set_ups == 3


def test_no_token_is_shown(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    tokens = ScriptedTokens(cluster)
    with cluster.client() as headrace:
        with headrace.writer("s", "t") as writer:
            writer.write(b"event", "key")
        shown = [repr(headrace._core.admin.delegation_tokens._held), caplog.text]
    command = wire.ReadSegment("s/t/0", 0, 1, "token-1")
    shown += [repr(command), str(command), repr(wire.ReadTable(1, "s/t_kvtable/0", "token-1", ()))]
    assert tokens.tokens == {"token-1"}
    assert not [text for text in shown if "token-1" in text]
