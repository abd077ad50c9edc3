"""Connections that read segments over the wire protocol, and sometimes take no replies for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.connections import MemoryChannel, MemoryConnection
from fuzz.randomness import Random
from fuzz.read_model import AskedRead, ReadModel
from headrace import wire
from headrace.segmentstore.store import SegmentStore

_BLOCKED_SHARE: Final = 0.3
_READS_AT_ONCE: Final = (1, 1, 2, 20)
_LENGTHS: Final = (1, 50, 300, 2_000, 1 << 21)
_WRONG_TOKEN: Final = b"xx"


class SlowChannel(MemoryChannel):
    """Keeps references to replies that its peer has not taken, as a socket does. They must not change meanwhile."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._held: list[memoryview] = []
        self._is_blocked = False

    def send(self, parts: Sequence[wire.Buffer]) -> None:
        if self.closed:
            return
        self._held.extend(memoryview(part) for part in parts)
        if not self._is_blocked and self._random.random() >= _BLOCKED_SHARE:
            self._take()
            return
        self._is_blocked = True
        if not self.session.sending_blocked:
            self.session.writing_paused()

    def unblock(self) -> None:
        """The peer takes everything that waits."""
        if self._is_blocked and not self.closed:
            self._is_blocked = False
            self._take()
            if self.session.sending_blocked:
                self.session.writing_resumed()

    def close(self) -> None:
        if not self.closed:
            self._take()
        super().close()

    def abort(self) -> None:
        super().close()

    def _take(self) -> None:
        held, self._held = self._held, []
        super().send(held)


class ReadingPeer:
    """Sends reads, often several at once, and checks the replies. It goes on with tokens that it got."""

    def __init__(self, random: Random, model: ReadModel, store: SegmentStore) -> None:
        self._random = random
        self._model = model
        self._channel = SlowChannel(random)
        self._connection = MemoryConnection(store, lambda: random.getrandbits(128), self._channel)
        self._asked: dict[int, AskedRead] = {}
        self._tails: dict[str, tuple[int, bytes]] = {}
        self._numbers = 0

    @property
    def closed(self) -> bool:
        return self._channel.closed

    @property
    def waits(self) -> bool:
        """Whether it has no reply yet to some of its reads."""
        return bool(self._asked) and not self.closed

    def ask(self, names: Sequence[str]) -> None:
        """Send some reads, each of one of these names."""
        for _ in range(self._random.choice(_READS_AT_ONCE)):
            if not self.closed:
                self._ask(self._random.choice(names))

    def _ask(self, name: str) -> None:
        random, model, token = self._random, self._model.live.get(name), b""
        kind = random.random()
        if kind < 0.5 and name in self._tails:
            offset, token = self._tails[name]
        elif kind < 0.9:
            offset = random.randrange(model.start, len(model.data) + 1) if model is not None else 0
        else:
            offset = random.randrange(len(model.data) + 5) if model is not None else 0
            token = random.choice((b"", _WRONG_TOKEN))
        self._numbers += 1
        self._asked[self._numbers] = self._model.asked(self._numbers, name, offset)
        self._connection.send(wire.ReadSegment(name, offset, random.choice(_LENGTHS), "", self._numbers, token))

    def check_replies(self, *, unblock: bool) -> None:
        """Check what has arrived, and take first what waits if `unblock`. Raises WrongStateError."""
        if unblock:
            self._channel.unblock()
        while not self._channel.replies.empty():
            reply = self._channel.replies.get_nowait()
            number = getattr(reply, "request_id", None)
            if reply is None or number is None:
                continue
            read = self._asked.pop(number, None)
            if read is None:
                raise WrongStateError(f"a reply without a request: {reply}")
            self._model.check_reply(read, reply)
            if isinstance(reply, wire.SegmentRead):
                self._tails[read.name] = (read.offset + len(reply.data), bytes(reply.token))
            else:
                self._tails.pop(read.name, None)

    def leave(self) -> None:
        """Close the connection, with the reads that have no reply yet."""
        if not self.closed:
            self._connection.close()
