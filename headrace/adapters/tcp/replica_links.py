"""`ports.replicas.ReplicaLinks` over TCP: the owner's end of the links between replicas.

The sockets are raw and non-blocking: a transport of asyncio or uvloop would copy payloads and hide how much waits. An
OPEN dials; nothing else does. Everything that is sent in one turn of the loop goes out with one `sendmsg`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from headrace.adapters.tcp.arrivals import ContextSource
from headrace.adapters.tcp.link_sockets import (
    WOULD_BLOCK,
    EncryptedSends,
    connected_socket,
    encrypted_socket,
    receive,
    send_all,
    undelivered_bytes,
)
from headrace.adapters.tcp.replica_protocol import (
    HELLO_OK_BYTES,
    LinkIdentity,
    LinkTimes,
    MessageAssembler,
    Nonce,
    OwnerHandshake,
    PulseTimer,
)
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordHeader, encode_record_header
from headrace.codec.replica_messages import (
    MESSAGE_HEADER,
    Ack,
    Entries,
    Entry,
    HelloOk,
    Leaving,
    Nack,
    Open,
    Opened,
    Pulse,
    decode_message,
    encode_message,
)
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import CorruptError, IllegalStateError, UnavailableError
from headrace.model.replica_placement import ReplicaAddress
from headrace.model.tls_modes import TlsMode
from headrace.ports.replicas import OwnerMessage, ReplicaAnswer, ReplicaEvents
from headrace.wire.tls import StoreTls

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What waits to be sent over a link between replicas: entries as views of the caller's memory, the rest as bytes.

COPY_BELOW_BYTES: Final = 16 << 10
"""Smaller entries are joined: a system call with many small parts costs more than copying them."""

PARTS_MAX: Final = 1024
"""Parts of one `sendmsg` (IOV_MAX)."""


class SendingSocket(Protocol):
    """A non-blocking socket."""

    def sendmsg(self, buffers: list[memoryview], /) -> int: ...


class SendQueue:
    """Bytes in order. `waiting_bytes` were not handed to the kernel yet."""

    def __init__(self, sock: SendingSocket) -> None:
        self._sock = sock
        self._small: list[Buffer] = []
        self._views: deque[memoryview] = deque()
        self._owned = 0  # so many of the first views are of memory that no caller changes
        self.waiting_bytes = 0
        self.copied_bytes = 0

    def put(self, message: bytes) -> None:
        """Queue an encoded message."""
        self._small.append(message)
        self.waiting_bytes += len(message)

    def put_entry(self, header: RecordHeader, parts: Sequence[Buffer]) -> None:
        """Queue an ENTRY. Its parts must not change until they were sent, or until `detach`."""
        body_bytes = RECORD_HEADER_BYTES + header.length
        self.put(MESSAGE_HEADER.pack(Entry.TYPE, 0, 0, body_bytes) + encode_record_header(header))
        self.waiting_bytes += header.length
        if header.length < COPY_BELOW_BYTES:
            self._small.extend(parts)
            return
        self._seal()
        self._views.extend(_as_bytes(part) for part in parts)

    def flush(self) -> bool:
        """Hand as much as possible to the kernel; return whether nothing waits.

        Raises:
            OSError: the link is broken.
        """
        self._seal()
        views = self._views
        while views:
            try:
                sent = self._sock.sendmsg(list(islice(views, PARTS_MAX)))
            except (BlockingIOError, InterruptedError):
                return False
            self.waiting_bytes -= sent
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
                self._owned = max(0, self._owned - 1)
            if sent:
                views[0] = views[0][sent:]
        return True

    def detach(self) -> None:
        """Copy what still waits and was not copied before."""
        self._seal()
        if len(self._views) == self._owned:
            return
        rest = [self._views.pop() for _ in range(len(self._views) - self._owned)]
        copy = b"".join(reversed(rest))
        self.copied_bytes += len(copy)
        self._views.append(memoryview(copy))
        self._owned += 1

    def _seal(self) -> None:
        if self._small:
            self._views.append(memoryview(b"".join(self._small)))
            self._small = []


def _as_bytes(part: Buffer) -> memoryview:
    view = memoryview(part)
    return view if view.itemsize == 1 and view.ndim == 1 else view.cast("B")


_log = logging.getLogger(__name__)

AddressOf = Callable[[ReplicaId], ReplicaAddress | None]
"""The address of a replica's listener; None if it is not known. Raises a HeadraceError if it must not be dialed."""


@dataclass(frozen=True, slots=True)
class LinkTls:
    """`context` returns the one for the next link, None while there is no certificate."""

    mode: TlsMode = TlsMode.OFF
    context: ContextSource = lambda: None


_ANSWER_CHUNK_BYTES: Final = 64 << 10


@dataclass(slots=True)
class _Peer:
    """What is known of one replica. `opens` wait for the dial, the newest of each container.

    `redial_s` is how long the next dial waits.
    """

    heard_s: float
    opened_s: float
    link: _Link | None = None
    dial: asyncio.Task[None] | None = None
    redial_s: float = 0.0
    opens: dict[int, Open] = field(default_factory=dict)
    failure_was_logged: bool = False


class TcpReplicaLinks:
    """`identity` is that of this process. `address_of` is asked for each dial. `tls` None: it is off.

    `on_batch` is told the bytes that a link sends in one turn of the loop. `on_sent` is told the zone of a replica and
    the bytes that the kernel has taken. `on_corrupt` is called for each link that
    ends because a message could not be decoded.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        address_of: AddressOf,
        *,
        times: LinkTimes | None = None,
        tls: LinkTls | None = None,
        nonce: Nonce = secrets.token_bytes,
        on_batch: Callable[[int], object] = lambda _count: None,
        on_sent: Callable[[str, int], object] = lambda _zone, _count: None,
        on_corrupt: Callable[[], object] = lambda: None,
    ) -> None:
        self.on_batch = on_batch
        self.on_sent = on_sent
        self._on_corrupt = on_corrupt
        self._identity = identity
        self._address_of = address_of
        self._times = times or LinkTimes()
        self._tls = tls or LinkTls()
        self._nonce = nonce
        self._timer = PulseTimer(self._times.pulse_s, self._tick)
        self._peers: dict[ReplicaId, _Peer] = {}
        self._events: ReplicaEvents | None = None
        self._is_closed = False

    @property
    def events(self) -> ReplicaEvents:
        """Raises IllegalStateError if the links were not started."""
        if self._events is None:
            raise IllegalStateError("the links were not started: call `start` first")
        return self._events

    def start(self, events: ReplicaEvents) -> None:
        self._events = events

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None:
        if self._is_closed:
            return
        peer = self._peers.get(replica)
        if isinstance(message, Open):
            now_s = asyncio.get_running_loop().time()
            if peer is None:
                peer = self._peers[replica] = _Peer(heard_s=now_s, opened_s=now_s)
                self._timer.start()
            peer.opened_s = now_s
            if peer.link is None:
                self._dial(replica, peer, message)
        if peer is not None and peer.link is not None:
            peer.link.put(encode_message(message))

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Buffer]) -> int:
        peer = self._peers.get(replica)
        if peer is None or peer.link is None:
            return 0
        return peer.link.put_entry(header, parts)

    def detach(self) -> None:
        for peer in self._peers.values():
            if peer.link is not None:
                peer.link.detach()

    def is_up(self, replica: ReplicaId) -> bool:
        peer = self._peers.get(replica)
        return peer is not None and peer.link is not None

    def silent_s(self, replica: ReplicaId) -> float | None:
        peer = self._peers.get(replica)
        now_s = asyncio.get_running_loop().time()
        return None if peer is None else max(0.0, now_s - peer.heard_s - self._timer.late_s(now_s))

    def round_trips(self) -> dict[ReplicaId, float | None]:
        """The links that are up, as `round_trip_s`."""
        return {replica: peer.link.round_trip_s for replica, peer in self._peers.items() if peer.link is not None}

    def round_trip_s(self, replica: ReplicaId) -> float | None:
        """The time of the last pulse to a replica and back; None before the first one."""
        peer = self._peers.get(replica)
        return None if peer is None or peer.link is None else peer.link.round_trip_s

    async def close(self) -> None:
        self._is_closed = True
        self._timer.stop()
        dials = [peer.dial for peer in self._peers.values() if peer.dial is not None]
        for dial in dials:
            dial.cancel()
        for peer in list(self._peers.values()):
            if peer.link is not None:
                peer.link.leave()
        await asyncio.gather(*dials, return_exceptions=True)
        self._peers.clear()

    # For the links

    def heard(self, replica: ReplicaId) -> None:
        self._peers[replica].heard_s = asyncio.get_running_loop().time()

    def message_is_corrupt(self, replica: ReplicaId, problem: CorruptError) -> None:
        _log.error("event=replica_message_corrupt replica=%s error=%r", replica.hex(), problem.message)
        self._on_corrupt()

    def link_ended(self, replica: ReplicaId, reason: str) -> None:
        self._peers[replica].link = None
        _log.info("event=replica_link_lost replica=%s reason=%r", replica.hex(), reason)
        self._tell_lost(replica)

    # Dialing

    def _dial(self, replica: ReplicaId, peer: _Peer, message: Open) -> None:
        peer.opens[message.container] = message
        if peer.dial is None:
            peer.dial = asyncio.get_running_loop().create_task(self._connect(replica, peer))

    async def _connect(self, replica: ReplicaId, peer: _Peer) -> None:
        sock: socket.socket | None = None
        address: ReplicaAddress | None = None
        try:
            await asyncio.sleep(peer.redial_s)
            address = self._address_of(replica)
            if address is None:
                raise UnavailableError("the address of the replica is not known yet")
            tls = self._tls_to(address)
            async with asyncio.timeout(self._times.dial_s):
                sock = await connected_socket(address.host, address.port)
            if tls is not None:
                async with asyncio.timeout(self._times.handshake_s):
                    sock = await encrypted_socket(sock, tls)
            async with asyncio.timeout(self._times.handshake_s):
                answer = await self._shake_hands(sock, replica)
        except Exception as problem:  # noqa: BLE001 - a bad host name is a UnicodeError; else it is never dialed again
            if sock is not None:
                sock.close()
            self._dial_failed(replica, peer, address, problem)
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        else:
            self._connected(replica, peer, sock, answer, address.zone)

    def _tls_to(self, address: ReplicaAddress) -> StoreTls | None:
        """How to encrypt a link; None: not at all."""
        tls = self._tls
        context = tls.context() if tls.mode.accepts_tls and address.tls_name else None
        if context is not None:
            return StoreTls(context, address.tls_name)
        if tls.mode.accepts_plaintext:
            return None
        raise UnavailableError(
            "TLS is required, but the store of the replica announces no certificate: set HEADRACE_TLS to permissive "
            "until every store has one"
        )

    async def _shake_hands(self, sock: socket.socket, replica: ReplicaId) -> HelloOk:
        handshake = OwnerHandshake(self._identity, replica, self._nonce)
        await send_all(sock, handshake.hello)
        received = b""
        while len(received) < HELLO_OK_BYTES:
            some = await receive(sock, HELLO_OK_BYTES - len(received))
            if not some:
                raise EOFError("the replica closed the connection instead of answering HELLO")
            received += some
        answer, proof = handshake.proof(received)
        if answer.replica == replica:
            await send_all(sock, proof)
        return answer

    def _connected(self, replica: ReplicaId, peer: _Peer, sock: socket.socket, answer: HelloOk, zone: str) -> None:
        opens, peer.opens, peer.dial = peer.opens, {}, None
        if answer.replica != replica:
            sock.close()
            if not peer.failure_was_logged:
                peer.failure_was_logged = True
                _log.warning("event=replica_replaced replica=%s by=%s", replica.hex(), answer.replica.hex())
            self.events.other_replica(replica)
            return
        peer.failure_was_logged, peer.redial_s = False, 0.0
        peer.link = _Link(self, replica, sock, zone)
        self.heard(replica)
        _log.info("event=replica_link_up replica=%s incarnation=%d", replica.hex(), answer.incarnation)
        for message in opens.values():
            peer.link.put(encode_message(message))

    def _dial_failed(self, replica: ReplicaId, peer: _Peer, address: ReplicaAddress | None, problem: Exception) -> None:
        peer.opens, peer.dial = {}, None
        peer.redial_s = min(max(2 * peer.redial_s, self._times.redial_first_s), self._times.redial_max_s)
        if not peer.failure_was_logged:  # it is dialed again and again
            peer.failure_was_logged = True
            reason = str(problem) or type(problem).__name__
            _log.warning(
                "event=replica_unreachable replica=%s peer_store=%s peer=%s zone=%s reason=%r",
                replica.hex(),
                address.store_id if address else "unknown",
                f"{address.host}:{address.port}" if address else "unknown",
                address.zone if address else "unknown",
                reason,
            )
        self._tell_lost(replica)

    def _tell_lost(self, replica: ReplicaId) -> None:
        def tell() -> None:
            if not self._is_closed:
                self.events.link_lost(replica)

        asyncio.get_running_loop().call_soon(tell)

    # Pulses

    def _tick(self, now_s: float, late_s: float) -> None:
        for replica, peer in list(self._peers.items()):
            peer.heard_s = min(now_s, peer.heard_s + late_s)
            if peer.link is not None:
                if now_s - peer.heard_s > self._times.silence_s:
                    peer.link.end(f"nothing was received for {now_s - peer.heard_s:.1f} s")
                else:
                    peer.link.pulse()
            elif peer.dial is None and now_s - peer.opened_s > self._times.forgotten_s:
                del self._peers[replica]
        if not self._peers:
            self._timer.stop()


class _Link:
    """The socket to one replica that has proved itself."""

    def __init__(self, links: TcpReplicaLinks, replica: ReplicaId, sock: socket.socket, zone: str) -> None:
        self._links = links
        self._zone = zone
        self._replica = replica
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._queue = SendQueue(EncryptedSends(sock) if isinstance(sock, ssl.SSLSocket) else sock)
        self._assembler = MessageAssembler(_ANSWER_CHUNK_BYTES)
        self._flush_is_scheduled = False
        self._is_blocked = False
        self._is_open = True
        self._peer_sent_us = 0
        self.round_trip_s: float | None = None
        self._loop.add_reader(sock, self._readable)

    def put(self, message: bytes) -> None:
        self._queue.put(message)
        self._flush_soon()

    def put_entry(self, header: RecordHeader, parts: Sequence[Buffer]) -> int:
        self._queue.put_entry(header, parts)
        self._flush_soon()
        return self._queue.waiting_bytes

    def detach(self) -> None:
        """Send what the kernel takes, and copy the rest."""
        if not self._is_blocked:
            self._flush()
        self._queue.detach()

    def pulse(self) -> None:
        self.put(encode_message(Pulse(_now_us(), self._peer_sent_us, ())))
        self._peer_sent_us = 0

    def leave(self) -> None:
        """End the link, and tell the replica if the kernel takes that."""
        self._queue.put(encode_message(Leaving()))
        with suppress(OSError):
            self._queue.flush()
        self._close_socket()

    def end(self, reason: str) -> None:
        """End the link. The events are told in a later turn."""
        if self._is_open:
            self._close_socket()
            self._links.link_ended(self._replica, reason)

    def _close_socket(self) -> None:
        self._is_open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()

    def _flush_soon(self) -> None:
        if not self._flush_is_scheduled and not self._is_blocked:
            self._flush_is_scheduled = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_is_scheduled = False
        if self._queue.waiting_bytes:
            self._links.on_batch(self._queue.waiting_bytes)
        self._flush()

    def _flush(self) -> None:
        if not self._is_open:
            return
        waiting_bytes = self._queue.waiting_bytes
        try:
            is_empty = self._queue.flush()
        except OSError as problem:
            self.end(str(problem))
            return
        self._links.on_sent(self._zone, waiting_bytes - self._queue.waiting_bytes)
        if is_empty == self._is_blocked:
            self._is_blocked = not is_empty
            if is_empty:
                self._loop.remove_writer(self._sock)
            else:
                self._loop.add_writer(self._sock, self._flush)

    def _readable(self) -> None:
        self._receive()
        while self._is_open and undelivered_bytes(self._sock):
            self._receive()

    def _receive(self) -> None:
        try:
            count = self._sock.recv_into(self._assembler.writable())
        except WOULD_BLOCK:
            return
        except OSError as problem:
            self.end(str(problem))
            return
        if not count:
            self.end("the replica closed the link")
            return
        self._links.heard(self._replica)
        self._assembler.received(count)
        try:
            while self._is_open and (raw := self._assembler.next_message()) is not None:
                self._handle(raw)
        except CorruptError as problem:
            self._links.message_is_corrupt(self._replica, problem)
            self.end(str(problem))
        except Exception as problem:  # noqa: BLE001 - the answer is lost, so the link is
            _log.exception("event=replica_answer_failed replica=%s", self._replica.hex())
            self.end(repr(problem))

    def _handle(self, raw: memoryview) -> None:
        message = decode_message(raw)
        match message:
            case Opened() | Ack() | Nack() | Entries():
                answer: ReplicaAnswer = message
                self._links.events.received(self._replica, answer)
            case Pulse(sent_us, echoed_us, ()):
                self._peer_sent_us = sent_us
                if echoed_us:
                    self.round_trip_s = max(0, _now_us() - echoed_us) / 1e6
            case Leaving():
                self.end("the replica is stopping")
            case _:
                raise CorruptError(f"a replica sent a message of type {message.TYPE}, which only owners send")


def _now_us() -> int:
    """The time of uvloop's loop has a resolution of a millisecond, which is more than a round trip takes."""
    return time.monotonic_ns() // 1000
