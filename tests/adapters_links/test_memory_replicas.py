"""Links in memory: order, faults as on TCP, and no memory in common with the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import ceil

import pytest
from recorded_links import OWNER, PEER, RecordingEvents, RecordingHost, entry, open_message

from headrace.adapters.memory.replicas import SILENCE_S, MemoryReplicaLinks, MemoryReplicaNetwork
from headrace.codec.replica_messages import Ack, AckItem, Drop, Pulse, PulseItem
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import IllegalStateError

pytestmark = pytest.mark.anyio
PULSE = Pulse(1, 2, (PulseItem(3, 4, 5),))
ACK = Ack((AckItem(3, 1, 7, 9),))


class LoopTime:
    """The time of the running loop, which only the test moves. It is a whole number at first, so sums are exact."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._now_s = float(ceil(loop.time()))
        monkeypatch.setattr(loop, "time", lambda: self._now_s)

    async def advance(self, seconds: float) -> None:
        self._now_s += seconds
        await turns()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[True, False], ids=["encoded", "objects"])
def network(request: pytest.FixtureRequest) -> Iterator[MemoryReplicaNetwork]:
    return MemoryReplicaNetwork(encodes=request.param)


async def connect(
    network: MemoryReplicaNetwork, owner: ReplicaId = OWNER
) -> tuple[MemoryReplicaLinks, RecordingEvents, RecordingHost]:
    host, events, links = RecordingHost(PEER), RecordingEvents(), network.links(owner)
    network.serve(host)
    links.start(events)
    links.send(PEER, open_message())
    await turns()
    return links, events, host


async def test_open_dials_and_everything_comes_in_order(network: MemoryReplicaNetwork):
    links, events, host = await connect(network)
    for number in range(3):
        header, payload = entry(number, b"payload %d" % number)
        assert links.send_entry(PEER, header, [payload[:3], memoryview(payload)[3:]]) > 0
    links.send(PEER, PULSE)
    assert host.entries == []
    await turns()
    assert host.messages[0] == open_message()
    assert [bytes(ledger_entry.payload) for ledger_entry in host.entries] == [b"payload 0", b"payload 1", b"payload 2"]
    assert host.messages[-1] == PULSE
    host.links[0].send(ACK)
    await turns()
    assert events.answers == [(PEER, ACK)]
    assert links.is_up(PEER)
    assert links.silent_s(PEER) == 0


async def test_only_an_open_dials(network: MemoryReplicaNetwork):
    host, events, links = RecordingHost(PEER), RecordingEvents(), network.links(OWNER)
    network.serve(host)
    links.start(events)
    links.send(PEER, PULSE)
    links.send(PEER, Drop(1, 2, 3))
    header, payload = entry(0, b"x")
    assert links.send_entry(PEER, header, [payload]) == 0
    await turns()
    assert host.links == []
    assert not links.is_up(PEER)
    assert links.silent_s(PEER) is None


async def test_links_that_were_not_started_say_so(network: MemoryReplicaNetwork):
    with pytest.raises(IllegalStateError, match="start"):
        _ = network.links(OWNER).events


async def test_a_detached_entry_does_not_see_later_changes(network: MemoryReplicaNetwork):
    links, _, host = await connect(network)
    header, payload = entry(0, bytes(100_000))
    memory = bytearray(payload)
    links.send_entry(PEER, header, [memoryview(memory)])
    links.detach()
    memory[:] = b"x" * len(memory)
    await turns()
    assert bytes(host.entries[0].payload) == payload


async def test_memory_that_changes_before_detach_breaks_the_link():
    links, events, host = await connect(MemoryReplicaNetwork())
    header, payload = entry(0, bytes(1000))
    memory = bytearray(payload)
    links.send_entry(PEER, header, [memory])
    memory[0] = 1
    await turns()
    assert host.entries == []
    assert events.lost == [PEER]
    assert host.lost_links == host.links


async def test_a_slow_peer_lets_bytes_wait_without_a_loss(
    network: MemoryReplicaNetwork, monkeypatch: pytest.MonkeyPatch
):
    links, events, host = await connect(network)
    time = LoopTime(monkeypatch)
    network.hold(OWNER, PEER)
    waiting = []
    for number in range(4):
        header, payload = entry(number, bytes(1000))
        waiting.append(links.send_entry(PEER, header, [payload]))
        await time.advance(SILENCE_S)
    assert waiting == sorted(waiting)
    assert waiting[-1] >= 4000
    assert (host.entries, events.lost) == ([], [])
    host.links[0].send(ACK)
    await turns()
    assert events.answers == [(PEER, ACK)]
    network.release(OWNER, PEER)
    await turns()
    assert [ledger_entry.header.entry for ledger_entry in host.entries] == [0, 1, 2, 3]


async def test_a_paused_link_delivers_after_resume(network: MemoryReplicaNetwork):
    links, _, host = await connect(network)
    host.links[0].pause()
    header, payload = entry(0, b"later")
    links.send_entry(PEER, header, [payload])
    await turns()
    assert host.entries == []
    host.links[0].resume()
    await turns()
    assert len(host.entries) == 1


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("pair", [(OWNER, PEER), (PEER, OWNER)])
async def test_a_long_cut_ends_the_link_at_both_ends(
    network: MemoryReplicaNetwork,
    monkeypatch: pytest.MonkeyPatch,
    pair: tuple[ReplicaId, ReplicaId],
    both_ways: bool,
):
    links, events, host = await connect(network)
    time = LoopTime(monkeypatch)
    network.cut(*pair, both_ways=both_ways)
    header, payload = entry(0, b"lost")
    links.send_entry(PEER, header, [payload])
    await time.advance(SILENCE_S / 2)
    assert links.is_up(PEER)
    assert links.silent_s(PEER) > 0
    await time.advance(SILENCE_S)
    assert not links.is_up(PEER)
    assert events.lost == [PEER]
    assert host.lost_links == host.links
    network.heal(*pair)
    links.send(PEER, open_message(2))
    await turns()
    assert host.messages[-1] == open_message(2)
    assert host.links[0].number != host.links[1].number
    assert links.silent_s(PEER) == 0


async def test_a_short_cut_only_delays(network: MemoryReplicaNetwork, monkeypatch: pytest.MonkeyPatch):
    links, events, host = await connect(network)
    time = LoopTime(monkeypatch)
    network.cut(OWNER, PEER)
    links.send(PEER, PULSE)
    await time.advance(SILENCE_S / 2)
    assert PULSE not in host.messages
    network.heal(OWNER, PEER)
    await time.advance(SILENCE_S)
    assert host.messages[-1] == PULSE
    assert events.lost == []


async def test_a_dial_over_a_cut_fails_later(network: MemoryReplicaNetwork, monkeypatch: pytest.MonkeyPatch):
    host, events, links = RecordingHost(PEER), RecordingEvents(), network.links(OWNER)
    network.serve(host)
    network.cut(OWNER, PEER)
    links.start(events)
    time = LoopTime(monkeypatch)
    links.send(PEER, open_message())
    await turns()
    assert events.lost == []
    await time.advance(1.0)
    assert events.lost == [PEER]
    assert links.silent_s(PEER) >= 1.0
    await time.advance(10.0)
    assert links.silent_s(PEER) is None, "no process waits for a replica that none has opened for long"


async def test_an_open_that_is_repeated_while_dialling_dials_once(
    network: MemoryReplicaNetwork, monkeypatch: pytest.MonkeyPatch
):
    time, failures = LoopTime(monkeypatch), []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    events, links = RecordingEvents(), network.links(OWNER)
    network.serve(RecordingHost(PEER))
    network.cut(OWNER, PEER)
    links.start(events)
    links.send(PEER, open_message())
    links.send(PEER, open_message())
    await time.advance(1.5)
    assert (events.lost, failures) == ([PEER], [])


async def test_a_killed_host_is_lost_and_reached_again(network: MemoryReplicaNetwork):
    links, events, host = await connect(network)
    links.send(PEER, PULSE)
    network.kill(PEER)
    await turns()
    assert PULSE not in host.messages
    assert (events.lost, host.lost_links) == ([PEER], [])
    links.send(PEER, open_message())
    await turns()
    assert events.lost == [PEER, PEER]
    again = RecordingHost(PEER)
    network.serve(again)
    links.send(PEER, open_message())
    await turns()
    assert again.messages == [open_message()]


async def test_a_killed_owner_hears_nothing_more(network: MemoryReplicaNetwork):
    links, events, host = await connect(network)
    host.links[0].send(ACK)
    network.kill(OWNER)
    links.send(PEER, open_message(2))
    host.links[0].send(ACK)
    await turns()
    assert (events.answers, events.lost) == ([], [])
    assert host.lost_links == host.links


async def test_another_replica_at_the_address_is_told(network: MemoryReplicaNetwork):
    links, events, _ = await connect(network)
    new = RecordingHost(ReplicaId(b"n" * 16))
    network.serve(new, at=PEER)
    await turns()
    assert events.lost == [PEER]
    links.send(PEER, open_message())
    await turns()
    assert events.others == [PEER]
    assert new.messages == []
    links.send(new.replica, open_message())
    await turns()
    assert new.messages == [open_message()]


async def test_ends_that_close_say_so_to_the_other(network: MemoryReplicaNetwork):
    links, events, host = await connect(network)
    host.links[0].close()
    await turns()
    assert (events.lost, host.lost_links) == ([PEER], [])
    links.send(PEER, open_message())
    await turns()
    await links.close()
    links.send(PEER, open_message())
    await turns()
    assert events.lost == [PEER]
    assert host.lost_links == [host.links[1]]
    assert len(host.links) == 2


async def test_a_lost_link_loses_what_waited(network: MemoryReplicaNetwork):
    links, events, host = await connect(network)
    links.send(PEER, PULSE)
    network.lose_link(OWNER, PEER)
    await turns()
    assert PULSE not in host.messages
    assert (events.lost, host.lost_links) == ([PEER], host.links)


async def test_messages_travel_as_long_as_the_delay_says(monkeypatch: pytest.MonkeyPatch):
    host, events = RecordingHost(PEER), RecordingEvents()
    network = MemoryReplicaNetwork(delay=lambda sender, _: 60.0 if sender == OWNER else 30.0)
    network.serve(host)
    links = network.links(OWNER)
    links.start(events)
    time = LoopTime(monkeypatch)
    links.send(PEER, open_message())
    await time.advance(60.0)
    for number in range(3):
        header, payload = entry(number, b"x")
        links.send_entry(PEER, header, [payload])
        await time.advance(20.0)
    assert len(host.entries) == 1
    await time.advance(40.0)
    assert [ledger_entry.header.entry for ledger_entry in host.entries] == [0, 1, 2]
