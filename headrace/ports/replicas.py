"""Links between an owner's process and the processes that hold copies of its logs.

A process has one link to each process that holds copies for it, for all containers. All calls and callbacks are on one
event loop. A link keeps the order of its messages. Nothing else is promised: after a link is lost, messages may be
lost, and an earlier link may still deliver some. The sessions of the protocol tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.codec.log_record_header import RecordHeader
from headrace.codec.replica_messages import Ack, Drop, Entries, Entry, Nack, Open, Opened, Pulse, Read
from headrace.model.container_logs import ReplicaId

if TYPE_CHECKING:
    from typing_extensions import Buffer

OwnerMessage = Open | Read | Pulse | Drop
"""What an owner sends besides entries. A pulse is answered by the link itself, which measures silence with it."""

ReplicaAnswer = Opened | Ack | Nack | Entries


class ReplicaEvents(Protocol):
    """What an owner's process learns from its links."""

    def received(self, replica: ReplicaId, message: ReplicaAnswer) -> None:
        """A replica answered."""
        ...

    def link_lost(self, replica: ReplicaId) -> None:
        """The link to a replica has ended, or could not be made. The next message dials again."""
        ...

    def other_replica(self, replica: ReplicaId) -> None:
        """Another replica answers at the address of this one: its volume was replaced."""
        ...


class ReplicaLinks(Protocol):
    """The links of one process to the replicas in other processes. No method blocks or raises OSError."""

    def start(self, events: ReplicaEvents) -> None:
        """Begin to report events. Call it once, before any other method."""
        ...

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None:
        """Send a message. Without a link an OPEN dials, and waits for the link; anything else is dropped."""
        ...

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Buffer]) -> int:
        """Send an entry whose payload is `parts`; return how many bytes wait in the link.

        The parts must not change until `detach` was called. Everything sent in one turn of the loop goes out together.
        Without a link the entry is dropped, and 0 returned.
        """
        ...

    def detach(self) -> None:
        """Copy what still waits in the links: the memory of the entries is about to be used again."""
        ...

    def is_up(self, replica: ReplicaId) -> bool:
        """Whether there is a link to a replica."""
        ...

    def silent_s(self, replica: ReplicaId) -> float | None:
        """For how long nothing was heard from a replica; None if this process has no link to it and dials none."""
        ...

    async def close(self) -> None:
        """End all links."""
        ...


class OwnerLink(Protocol):
    """The other end of a link, at the process that holds copies."""

    @property
    def number(self) -> int:
        """A number that no other link to this process has or had."""
        ...

    def send(self, message: ReplicaAnswer) -> None:
        """Send an answer; dropped if the link has ended."""
        ...

    def pause(self) -> None:
        """Receive nothing more until `resume`: too much is received that is not on disk yet."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None:
        """End the link. The host is not told."""
        ...


class ReplicaHost(Protocol):
    """A process that holds copies, as its links see it."""

    @property
    def replica(self) -> ReplicaId: ...

    def connected(self, link: OwnerLink) -> None:
        """An owner's process has connected and proved that it belongs to the deployment."""
        ...

    def received(self, link: OwnerLink, message: OwnerMessage | Entry) -> None:
        """The payload of an entry must not change as long as anything references it."""
        ...

    def lost(self, link: OwnerLink) -> None: ...
