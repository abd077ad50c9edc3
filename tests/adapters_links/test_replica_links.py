"""Links over TCP on both loops: everything arrives in order and whole, slow peers pin nothing, faults end links."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from dataclasses import replace

import pytest
from recorded_links import OWNER, PEER, RecordingEvents, RecordingHost, entry, open_message
from replica_sockets import DOWN, SECRET, UP, Ends, identity, replica_ends

from headrace.adapters.tcp.listener import bind_socket
from headrace.adapters.tcp.replica_links import TcpReplicaLinks
from headrace.adapters.tcp.replica_listener import ReplicaListener
from headrace.adapters.tcp.replica_protocol import LinkTimes
from headrace.codec.replica_messages import (
    MESSAGE_HEADER,
    Ack,
    AckItem,
    Drop,
    Entries,
    Entry,
    Nack,
    Opened,
    Pulse,
    PulseItem,
    Read,
    encode_message,
)
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.replica_placement import ReplicaAddress

pytestmark = pytest.mark.anyio
ACK = Ack((AckItem(3, 1, 7, 9),))
QUICK = LinkTimes(dial_s=60, handshake_s=60, pulse_s=0.02, silence_s=0.3, stalled_s=0.3, forgotten_s=0.3)


async def test_messages_of_both_directions_arrive():
    async with replica_ends() as ends:
        await ends.connect()
        sent = [Read(1, 3, 12, 0, 9, 1000), Pulse(0, 0, (PulseItem(3, 4, 5),)), Drop(3, 1, 15)]
        for message in sent:
            ends.links.send(PEER, message)
        await ends.host.until(lambda: len(ends.host.messages) == 4)
        assert ends.host.messages == [open_message(), *sent]
        header, payload = entry(1, b"read")
        answers = [
            Opened(3, 1, 0, 15, 0, 0, ()),
            ACK,
            Nack(3, 1, 2, 7),
            Entries(1, 3, False, (Entry(header, payload),)),
        ]
        for answer in answers:
            ends.host.links[0].send(answer)
        await ends.events.until(lambda: len(ends.events.answers) == 4)
        assert ends.events.answers == [(PEER, answer) for answer in answers]
        assert ends.links.is_up(PEER)
        assert (ends.events.lost, ends.host.lost_links) == ([], [])


async def test_many_small_entries_arrive_in_order():
    async with replica_ends() as ends:
        await ends.connect()
        for number in range(10_000):
            header, payload = entry(number, b"%d" % number * 20)
            ends.links.send_entry(PEER, header, [payload[:7], payload[7:]])
            if not number % 500:
                ends.links.detach()
                await asyncio.sleep(0)
        await ends.host.until(lambda: len(ends.host.entries) == 10_000)
        for number, ledger_entry in enumerate(ends.host.entries):
            assert ledger_entry.header.entry == number
            assert bytes(ledger_entry.payload) == b"%d" % number * 20


async def test_large_entries_arrive_whole_in_one_buffer():
    async with replica_ends() as ends:
        await ends.connect()
        content = os.urandom(1 << 20)
        for number in range(100):
            header, _ = entry(number, content)
            waiting = ends.links.send_entry(
                PEER, header, [memoryview(content)[: 1 << 19], memoryview(content)[1 << 19 :]]
            )
            while waiting > 8 << 20:
                await asyncio.sleep(0)
                waiting = ends.links.send_entry(PEER, *small(1 << 40))
        entries = await wanted_entries(ends, 100)
        assert [ledger_entry.header.entry for ledger_entry in entries] == list(range(100))
        for ledger_entry in entries:
            assert isinstance(ledger_entry.payload, memoryview)
            assert ledger_entry.payload.contiguous
            assert ledger_entry.payload == content


def small(number: int):
    header, payload = entry(number, b"")
    return header, [payload]


async def wanted_entries(ends: Ends, count: int) -> list[Entry]:
    """The entries with a payload, when there are so many."""
    entries: list[Entry] = []

    def arrived() -> bool:
        entries[:] = [ledger_entry for ledger_entry in ends.host.entries if ledger_entry.header.length]
        return len(entries) >= count

    await ends.host.until(arrived)
    return entries


async def test_only_an_open_dials_and_without_a_link_nothing_waits():
    async with replica_ends() as ends:
        ends.links.send(PEER, Drop(1, 2, 3))
        assert ends.links.send_entry(PEER, *small(0)) == 0
        assert ends.links.silent_s(PEER) is None
        ends.links.send(PEER, open_message(1))
        ends.links.send(PEER, open_message(2))
        ends.links.send(PEER, open_message(1, container=4))
        ends.links.send(PEER, Drop(1, 2, 3))
        assert not ends.links.is_up(PEER)
        await ends.host.until(lambda: len(ends.host.messages) == 2)
        assert ends.host.messages == [open_message(2), open_message(1, container=4)]
        assert ends.proxy.connections == 1


async def test_a_slow_reader_pins_nothing():
    async with replica_ends() as ends:
        await ends.connect()
        ends.host.links[0].pause()
        ends.proxy.cut(UP)
        memory = [bytearray(os.urandom(1 << 20)) for _ in range(24)]
        expected = [bytes(buffer) for buffer in memory]
        waiting = []
        for number, buffer in enumerate(memory):
            waiting.append(ends.links.send_entry(PEER, entry(number, expected[number])[0], [buffer]))
            await asyncio.sleep(0)
        assert waiting[-1] > waiting[4] > 0, "the kernel takes no more"
        ends.links.detach()
        for buffer in memory:
            buffer.clear()  # raises BufferError while the link has a view of it
        assert ends.links.send_entry(PEER, *small(1 << 40)) <= waiting[-1] + 1000
        ends.proxy.heal()
        ends.host.links[0].resume()
        assert [ledger_entry.payload for ledger_entry in await wanted_entries(ends, 24)] == expected


async def test_a_paused_host_receives_later():
    async with replica_ends() as ends:
        await ends.connect()
        link = ends.host.links[0]
        received = ends.host.received

        def received_and_paused(link, message):
            received(link, message)
            link.pause()

        ends.host.received = received_and_paused
        for number in range(3):
            ends.links.send_entry(PEER, *small(number))
        for count in range(1, 4):
            await ends.host.until(lambda: len(ends.host.entries) == count)  # noqa: B023
            link.send(ACK)
            await ends.events.until(lambda: len(ends.events.answers) == count)  # noqa: B023
            assert len(ends.host.entries) == count
            link.resume()
            link.resume()


@pytest.mark.parametrize("piece_bytes", [1, 11, 1447])
async def test_torn_streams_are_put_together(piece_bytes: int):
    async with replica_ends() as ends:
        ends.proxy.piece_bytes = piece_bytes
        await ends.connect()
        for number in range(20):
            ends.links.send_entry(PEER, entry(number, b"x" * number * 7)[0], [b"x" * number * 7])
        await ends.host.until(lambda: len(ends.host.entries) == 20)
        ends.host.links[0].send(ACK)
        await ends.events.until(lambda: len(ends.events.answers) == 1)


async def test_a_torn_connection_ends_both_ends_and_is_dialed_again():
    async with replica_ends() as ends:
        await ends.connect()
        content = bytes(1 << 20)
        ends.proxy.cut(UP)
        ends.links.send_entry(PEER, entry(1, content)[0], [content])
        await asyncio.sleep(0)
        ends.proxy.tear()
        await ends.events.until(lambda: ends.events.lost == [PEER])
        ends.proxy.heal()
        await ends.host.until(lambda: ends.host.lost_links == ends.host.links)
        assert not ends.links.is_up(PEER)
        await ends.connect(session=2)
        assert ends.host.links[1].number > ends.host.links[0].number
        assert ends.host.entries == []


GARBAGE = [
    b"\xff" * 8,
    MESSAGE_HEADER.pack(6, 0, 0, 1 << 30),
    encode_message(Entry(*entry(1, b"damaged")))[:-1] + b"!",
    MESSAGE_HEADER.pack(7, 0, 0, 4) + b"\0\x01\0\0",
]


@pytest.mark.parametrize("garbage", [*GARBAGE, encode_message(ACK)], ids=["type", "length", "crc", "count", "answer"])
async def test_garbage_from_an_owner_closes_the_link(garbage: bytes):
    async with replica_ends() as ends:
        await ends.connect()
        await ends.proxy.inject(UP, garbage)
        await ends.host.until(lambda: ends.host.lost_links == ends.host.links)
        await ends.events.until(lambda: ends.events.lost == [PEER])
        assert ends.host.messages == [open_message()]


@pytest.mark.parametrize(
    "garbage", [*GARBAGE, encode_message(open_message())], ids=["type", "length", "crc", "count", "request"]
)
async def test_garbage_from_a_replica_closes_the_link(garbage: bytes):
    async with replica_ends() as ends:
        await ends.connect()
        await ends.proxy.inject(DOWN, garbage)
        await ends.events.until(lambda: ends.events.lost == [PEER])
        await ends.host.until(lambda: ends.host.lost_links == ends.host.links)
        assert ends.events.answers == []


@pytest.mark.parametrize("directions", [(UP, DOWN), (UP,), (DOWN,)], ids=["both", "to-host", "to-owner"])
async def test_silence_ends_a_link_at_both_ends(directions: tuple[str, ...]):
    async with replica_ends(QUICK) as ends:
        await ends.connect()
        ends.proxy.cut(*directions)
        if DOWN in directions:
            await ends.events.until(lambda: ends.events.lost == [PEER])
            silent_s = ends.links.silent_s(PEER)
            assert silent_s is None or silent_s > 0, "None if it was slow to look: then the replica is not waited for"
        else:
            await ends.host.until(lambda: ends.host.lost_links == ends.host.links)
        ends.proxy.heal()  # what the end that has noticed says, comes through
        await ends.events.until(lambda: ends.events.lost == [PEER])
        await ends.host.until(lambda: ends.host.lost_links == ends.host.links)


async def test_pulses_keep_an_idle_link_and_measure_it():
    times = replace(QUICK, silence_s=0.6)
    async with replica_ends(times) as ends:
        await ends.connect()
        await asyncio.sleep(times.silence_s * 2)
        assert ends.links.is_up(PEER)
        assert ends.links.silent_s(PEER) < times.silence_s
        # One that was under way while the machine stood still took that long.
        while (round_trip_s := ends.links.round_trip_s(PEER)) is None or round_trip_s >= times.silence_s:
            await asyncio.sleep(times.pulse_s)
        assert ends.links.round_trips() == {PEER: round_trip_s}
        assert ends.host.messages == [open_message()], "pulses without items are for the links"


async def test_a_paused_host_is_not_silent():
    async with replica_ends(QUICK) as ends:
        await ends.connect()
        ends.host.links[0].pause()
        await asyncio.sleep(QUICK.silence_s * 3)
        ends.links.send(PEER, Drop(1, 2, 3))
        ends.host.links[0].resume()
        await ends.host.until(lambda: Drop(1, 2, 3) in ends.host.messages)
        assert ends.events.lost == []


async def test_an_owner_that_takes_no_answers_is_not_read():
    async with replica_ends(QUICK) as ends:
        await ends.connect()
        ends.proxy.cut(DOWN)
        header, payload = entry(1, bytes(1 << 20))
        answer = Entries(1, 3, True, (Entry(header, payload),))
        for _ in range(64):
            ends.host.links[0].send(answer)
        await ends.events.until(lambda: ends.events.lost == [PEER])
        ends.proxy.heal()
        await ends.host.until(lambda: ends.host.lost_links == ends.host.links)


async def test_a_loop_that_stood_still_does_not_accuse_others():
    async with replica_ends(QUICK) as ends:
        await ends.connect()
        blocked = asyncio.get_running_loop().time() + QUICK.silence_s * 2
        while asyncio.get_running_loop().time() < blocked:
            gc.collect()
        silent: list[float] = []
        asyncio.get_running_loop().call_soon(lambda: silent.append(ends.links.silent_s(PEER)))
        await asyncio.sleep(QUICK.pulse_s * 3)
        assert silent[0] < QUICK.silence_s, "also before the links have noticed that they are late"
        assert ends.links.is_up(PEER)


async def test_another_replica_at_the_address_is_told():
    async with replica_ends() as ends:
        gone = ReplicaId(b"g" * 16)
        ends.addresses[gone] = ReplicaAddress("127.0.0.1", ends.port)
        ends.links.send(gone, open_message())
        await ends.events.until(lambda: ends.events.others == [gone])
        assert not ends.links.is_up(gone)
        assert (ends.events.lost, ends.host.links) == ([], [])


async def test_a_replica_that_cannot_be_reached_is_lost():
    async with replica_ends(QUICK) as ends:
        bound = bind_socket("127.0.0.1", 0)
        assert ends.links.silent_s(PEER) is None
        for address in [None, ("127.0.0.1", bound.getsockname()[1])]:
            ends.addresses.pop(PEER, None)
            if address:
                ends.addresses[PEER] = address
            ends.events.lost.clear()
            ends.links.send(PEER, open_message())
            assert ends.events.lost == []
            await ends.events.until(lambda: ends.events.lost == [PEER])
            while not ends.links.silent_s(PEER):
                await asyncio.sleep(0.001)
            assert ends.links.silent_s(PEER) is not None
        bound.close()
        while ends.links.silent_s(PEER):
            await asyncio.sleep(QUICK.pulse_s)
        assert ends.links.silent_s(PEER) is None


@pytest.mark.parametrize("answers", [b"", b"x" * 102], ids=["silent", "nonsense"])
async def test_a_peer_that_is_no_replica_is_lost(answers: bytes):
    async with replica_ends(LinkTimes(dial_s=60, handshake_s=0.1, forgotten_s=60)) as ends:
        held = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            held.append(writer)
            writer.write(answers)

        server = await asyncio.start_server(serve, "localhost", 0)
        ends.addresses[PEER] = ReplicaAddress("localhost", server.sockets[0].getsockname()[1])
        ends.links.send(PEER, open_message())
        await ends.events.until(lambda: ends.events.lost == [PEER])
        for writer in held:
            writer.transport.abort()
        server.close()
        await server.wait_closed()


async def test_ends_that_close_say_so_to_the_other():
    async with replica_ends() as ends:
        await ends.connect()
        ends.host.links[0].close()
        await ends.events.until(lambda: ends.events.lost == [PEER])
        await ends.connect(session=2)
        await ends.listener.close()
        await ends.events.until(lambda: ends.events.lost == [PEER, PEER])
        assert ends.host.lost_links == [ends.host.links[1]]


async def test_closed_links_tell_and_send_nothing_more():
    async with replica_ends() as ends:
        await ends.connect()
        ends.links.send_entry(PEER, *small(1))
        await ends.links.close()
        ends.links.send(PEER, open_message(2))
        assert ends.links.send_entry(PEER, *small(2)) == 0
        await ends.host.until(lambda: ends.host.lost_links == ends.host.links)
        assert [ledger_entry.header.entry for ledger_entry in ends.host.entries] == [1], "close sends what it can"
        assert ends.events.lost == []


async def test_a_new_link_of_an_owner_replaces_its_old_one():
    async with replica_ends() as ends:
        await ends.connect()
        again, events = TcpReplicaLinks(identity(OWNER), ends.addresses.get), RecordingEvents()
        again.start(events)
        again.send(PEER, open_message(2))
        await ends.host.until(lambda: len(ends.host.lost_links) == 1)
        assert ends.host.lost_links == ends.host.links[:1]
        await ends.events.until(lambda: ends.events.lost == [PEER])
        assert again.is_up(PEER)
        await again.close()


async def test_log_lines_have_no_secret(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with replica_ends() as ends:
        await ends.connect()
    async with replica_ends(owner_secret=b"x" * 32) as ends:
        ends.links.send(PEER, open_message())
        await ends.events.until(lambda: ends.events.lost == [PEER])
    lines = [record.getMessage() for record in caplog.records]
    assert any("event=replica_link_up" in line for line in lines)
    [unreachable] = [line for line in lines if "event=replica_unreachable" in line]
    address = ends.addresses[PEER]
    named = f"peer_store=store-of-peer peer=127.0.0.1:{address.port} zone=use1-az2 reason="
    assert named in unreachable, "what an operator looks for"
    for secret in (SECRET, b"x" * 32):
        assert not [line for line in lines if secret.decode() in line or secret.hex() in line]


async def test_wrong_wiring_is_refused():
    with pytest.raises(InvalidRequestError, match="identity"):
        ReplicaListener(RecordingHost(OWNER), identity(PEER))
    with pytest.raises(IllegalStateError, match="start"):
        _ = TcpReplicaLinks(identity(OWNER), lambda _: None).events
