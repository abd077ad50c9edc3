"""A callback that raises ends its link: the other end must not wait for a link that handles nothing any more."""

from __future__ import annotations

import pytest
from recorded_links import PEER, RecordingHost, entry
from replica_sockets import replica_ends

from headrace.codec.replica_messages import Ack, AckItem, Drop, Entries, Entry, encode_message

pytestmark = pytest.mark.anyio
ACK = Ack((AckItem(3, 1, 7, 9),))


def broken(*_given: object) -> None:
    raise ZeroDivisionError("a defect")


async def test_an_owner_that_cannot_handle_an_answer_ends_the_link(monkeypatch: pytest.MonkeyPatch):
    async with replica_ends() as ends:
        await ends.connect()
        monkeypatch.setattr(ends.events, "received", broken)
        ends.host.links[0].send(ACK)
        await ends.events.until(lambda: ends.events.lost == [PEER])
        assert not ends.links.is_up(PEER)


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_host_that_cannot_handle_a_message_loses_the_link(monkeypatch: pytest.MonkeyPatch, is_paused: bool):
    async with replica_ends() as ends:
        await ends.connect()
        (link,) = ends.host.links

        def after_a_pause(host: RecordingHost, *given: object) -> None:
            if is_paused:
                monkeypatch.setattr(RecordingHost, "received", broken)
                link.pause()
                link.resume()
                return
            broken()

        monkeypatch.setattr(RecordingHost, "received", after_a_pause)
        for truncated_before in (1, 2):
            ends.links.send(PEER, Drop(3, 1, truncated_before))
        await ends.host.until(lambda: ends.host.lost_links == [link])
        await ends.events.until(lambda: ends.events.lost == [PEER])


async def test_a_damaged_entry_is_counted_at_the_host():
    async with replica_ends() as ends:
        await ends.connect()
        header, _ = entry(0, b"sent")
        ends.links.send_entry(PEER, header, (b"lost",))
        await ends.events.until(lambda: ends.events.lost == [PEER])
        assert ends.corrupt == ["host"]
        assert not any(isinstance(message, Entry) for message in ends.host.messages)


async def test_a_damaged_answer_is_counted_at_the_owner():
    async with replica_ends() as ends:
        await ends.connect()
        header, _ = entry(0, b"sent")
        ends.host.links[0].send(Entries(1, 3, False, (Entry(header, b"lost"),)))
        await ends.events.until(lambda: ends.events.lost == [PEER])
        assert ends.corrupt == ["owner"]


async def test_what_a_turn_of_the_loop_sends_is_one_batch():
    async with replica_ends() as ends:
        await ends.connect()
        before = len(ends.batches)
        for number in range(3):
            header, payload = entry(number, b"abcd")
            ends.links.send_entry(PEER, header, (payload,))
        await ends.host.until(lambda: sum(isinstance(message, Entry) for message in ends.host.messages) == 3)
        entry_bytes = len(encode_message(Entry(*entry(0, b"abcd"))))
        assert 3 * entry_bytes in ends.batches[before:]


async def test_bytes_are_counted_for_the_zone_of_the_replica():
    """Also those that the kernel takes later, or in the middle of a turn."""
    async with replica_ends() as ends:
        await ends.connect()
        before = ends.sent["use1-az2"]
        for number in range(20):
            header, payload = entry(number, b"x" * (1 << 20))
            ends.links.send_entry(PEER, header, (payload,))
            if number % 5 == 0:
                ends.links.detach()
        await ends.host.until(lambda: sum(isinstance(message, Entry) for message in ends.host.messages) == 20)
        entries = 20 * len(encode_message(Entry(*entry(0, b"x" * (1 << 20)))))
        assert entries <= ends.sent["use1-az2"] - before < entries + 1000
        assert set(ends.sent) == {"use1-az2"}
