"""Links between the replicas of several simulated processes on one event loop, with faults that a caller injects.

A message is delivered in a later turn of the loop, in the order of its link, as bytes that were encoded and decoded
again. Times are those of the loop, so that a simulated loop decides them. Faults act as they do on TCP: a cut delays
messages, and after SILENCE_S without any the link is lost at both ends. A link that has ended delivers nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from headrace.codec.log_record_header import RecordHeader
from headrace.codec.replica_messages import Entry, Open, ReplicaMessage, decode_message, encode_message
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import CorruptError, IllegalStateError
from headrace.ports.replicas import OwnerMessage, ReplicaAnswer, ReplicaEvents, ReplicaHost

if TYPE_CHECKING:
    from typing_extensions import Buffer

DIAL_S: Final = 1.0
SILENCE_S: Final = 1.5
FORGOTTEN_S: Final = 5.0
"""No process waits for a replica without a link if it sent no OPEN in this time."""

Pair = tuple[ReplicaId, ReplicaId]
Delay = Callable[[ReplicaId, ReplicaId], float]


class MemoryReplicaNetwork:
    """All links of a simulated deployment.

    `delay(sender, receiver)` are the seconds that a message travels; without it a message arrives in the next turn.
    With `encodes=False` messages are passed as objects, which is faster; payloads are copied even so.
    """

    def __init__(self, *, delay: Delay | None = None, encodes: bool = True) -> None:
        self._delay = delay
        self.encodes = encodes
        self.numbers = count(1)
        self._hosts: dict[ReplicaId, ReplicaHost] = {}
        self._ends: dict[ReplicaId, list[MemoryReplicaLinks]] = {}
        self._links: set[_Link] = set()
        self._cut: set[Pair] = set()
        self._held: set[Pair] = set()

    def serve(self, host: ReplicaHost, *, at: ReplicaId | None = None) -> None:
        """Let links reach a host, as its own replica and also at the address of the replica `at`.

        With `at` of another replica, that one was replaced: owners that dial it learn `other_replica`.
        """
        if at is not None:
            self.kill(at)
            self._hosts[at] = host
        self._hosts[host.replica] = host

    def links(self, own: ReplicaId) -> MemoryReplicaLinks:
        """The links of the process with the replica `own`."""
        made = MemoryReplicaLinks(self, own)
        self._ends.setdefault(own, []).append(made)
        return made

    def kill(self, replica: ReplicaId) -> None:
        """End the process of a replica without notice. It receives nothing more; the others lose their links to it."""
        self._hosts = {at: host for at, host in self._hosts.items() if replica not in (at, host.replica)}
        for end in self._ends.pop(replica, []):
            end.is_closed = True
        for link in self._of(lambda link: replica in (link.owner.own, link.replica, link.host.replica)):
            link.end(told_owner=link.owner.own != replica, told_host=link.owner.own == replica)

    def cut(self, sender: ReplicaId, receiver: ReplicaId, *, both_ways: bool = True) -> None:
        """Deliver nothing from one process to another, in one direction or both."""
        self._cut |= {(sender, receiver)} | ({(receiver, sender)} if both_ways else set())
        for link in self._of(lambda link: self.is_cut(link.owner.own, link.replica)):
            link.watch_silence()  # a link that was cut before keeps the time that it has left

    def heal(self, sender: ReplicaId, receiver: ReplicaId) -> None:
        """End the cuts of both directions. A link that was not lost meanwhile delivers what has waited."""
        self._cut -= {(sender, receiver), (receiver, sender)}
        self._continue()

    def hold(self, sender: ReplicaId, receiver: ReplicaId) -> None:
        """Let a peer be slow: messages of this direction wait, but the link is not lost."""
        self._held.add((sender, receiver))

    def release(self, sender: ReplicaId, receiver: ReplicaId) -> None:
        """End a `hold`."""
        self._held.discard((sender, receiver))
        self._continue()

    def lose_link(self, owner: ReplicaId, replica: ReplicaId) -> None:
        """End the link of an owner to a replica, as if it was reset. What it had not delivered is lost."""
        for link in self._of(lambda link: (link.owner.own, link.replica) == (owner, replica)):
            link.end(told_owner=True, told_host=True)

    def is_cut(self, owner: ReplicaId, replica: ReplicaId) -> bool:
        """Whether at least one direction is cut."""
        return (owner, replica) in self._cut or (replica, owner) in self._cut

    # For the links

    def is_open(self, sender: ReplicaId, receiver: ReplicaId) -> bool:
        return (sender, receiver) not in self._cut and (sender, receiver) not in self._held

    def host_at(self, replica: ReplicaId) -> ReplicaHost | None:
        return self._hosts.get(replica)

    def schedule(self, sender: ReplicaId, receiver: ReplicaId, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._delay is None:
            loop.call_soon(call)
        else:
            loop.call_later(self._delay(sender, receiver), call)

    def add(self, link: _Link) -> None:
        self._links.add(link)

    def discard(self, link: _Link) -> None:
        self._links.discard(link)

    def _of(self, wanted: Callable[[_Link], bool]) -> list[_Link]:
        return sorted((link for link in self._links if wanted(link)), key=lambda link: link.number)

    def _continue(self) -> None:
        for link in self._of(lambda _: True):
            link.to_host.deliver_again()
            link.to_owner.deliver_again()


class MemoryReplicaLinks:
    """`ports.replicas.ReplicaLinks` of one simulated process."""

    def __init__(self, network: MemoryReplicaNetwork, own: ReplicaId) -> None:
        self._network = network
        self.own = own
        self.is_closed = False
        self._events: ReplicaEvents | None = None
        self._links: dict[ReplicaId, _Link] = {}
        self._dials: dict[ReplicaId, dict[int, Open]] = {}
        self._heard_s: dict[ReplicaId, float] = {}
        self._opened_s: dict[ReplicaId, float] = {}

    @property
    def events(self) -> ReplicaEvents:
        if self._events is None:
            raise IllegalStateError("the links were not started: call `start` first")
        return self._events

    def start(self, events: ReplicaEvents) -> None:
        self._events = events

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None:
        if self.is_closed:
            return
        link = self._links.get(replica)
        if isinstance(message, Open):
            if not self._is_waited_for(replica):
                self.heard(replica)
            self._opened_s[replica] = asyncio.get_running_loop().time()
            if link is None:
                self._dial(replica, message)
        if link is not None:
            link.to_host.put(_encoded(message) if self._network.encodes else message)

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Buffer]) -> int:
        link = self._links.get(replica)
        if link is None or self.is_closed:
            return 0
        link.to_host.put(_BorrowedEntry(header, parts))
        return link.to_host.waiting_bytes

    def detach(self) -> None:
        for link in self._links.values():
            link.to_host.detach()

    def is_up(self, replica: ReplicaId) -> bool:
        return replica in self._links

    def silent_s(self, replica: ReplicaId) -> float | None:
        if not self._is_waited_for(replica):
            return None
        if replica in self._links and not self._network.is_cut(self.own, replica):
            return 0.0
        return asyncio.get_running_loop().time() - self._heard_s[replica]

    async def close(self) -> None:
        self.is_closed = True
        for link in list(self._links.values()):
            link.end(told_owner=False, told_host=True)

    # For the network

    def heard(self, replica: ReplicaId) -> None:
        self._heard_s[replica] = asyncio.get_running_loop().time()

    def lost(self, replica: ReplicaId, *, told: bool) -> None:
        del self._links[replica]
        if not self._network.is_cut(self.own, replica):
            self.heard(replica)  # a link is never silent before it is cut
        if told:
            self._tell_lost(replica)

    def _is_waited_for(self, replica: ReplicaId) -> bool:
        opened_s = self._opened_s.get(replica)
        if replica in self._links or opened_s is None:
            return opened_s is not None
        return asyncio.get_running_loop().time() - opened_s < FORGOTTEN_S

    def _dial(self, replica: ReplicaId, message: Open) -> None:
        is_dialling = replica in self._dials
        self._dials.setdefault(replica, {})[message.container] = message
        if is_dialling:
            return
        if self._network.is_cut(self.own, replica):
            asyncio.get_running_loop().call_later(DIAL_S, self._dial_failed, replica)
        else:
            self._network.schedule(self.own, replica, lambda: self._connect(replica))

    def _connect(self, replica: ReplicaId) -> None:
        host = self._network.host_at(replica)
        if self.is_closed:
            return
        if host is None or self._network.is_cut(self.own, replica):
            self._dial_failed(replica)
            return
        opens = self._dials.pop(replica)
        self.heard(replica)
        if host.replica != replica:
            self.events.other_replica(replica)
            return
        link = self._links[replica] = _Link(self._network, self, replica, host)
        for message in opens.values():
            link.to_host.put(_encoded(message) if self._network.encodes else message)

    def _dial_failed(self, replica: ReplicaId) -> None:
        del self._dials[replica]
        self._tell_lost(replica)

    def _tell_lost(self, replica: ReplicaId) -> None:
        def tell() -> None:
            if not self.is_closed:
                self.events.link_lost(replica)

        asyncio.get_running_loop().call_soon(tell)


class _BorrowedEntry:
    """An entry whose payload is still the caller's memory."""

    def __init__(self, header: RecordHeader, parts: Sequence[Buffer]) -> None:
        self.header, self.parts = header, parts
        self.length = header.length

    def message(self, *, encodes: bool) -> ReplicaMessage | bytes:
        entry = Entry(self.header, b"".join(self.parts))
        return _encoded(entry) if encodes else entry


_Waiting = ReplicaMessage | bytes | _BorrowedEntry


class _Lane:
    """One direction of a link: what waits in it, and how it is delivered."""

    def __init__(self, link: _Link, pair: Pair, deliver: Callable[[ReplicaMessage], None]) -> None:
        self._link = link
        self._pair = pair
        self._deliver = deliver
        self._items: deque[_Waiting] = deque()
        self.is_paused = False
        self.waiting_bytes = 0

    def put(self, item: _Waiting) -> None:
        self._items.append(item)
        self.waiting_bytes += _length(item)
        self._link.network.schedule(*self._pair, self._deliver_one)

    def deliver_again(self) -> None:
        """Deliver what waits, because a fault or a pause has ended."""
        for _ in self._items:
            self._link.network.schedule(*self._pair, self._deliver_one)

    def detach(self) -> None:
        encodes = self._link.network.encodes
        self._items = deque(
            item.message(encodes=encodes) if isinstance(item, _BorrowedEntry) else item for item in self._items
        )
        self.waiting_bytes = sum(map(_length, self._items))

    def clear(self) -> None:
        self._items.clear()

    def _deliver_one(self) -> None:
        if self.is_paused or not self._items or not self._link.network.is_open(*self._pair):
            return
        item = self._items.popleft()
        self.waiting_bytes -= _length(item)
        if isinstance(item, _BorrowedEntry):
            item = item.message(encodes=self._link.network.encodes)
        try:
            message = decode_message(memoryview(item)) if isinstance(item, bytes) else item
        except CorruptError:
            self._link.end(told_owner=True, told_host=True)
            return
        self._deliver(message)


class _Link:
    """Both ends of a link. It is itself the end at the host, `ports.replicas.OwnerLink`."""

    def __init__(
        self, network: MemoryReplicaNetwork, owner: MemoryReplicaLinks, replica: ReplicaId, host: ReplicaHost
    ) -> None:
        self.network, self.owner, self.replica, self.host = network, owner, replica, host
        self._number = next(network.numbers)
        self._ended = False
        self._silence: asyncio.TimerHandle | None = None
        self.to_host = _Lane(self, (owner.own, replica), self._deliver_to_host)
        self.to_owner = _Lane(self, (replica, owner.own), self._deliver_to_owner)
        network.add(self)
        host.connected(self)

    @property
    def number(self) -> int:
        return self._number

    def send(self, message: ReplicaAnswer) -> None:
        if not self._ended:
            self.to_owner.put(_encoded(message) if self.network.encodes else message)

    def pause(self) -> None:
        self.to_host.is_paused = True

    def resume(self) -> None:
        self.to_host.is_paused = False
        self.to_host.deliver_again()

    def close(self) -> None:
        self.end(told_owner=True, told_host=False)

    def end(self, *, told_owner: bool, told_host: bool) -> None:
        """End both ends now; tell them in a later turn."""
        if self._ended:
            return
        self._ended = True
        if self._silence is not None:
            self._silence.cancel()
        self.to_host.clear()
        self.to_owner.clear()
        self.network.discard(self)
        self.owner.lost(self.replica, told=told_owner)
        if told_host:
            asyncio.get_running_loop().call_soon(self.host.lost, self)

    def watch_silence(self) -> None:
        if self._silence is None:
            self.owner.heard(self.replica)
            self._silence = asyncio.get_running_loop().call_later(SILENCE_S, self._silent)

    def _silent(self) -> None:
        self._silence = None
        if self.network.is_cut(self.owner.own, self.replica):
            self.end(told_owner=True, told_host=True)

    def _deliver_to_host(self, message: ReplicaMessage) -> None:
        self.host.received(self, message)  # type: ignore[arg-type]

    def _deliver_to_owner(self, message: ReplicaMessage) -> None:
        self.owner.heard(self.replica)
        self.owner.events.received(self.replica, message)  # type: ignore[arg-type]


def _encoded(message: ReplicaMessage) -> bytes:
    return encode_message(message)


def _length(item: _Waiting) -> int:
    match item:
        case bytes():
            return len(item)
        case _BorrowedEntry():
            return item.length
        case Entry(header):
            return header.length
        case _:
            return 0
