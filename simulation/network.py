"""The network between stores: delays, loss, repetition, reordering, and cuts of pairs, directions and stores.

A message reaches the process that its sender was connected to, or no process: a connection ends with either process,
and when it is reset.
Within these limits messages may arrive late, twice, or in any order, also behind those of a newer connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.codec.replica_messages import Drop, ReplicaMessage, decode_message, encode_message
from simulation.draws import Draws
from simulation.scheduler import MS, SECOND, Scheduler
from simulation.swarm import Swarm

_LOCAL_DELAY: Final = 10
LINK_SILENCE: Final = 1_500 * MS
"""Both ends close a link that is silent for this long."""

_LATE_DROP: Final = 4 * SECOND


class Address(NamedTuple):
    """A process: its store and how often the store was started."""

    store: int
    incarnation: int


class Link(NamedTuple):
    """A connection of a process, as the replicas of the other store know it. `resets` counts those before it."""

    store: int
    incarnation: int
    resets: int

    @property
    def number(self) -> int:
        return self.resets << 64 | self.store << 32 | self.incarnation

    @classmethod
    def address_of(cls, number: int) -> Address:
        """The process at the other end of the link with this number."""
        return Address(number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF)


Receive = Callable[[Address, ReplicaMessage], None]
"""Takes the sender's address and a message."""


class Network:
    """Carries messages between the processes that are registered."""

    def __init__(self, scheduler: Scheduler, draws: Draws, swarm: Swarm, faults: Counter[str]) -> None:
        self.has_faults = True
        self._scheduler = scheduler
        self._draws = draws
        self._swarm = swarm
        self._faults = faults
        self._receivers: dict[Address, Receive] = {}
        self._cut_until: dict[tuple[int, int], int] = {}
        self._not_before: dict[tuple[Address, Address], int] = {}
        self._resets: dict[tuple[int, int], int] = {}
        self._slow_since: dict[tuple[Address, Address], tuple[int, int]] = {}

    def register(self, address: Address, receive: Receive) -> None:
        self._receivers[address] = receive

    def unregister(self, address: Address) -> None:
        self._receivers.pop(address, None)

    def is_up(self, address: Address) -> bool:
        return address in self._receivers

    def cut(self, source: int, target: int, duration: int) -> None:
        """Messages of one direction are lost for a while."""
        until = self._scheduler.now + duration
        self._cut_until[source, target] = max(self._cut_until.get((source, target), 0), until)

    def link_from(self, source: Address, target: int) -> Link:
        """The connection between a process and a store as it is now."""
        return Link(source.store, source.incarnation, self._resets_between(source.store, target))

    def reset(self, first: int, second: int) -> None:
        """End the connections between two stores. What was on its way is lost."""
        self._resets[min(first, second), max(first, second)] = self._resets_between(first, second) + 1

    def _resets_between(self, first: int, second: int) -> int:
        return self._resets.get((min(first, second), max(first, second)), 0)

    def slow_down(self, source: Address, target: Address, delay: int) -> None:
        """Until there is a new link, messages take `delay`, and as long again as the link has been slow."""
        self._slow_since[source, target] = (self._scheduler.now, delay)

    def new_link(self, source: Address, target: Address) -> None:
        """What is sent from now on may arrive before what still travels over the earlier link."""
        self._slow_since.pop((source, target), None)
        self._not_before.pop((source, target), None)

    def heal(self) -> None:
        self._cut_until.clear()
        self._slow_since.clear()
        self.has_faults = False

    def is_cut(self, source: int, target: int) -> bool:
        return self._cut_until.get((source, target), 0) > self._scheduler.now

    def silence(self, source: int, target: int) -> int | None:
        """After what time a process notices that a connection is cut in one of its directions."""
        return LINK_SILENCE if self.is_cut(source, target) or self.is_cut(target, source) else None

    def send(self, source: Address, target: Address, message: ReplicaMessage) -> None:
        if source.store == target.store:
            self._deliver(source, target, message, self._in_order(source, target, _LOCAL_DELAY))
            return
        pair = source.store * 100 + target.store
        if self.is_cut(source.store, target.store):
            self._faults["message cut"] += 1
            return
        if self._happens("loss", pair):
            return
        if self._swarm.through_codec:
            message = decode_message(memoryview(encode_message(message)))
        delay = self._delay(source, target, pair)
        if isinstance(message, Drop) and self._happens("late drop", pair):
            delay += self._draws.between(0, _LATE_DROP, "late drop by", pair)
        self._deliver(source, target, message, delay)
        if self._happens("repeat", pair):
            self._deliver(source, target, message, self._delay(source, target, pair) * 3)

    def _happens(self, kind: str, pair: int) -> bool:
        rate = self._swarm.message.get(kind, 0.0)
        happens = self.has_faults and self._draws.happens(rate, kind, pair)
        if happens:
            self._faults[kind] += 1
        return happens

    def _delay(self, source: Address, target: Address, pair: int) -> int:
        typical = self._swarm.network_delay
        slow = self._slow_since.get((source, target))
        if slow is not None:
            return self._in_order(source, target, self._scheduler.now - slow[0] + slow[1])
        if self._happens("heavy tail", pair):
            delay = self._draws.heavy_tail(typical, SECOND, "tail", pair)
        else:
            delay = self._draws.between(typical // 2, typical * 3 // 2, "delay", pair)
        if self._happens("reorder", pair):
            return delay * 5
        return self._in_order(source, target, delay)

    def _in_order(self, source: Address, target: Address, delay: int) -> int:
        """The delay with which a message arrives after the ones before it."""
        arrival = max(self._scheduler.now + delay, self._not_before.get((source, target), 0) + 1)
        self._not_before[source, target] = arrival
        return arrival - self._scheduler.now

    def _deliver(self, source: Address, target: Address, message: ReplicaMessage, delay: int) -> None:
        link = self.link_from(source, target.store)

        def arrive() -> None:
            receive = self._receivers.get(target)
            if receive is not None and link == self.link_from(source, target.store):
                receive(source, message)

        self._scheduler.after(delay, type(message).__name__, arrive, target.store)
