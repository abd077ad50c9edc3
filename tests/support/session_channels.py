"""Sessions without sockets: a test gives them bytes, and sees what they send and whether they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from headrace import wire
from headrace.segmentstore.connections.receive_memory import ReceiveMemory
from headrace.segmentstore.connections.session import Session
from headrace.wire import Buffer


class FakeChannel:
    """Takes replies in; with `takes` false the peer reads nothing."""

    def __init__(self, *, takes: bool = True) -> None:
        self.takes = takes
        self.sent = bytearray()
        self.receiving = True
        self.closed = False
        self.session: Session | None = None

    def send(self, parts: Sequence[Buffer]) -> None:
        for part in parts:
            self.sent += part
        if not self.takes and self.session is not None and not self.session.sending_blocked:
            self.session.writing_paused()

    def pause_receiving(self) -> None:
        self.receiving = False

    def resume_receiving(self) -> None:
        self.receiving = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def replies(self) -> list[wire.WireCommand]:
        replies: list[wire.WireCommand] = []
        position = 0
        while position < len(self.sent):
            type_code, length = wire.decode_header(self.sent[position : position + 8])
            payload = memoryview(bytes(self.sent[position + 8 : position + 8 + length]))
            replies.append(wire.decode(type_code, payload))
            position += 8 + length
        return replies


def open_session(
    running: Any, *, takes: bool = True, memory: ReceiveMemory | None = None, peer: str = "peer"
) -> tuple[Session, FakeChannel]:
    channel = FakeChannel(takes=takes)
    memory = memory or ReceiveMemory(32 << 20, 100)
    session = Session(running.store, channel, memory, peer, lambda: running.world.random.getrandbits(128))
    channel.session = session
    return session, channel


async def feed(session: Session, channel: FakeChannel, data: bytes, cuts: Iterable[int] = ()) -> int:
    """Give the session bytes as a socket would, in pieces, for as long as it takes any; how many it took."""
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    position = 0
    for end in ends:
        while position < end:
            for _ in range(500):
                if channel.receiving or channel.closed:
                    break
                await asyncio.sleep(0)
            if channel.closed or not channel.receiving:
                return position
            target = session.assembler.writable()
            count = min(len(target), end - position)
            target[:count] = data[position : position + count]
            session.received(count)
            position += count
    await asyncio.sleep(0)
    return position
