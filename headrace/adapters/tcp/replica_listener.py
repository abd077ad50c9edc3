"""The replica's end of the links between replicas: accepts owners' processes, and hands their messages to the host.

Memory per connection is bounded: a few hundred bytes until the owner has proved itself, then one chunk and one message
(see replica_assembler.py), besides what the host refers to. An owner that does not read its answers is not read either.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from itertools import count
from typing import Final, cast

from headrace.adapters.tcp.arrivals import Arrivals, ServerTls
from headrace.adapters.tcp.replica_protocol import (
    HANDSHAKE_MESSAGE_BYTES_MAX,
    LinkIdentity,
    LinkTimes,
    MessageAssembler,
    Nonce,
    PulseTimer,
    ReplicaHandshake,
)
from headrace.codec.replica_messages import Drop, Entry, Leaving, Open, Pulse, Read, decode_message, encode_message
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError
from headrace.model.log_limits import LogLimit
from headrace.ports.replicas import ReplicaAnswer, ReplicaHost
from headrace.replication.bounds import LINK_WINDOW_BYTES

_log = logging.getLogger(__name__)

LINKS_MAX: Final = 1024
UNPROVED_MAX: Final = 64
UNREAD_ANSWERS_BYTES: Final = 4 << 20
MESSAGES_PER_TURN: Final = 256
"""Of one link, then it waits for the next turn of the loop. Its socket may have megabytes of small entries for a member
that catches up, and the loop would read them all in one turn, which takes most of a second."""

_BACKLOG: Final = 256
_HANDSHAKE_BUFFER_BYTES: Final = 512
_REFUSALS_LOGGED_EVERY_S: Final = 1.0
_TURNS_TO_WRITE: Final = 2
"""uvloop writes at the end of a turn of its loop."""


class ReplicaListener:
    """Serves one host. At most `unproved_max` connections may be in their handshake, each for a second.

    With TLS an owner has a second more, and shows its certificate.
    """

    def __init__(
        self,
        host: ReplicaHost,
        identity: LinkIdentity,
        *,
        times: LinkTimes | None = None,
        tls: ServerTls | None = None,
        nonce: Nonce = secrets.token_bytes,
        links_max: int = LINKS_MAX,
        unproved_max: int = UNPROVED_MAX,
        on_corrupt: Callable[[], object] = lambda: None,
    ) -> None:
        if identity.replica != host.replica:
            raise InvalidRequestError("the identity of the listener must be that of its host's replica")
        self.host = host
        self._on_corrupt = on_corrupt
        self.identity = identity
        self.times = times or LinkTimes()
        self.nonce = nonce
        self._links_max = links_max
        self._unproved_max = unproved_max
        self._timer = PulseTimer(self.times.pulse_s, self._tick)
        self._arrivals = Arrivals(self, tls or ServerTls(), handshake_s=self.times.handshake_s)
        self._unproved: set[_OwnerConnection] = set()
        self._links: dict[ReplicaId, _OwnerConnection] = {}
        self._numbers = count(1)
        self._server: asyncio.Server | None = None
        self._refusals_logged = LogLimit(_REFUSALS_LOGGED_EVERY_S)
        self._is_closed = False

    async def start(self, bound: socket.socket) -> None:
        """Accept connections on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._arrivals.protocol, sock=bound, backlog=_BACKLOG)
        self._timer.start()

    async def close(self) -> None:
        """Accept no more connections, and end the links. The host is told of each."""
        self._is_closed = True
        self._timer.stop()
        if self._server is not None:
            self._server.close()
        self._arrivals.abort_all()
        for connection in list(self._links.values()):
            connection.leave()
        for _ in range(_TURNS_TO_WRITE):
            await asyncio.sleep(0)
        for connection in [*self._unproved, *self._links.values()]:
            connection.abort()
        while self._unproved or self._links:
            await asyncio.sleep(0)
        if self._server is not None:
            await self._server.wait_closed()

    # For the arrivals

    def admit(self, address: str, peer: str) -> bool:
        if self._is_closed:
            return False
        if len(self._unproved) + self._arrivals.under_way >= self._unproved_max:
            self.log_refusal(peer, "too many connections are in their handshake")
            return False
        return True

    def released(self, address: str) -> None:
        """The arrivals count for themselves."""

    def open(self, address: str, peer: str) -> asyncio.BufferedProtocol:
        connection = _OwnerConnection(self, peer)
        self._unproved.add(connection)
        return connection

    # For the connections

    def proved(self, connection: _OwnerConnection, owner: ReplicaId, incarnation: int) -> int:
        """The number of a new link. A process has one link: an earlier one is what is left of a broken connection.

        Raises:
            HeadraceError: there are too many links.
        """
        earlier = self._links.get(owner)
        if earlier is None and len(self._links) >= self._links_max:
            raise InvalidRequestError(f"there are {len(self._links)} links already")
        if earlier is not None:
            earlier.end("the owner has made a new link")
        self._unproved.discard(connection)
        self._links[owner] = connection
        _log.info("event=replica_owner_connected replica=%s incarnation=%d", owner.hex(), incarnation)
        return next(self._numbers)

    def forget(self, connection: _OwnerConnection, owner: ReplicaId | None) -> None:
        self._unproved.discard(connection)
        if owner is not None and self._links.get(owner) is connection:
            del self._links[owner]

    def message_is_corrupt(self, owner: ReplicaId, problem: CorruptError) -> None:
        _log.error("event=replica_message_corrupt replica=%s error=%r", owner.hex(), problem.message)
        self._on_corrupt()

    def log_refusal(self, peer: str, reason: str) -> None:
        """Log at most one refusal a second, however many there are."""
        if self._refusals_logged.allows(asyncio.get_running_loop().time()):
            _log.warning("event=replica_owner_refused peer=%s reason=%r", peer, reason)

    def _tick(self, now_s: float, late_s: float) -> None:
        for connection in list(self._links.values()):
            connection.tick(now_s, late_s)


class _OwnerConnection(asyncio.BufferedProtocol):
    """One socket; `ports.replicas.OwnerLink` once its owner has proved itself."""

    def __init__(self, listener: ReplicaListener, peer: str) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._assembler = MessageAssembler(_HANDSHAKE_BUFFER_BYTES, HANDSHAKE_MESSAGE_BYTES_MAX)
        self._handshake = ReplicaHandshake(listener.identity, LINK_WINDOW_BYTES, listener.nonce)
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._has_answered = False
        self._owner: ReplicaId | None = None
        self._incarnation = 0
        self._number = 0
        self._is_proved = False
        self._is_paused = False
        self._is_stalled = False
        self._is_resting = False
        self._handled = 0
        self._is_reading = True
        self._heard_s = self._drained_s = self._loop.time()
        self._unread_bytes = 0
        self.peer = peer

    # ports.replicas.OwnerLink

    @property
    def number(self) -> int:
        return self._number

    def send(self, message: ReplicaAnswer) -> None:
        if self._transport is not None:
            self._transport.write(encode_message(message))

    def pause(self) -> None:
        self._is_paused = True
        self._read_or_not()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._continue)

    def close(self) -> None:
        self._is_proved = False  # the host is not told
        self.end("the replica has closed it")

    # For the listener

    def end(self, reason: str) -> None:
        """End the link now. The host is told in a later turn."""
        if self._transport is None:
            return
        if self._owner is not None and self._number:
            _log.info("event=replica_owner_lost replica=%s reason=%r", self._owner.hex(), reason)
        else:
            self._listener.log_refusal(self.peer, reason)
        self.abort()

    def leave(self) -> None:
        """Tell the owner that the replica is stopping, if the kernel takes that now."""
        if self._transport is not None and not self._transport.get_write_buffer_size():
            self._transport.write(encode_message(Leaving()))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def tick(self, now_s: float, late_s: float) -> None:
        """Send a pulse, and end the link if the owner is silent or does not take its answers."""
        if self._transport is None:
            return
        self._heard_s = min(now_s, self._heard_s + late_s)
        unread_bytes = self._transport.get_write_buffer_size()
        if unread_bytes < self._unread_bytes or not unread_bytes:
            self._drained_s = now_s
        self._unread_bytes = unread_bytes
        times = self._listener.times
        if self._is_reading and now_s - self._heard_s > times.silence_s:
            self.end(f"nothing was received for {now_s - self._heard_s:.1f} s")
        elif now_s - self._drained_s - late_s > times.stalled_s:
            self.end("the owner does not take its answers")
        elif not unread_bytes:
            self._pulse(now_s, 0)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        self._transport = stream
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.set_write_buffer_limits(high=UNREAD_ANSWERS_BYTES)
        self._handshake_timer = self._loop.call_later(self._listener.times.handshake_s, self._handshake_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(str(exc) if exc else "the owner closed the link")
        self._transport = None
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._listener.forget(self, self._owner)
        if self._is_proved:
            self._is_proved = False
            self._listener.host.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._assembler.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard_s = self._loop.time()
        self._assembler.received(nbytes)
        self._deliver()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_stalled = True
        self._read_or_not()

    def resume_writing(self) -> None:
        self._is_stalled = False
        self._loop.call_soon(self._continue)

    # Receiving

    @property
    def _waits(self) -> bool:
        return self._is_paused or self._is_stalled or self._is_resting

    def _deliver(self) -> None:
        """Handle what has arrived, until the host or the owner wants a pause, or others on the loop have their turn."""
        try:
            while self._transport is not None and not self._waits:
                raw = self._assembler.next_message()
                if raw is None:
                    break
                self._count_message()
                if self._is_proved:
                    self._handle(raw)
                else:
                    self._shake_hands(bytes(raw))
        except HeadraceError as problem:
            if self._is_proved and self._owner is not None and isinstance(problem, CorruptError):
                self._listener.message_is_corrupt(self._owner, problem)
            self.end(str(problem))
        except Exception as problem:  # noqa: BLE001 - after a pause the loop would log it, and never read the link
            _log.exception("event=replica_message_failed peer=%s", self.peer)
            self.end(repr(problem))

    def _count_message(self) -> None:
        self._handled += 1
        if self._handled == MESSAGES_PER_TURN:
            self._handled, self._is_resting = 0, True
            self._read_or_not()
            self._loop.call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        self._continue()

    def _continue(self) -> None:
        if self._transport is not None and not self._waits:
            self._heard_s = self._loop.time()
            self._deliver()
            self._read_or_not()

    def _read_or_not(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        wanted = not self._waits
        if wanted and not self._is_reading:
            self._transport.resume_reading()
        elif self._is_reading and not wanted:
            self._transport.pause_reading()
        self._is_reading = wanted

    def _shake_hands(self, raw: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        if not self._has_answered:
            hello, answer = self._handshake.answer(raw)
            transport.write(answer)
            self._has_answered = True
            self._owner, self._incarnation = hello.own_replica, hello.incarnation
            if hello.wanted_replica != self._listener.identity.replica:
                self._listener.log_refusal(self.peer, "the owner wants another replica, which was here before")
                transport.close()  # after the answer, which says so
            return
        self._handshake.check(raw)
        if self._owner is None:
            raise CorruptError("PROOF came before HELLO")
        self._number = self._listener.proved(self, self._owner, self._incarnation)
        self._is_proved = True
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._assembler.accept_large()
        self._listener.host.connected(self)

    def _handshake_is_late(self) -> None:
        self.end("the handshake took too long")

    def _handle(self, raw: memoryview) -> None:
        message = decode_message(raw)
        match message:
            case Pulse(sent_us, _, ()):
                self._pulse(self._loop.time(), sent_us)
            case Open() | Read() | Pulse() | Drop() | Entry():
                self._listener.host.received(self, message)
            case Leaving():
                self.end("the owner is stopping")
            case _:
                raise CorruptError(f"an owner sent a message of type {message.TYPE}, which only replicas send")

    def _pulse(self, now_s: float, echoed_us: int) -> None:
        if self._transport is not None:
            self._transport.write(encode_message(Pulse(round(now_s * 1e6), echoed_us, ())))
