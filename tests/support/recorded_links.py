"""Ends of links that keep what they were told, and messages for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from crc32c import crc32c

from headrace.codec.log_record_header import RecordHeader, RecordKind
from headrace.codec.replica_messages import Entry, Open, ReplicaMessage
from headrace.model.container_logs import LedgerStart, ReplicaId
from headrace.ports.replicas import OwnerLink, OwnerMessage, ReplicaAnswer

OWNER, PEER = ReplicaId(b"o" * 16), ReplicaId(b"p" * 16)


class Recorder:
    """Wakes who waits for what it is told."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Return as soon as `is_reached` is true after something that was told."""
        while not is_reached():
            self._changed.clear()
            await self._changed.wait()


class RecordingEvents(Recorder):
    """`ports.replicas.ReplicaEvents`."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[ReplicaId, ReplicaAnswer]] = []
        self.lost: list[ReplicaId] = []
        self.others: list[ReplicaId] = []

    def received(self, replica: ReplicaId, message: ReplicaAnswer) -> None:
        self.answers.append((replica, message))
        self.changed()

    def link_lost(self, replica: ReplicaId) -> None:
        self.lost.append(replica)
        self.changed()

    def other_replica(self, replica: ReplicaId) -> None:
        self.others.append(replica)
        self.changed()


class RecordingHost(Recorder):
    """`ports.replicas.ReplicaHost`."""

    def __init__(self, replica: ReplicaId = PEER) -> None:
        super().__init__()
        self._replica = replica
        self.links: list[OwnerLink] = []
        self.lost_links: list[OwnerLink] = []
        self.messages: list[ReplicaMessage] = []

    @property
    def replica(self) -> ReplicaId:
        return self._replica

    @property
    def entries(self) -> list[Entry]:
        return [message for message in self.messages if isinstance(message, Entry)]

    def connected(self, link: OwnerLink) -> None:
        self.links.append(link)
        self.changed()

    def received(self, link: OwnerLink, message: OwnerMessage | Entry) -> None:
        self.messages.append(message)
        self.changed()

    def lost(self, link: OwnerLink) -> None:
        self.lost_links.append(link)
        self.changed()


class AnswersKept:
    """`ports.replicas.OwnerLink` that keeps the answers."""

    number = 7

    def __init__(self) -> None:
        self.answers: list[ReplicaAnswer] = []

    def send(self, message: ReplicaAnswer) -> None:
        self.answers.append(message)

    def pause(self) -> None:
        raise AssertionError("nothing was received that is not on disk")

    resume = close = pause


def open_message(session: int = 1, container: int = 3) -> Open:
    return Open(container, session, 15, 0, (LedgerStart(12, 0),))


def entry(number: int, payload: bytes) -> tuple[RecordHeader, bytes]:
    """The header of an entry, and its payload."""
    return RecordHeader(RecordKind.ENTRY, 3, 12, 15, number, 0, 0, len(payload), crc32c(payload)), payload
