"""Links between simulated stores: the network belongs to no process, and each message enters the process it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.adapters.memory.replicas import MemoryReplicaLinks
from headrace.codec.log_record_header import RecordHeader
from headrace.codec.replica_messages import Entry
from headrace.model.container_logs import ReplicaId
from headrace.ports.replicas import OwnerLink, OwnerMessage, ReplicaAnswer, ReplicaEvents, ReplicaHost
from simulation.world.loop import SimulatedLoop, SimulatedProcess


class ProcessLinks:
    """`ports.replicas.ReplicaLinks` of one simulated process."""

    def __init__(self, loop: SimulatedLoop, process: SimulatedProcess, links: MemoryReplicaLinks) -> None:
        self._loop = loop
        self._process = process
        self._links = links

    def start(self, events: ReplicaEvents) -> None:
        self._links.start(_ProcessEvents(self._process, events))

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None:
        self._loop.outside.run(self._links.send, replica, message)

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Any]) -> int:
        waiting: int = self._loop.outside.run(self._links.send_entry, replica, header, parts)
        return waiting

    def detach(self) -> None:
        self._loop.outside.run(self._links.detach)

    def is_up(self, replica: ReplicaId) -> bool:
        return self._links.is_up(replica)

    def silent_s(self, replica: ReplicaId) -> float | None:
        return self._links.silent_s(replica)

    async def close(self) -> None:
        await self._loop.outside.spawn(self._links.close())


class _ProcessEvents:
    """`ports.replicas.ReplicaEvents` that are handed to a process."""

    def __init__(self, process: SimulatedProcess, events: ReplicaEvents) -> None:
        self._process = process
        self._events = events

    def received(self, replica: ReplicaId, message: ReplicaAnswer) -> None:
        self._process.call_soon(partial(self._events.received, replica, message))

    def link_lost(self, replica: ReplicaId) -> None:
        self._process.call_soon(partial(self._events.link_lost, replica))

    def other_replica(self, replica: ReplicaId) -> None:
        self._process.call_soon(partial(self._events.other_replica, replica))


class HostInProcess:
    """`ports.replicas.ReplicaHost` that hands everything to the process of the real one."""

    def __init__(self, loop: SimulatedLoop, process: SimulatedProcess, host: ReplicaHost) -> None:
        self._loop = loop
        self._process = process
        self._host = host
        self._links: dict[int, _LinkOutside] = {}

    @property
    def replica(self) -> ReplicaId:
        return self._host.replica

    def connected(self, link: OwnerLink) -> None:
        found = self._links[link.number] = _LinkOutside(self._loop, link)
        self._process.call_soon(partial(self._host.connected, found))

    def received(self, link: OwnerLink, message: OwnerMessage | Entry) -> None:
        self._process.call_soon(partial(self._host.received, self._links[link.number], message))

    def lost(self, link: OwnerLink) -> None:
        self._process.call_soon(partial(self._host.lost, self._links.pop(link.number)))


class _LinkOutside:
    """`ports.replicas.OwnerLink` whose calls leave the process."""

    def __init__(self, loop: SimulatedLoop, link: OwnerLink) -> None:
        self._loop = loop
        self._link = link

    @property
    def number(self) -> int:
        return self._link.number

    def send(self, message: ReplicaAnswer) -> None:
        self._call(partial(self._link.send, message))

    def pause(self) -> None:
        self._call(self._link.pause)

    def resume(self) -> None:
        self._call(self._link.resume)

    def close(self) -> None:
        self._call(self._link.close)

    def _call(self, call: Callable[[], None]) -> None:
        self._loop.outside.run(call)
