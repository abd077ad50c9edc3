"""New connections of a server, until it is known whether they speak TLS and their handshake is done.

One port serves both kinds. The first byte tells them apart: a ClientHello begins with 0x16, and commands of the wire
protocol and of links between stores begin with other bytes. The listener counts a connection before anything of it is
read. A peer has some seconds for its first byte, and as many for a handshake.

A handshake takes half a millisecond of CPU, so only some are continued in a turn of the event loop. The others wait,
and are not read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, cast

from headrace.adapters.tcp.tls_engine import Buffer, TlsEngine
from headrace.model.log_limits import LogLimit
from headrace.model.tls_modes import TlsMode

_log = logging.getLogger(__name__)

FIRST_BYTE_S: Final = 5.0
HANDSHAKE_S: Final = 5.0
HANDSHAKES_PER_TURN: Final = 8
"""Some 4 ms of a turn of the event loop."""
HANDSHAKE_BYTES_MAX: Final = 128 << 10
"""What a peer may send before its handshake is done. A certificate with its chain has a few KiB."""

UNTAKEN_ANSWER_BYTES_MAX: Final = 64 << 10
"""What OpenSSL answers to new keys while the peer takes nothing. An honest one makes a key after gigabytes."""

_MAPPED: Final = "::ffff:"
"""Networks, of which functions have reserved connections and zones have bytes, are written without it."""

_TLS_HANDSHAKE: Final = 0x16
_FIRST_BYTES: Final = 16
"""Enough for Hello. An application protocol always has room for so many."""
_HANDSHAKE_READ_BYTES: Final = 16 << 10
_SCRATCH_BYTES: Final = 256 << 10
_RECORD_OVERHEAD_SHARE: Final = 512
_RECORD_OVERHEAD_BYTES: Final = 64
"""A record of 16 KiB has 22 bytes more than its plaintext."""


class Failure(StrEnum):
    """Why a connection did not get to its first command. These are labels of a metric."""

    SILENT = "silent"
    """No first byte came in time."""
    PLAINTEXT = "plaintext"
    """TLS is required."""
    TLS_IS_OFF = "tls_is_off"
    NO_CERTIFICATE = "no_certificate"
    """This process has none yet: it could not be read."""
    SLOW = "slow"
    """The handshake was not complete in time."""
    GONE = "gone"
    """The peer has closed the connection during the handshake."""
    VERSION = "version"
    """The peer offers no version of TLS that is accepted."""
    REFUSED_BY_PEER = "refused_by_peer"
    """The peer does not trust the certificate of this process, or its name is another one."""
    PEER_CERTIFICATE = "peer_certificate"
    """The certificate of the peer is missing, or it is not trusted, or its name may not connect."""
    INVALID = "invalid"
    """What the peer sent is not a handshake, or there is no cipher that both know."""


ContextSource = Callable[[], ssl.SSLContext | None]
"""The context for the next handshake, which may be another one each time; None while there is no certificate."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """`allows` says whether a peer with these names in its certificate may connect, if the context asks for one."""

    mode: TlsMode = TlsMode.OFF
    context: ContextSource = lambda: None
    allows: Callable[[Sequence[str]], bool] | None = None


class Reception(Protocol):
    """The listener that the connections are for."""

    def admit(self, address: str, peer: str) -> bool:
        """Count a connection that was accepted. False: it is refused, and not counted."""
        ...

    def released(self, address: str) -> None:
        """A connection that was admitted has ended before `open`."""
        ...

    def open(self, address: str, peer: str) -> asyncio.BufferedProtocol:
        """The protocol of a connection, whose bytes are commands from now on. It sees the end of the connection."""
        ...


class Arrivals:
    """Makes the protocols of new connections. `failures` counts those that do not get to their first command.

    `on_plaintext` is called for each connection without TLS that is opened. `handshake_s` None: HANDSHAKE_S. It is
    also the longest time for the first byte.
    """

    def __init__(
        self,
        reception: Reception,
        tls: ServerTls,
        *,
        handshake_s: float | None = None,
        failures: Counter[str] | None = None,
        on_plaintext: Callable[[], object] = lambda: None,
    ) -> None:
        self.reception = reception
        self.tls = tls
        self.failures: Counter[str] = Counter() if failures is None else failures
        self.handshake_s = HANDSHAKE_S if handshake_s is None else handshake_s
        self.first_byte_s = min(FIRST_BYTE_S, self.handshake_s)
        self.on_plaintext = on_plaintext
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        """What was received is copied before another connection receives."""
        self._under_way: set[_Arrival] = set()
        self._ready: deque[_Arrival] = deque()
        self._failures_logged = LogLimit()
        self._ends_logged = LogLimit()
        self._ended = 0

    def protocol(self) -> asyncio.BufferedProtocol:
        """For `create_server`."""
        return _Arrival(self)

    @property
    def under_way(self) -> int:
        """Connections that are admitted and not open."""
        return len(self._under_way)

    def abort_all(self) -> None:
        """End the connections that are not open."""
        for arrival in list(self._under_way):
            arrival.abort()

    # For the connections

    def begins(self, arrival: _Arrival) -> None:
        self._under_way.add(arrival)

    def ends(self, arrival: _Arrival) -> None:
        self._under_way.discard(arrival)

    def failed(self, failure: Failure, peer: str, detail: str = "") -> None:
        """Count a connection that gets no further, and log it unless another one was logged just before."""
        self.failures[failure] += 1
        if self._failures_logged.allows(asyncio.get_running_loop().time(), failure):
            count = self.failures[failure]
            _log.warning(
                "event=handshake_failed peer=%s reason=%r failed=%d detail=%r", peer, str(failure), count, detail
            )

    def tls_ended(self, peer: str, detail: str) -> None:
        """Count an open connection whose peer broke its TLS, and log it unless another one was logged just before."""
        self._ended += 1
        if self._ends_logged.allows(asyncio.get_running_loop().time()):
            _log.warning("event=tls_ended peer=%s ended=%d detail=%r", peer, self._ended, detail)

    def continue_soon(self, arrival: _Arrival) -> None:
        """Continue a handshake in one of the next turns."""
        self._ready.append(arrival)
        if len(self._ready) == 1:
            asyncio.get_running_loop().call_soon(self._continue_some)

    def _continue_some(self) -> None:
        try:
            for _ in range(min(HANDSHAKES_PER_TURN, len(self._ready))):
                self._ready.popleft().continue_handshake()
        finally:  # a defect in one connection must not leave the others waiting
            if self._ready:
                asyncio.get_running_loop().call_soon(self._continue_some)


def _address_of(host: str) -> str:
    """The address of a peer. On a socket for both versions of IP that of an IPv4 peer is as ::ffff:10.0.0.1."""
    rest = host.removeprefix(_MAPPED)
    return rest if "." in rest else host


class _Arrival(asyncio.BufferedProtocol):
    """One connection until it is open. Then its transport has another protocol, or it decrypts for one."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._engine: TlsEngine | None = None
        self._received_bytes = 0
        self._waits_for_turn = False
        self._address, self._peer = "", "unknown"
        self._opened: TlsTransport | None = None
        self._protocol: asyncio.BufferedProtocol | None = None

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        if peer := transport.get_extra_info("peername"):
            self._address = _address_of(peer[0])
            self._peer = f"{self._address}:{peer[1]}"
        if not self._arrivals.reception.admit(self._address, self._peer):
            stream.abort()
            return
        self._transport = stream
        self._arrivals.begins(self)
        self._timer = self._loop.call_later(self._arrivals.first_byte_s, self._fail, Failure.SILENT)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        elif self._transport is not None:
            if self._received_bytes:  # a port scan or a health check says nothing
                self._arrivals.failed(Failure.GONE, self._peer)
            self._leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        scratch = self._arrivals.scratch
        if self._protocol is not None:
            room = len(cast(memoryview, self._protocol.get_buffer(sizehint)))
            return scratch[: room + room // _RECORD_OVERHEAD_SHARE + _RECORD_OVERHEAD_BYTES]
        return scratch[: _FIRST_BYTES if self._engine is None else _HANDSHAKE_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        received = self._arrivals.scratch[:nbytes]
        if self._opened is not None:
            self._opened.received(received)
        elif self._transport is not None:
            self._received_bytes += nbytes
            if self._engine is None:
                self._begin(received)
            else:
                self._shake_hands(received)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    # For `Arrivals`

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._leave()

    def continue_handshake(self) -> None:
        """Take the next step with what was received."""
        self._waits_for_turn = False
        transport, engine = self._transport, self._engine
        if transport is None or engine is None or transport.is_closing():
            return
        try:
            is_complete = engine.shake_hands()
        except ssl.SSLError as error:
            transport.write(engine.take_output())  # the alert
            self._fail(_failure_of(error), _detail(error))
            return
        if output := engine.take_output():
            transport.write(output)
        if is_complete and self._peer_is_allowed(engine):
            self._open_tls(transport, engine)
        elif not is_complete:
            transport.resume_reading()

    # Inside

    def _begin(self, received: memoryview) -> None:
        """Decide by the first byte."""
        arrivals, mode = self._arrivals, self._arrivals.tls.mode
        if received[0] != _TLS_HANDSHAKE:
            if mode.accepts_plaintext:
                arrivals.on_plaintext()
                self._open_plaintext(bytes(received))
            else:
                self._fail(Failure.PLAINTEXT)
            return
        context = arrivals.tls.context() if mode.accepts_tls else None
        if context is None:
            self._fail(Failure.NO_CERTIFICATE if mode.accepts_tls else Failure.TLS_IS_OFF)
            return
        self._engine = TlsEngine(context)
        self._restart_timer(arrivals.handshake_s, Failure.SLOW)
        self._shake_hands(received)

    def _shake_hands(self, received: memoryview) -> None:
        assert self._engine is not None, "made with the first byte"
        assert self._transport is not None, "there until the end"
        if self._received_bytes > HANDSHAKE_BYTES_MAX:
            self._fail(Failure.INVALID, "the handshake is too long")
            return
        self._engine.feed(received)
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._transport.pause_reading()
            self._arrivals.continue_soon(self)

    def _peer_is_allowed(self, engine: TlsEngine) -> bool:
        allows = self._arrivals.tls.allows
        if allows is None:
            return True
        names = engine.peer_names()
        if allows(names):
            return True
        self._fail(Failure.PEER_CERTIFICATE, f"{', '.join(names)} may not connect")
        return False

    def _open_plaintext(self, received: bytes) -> None:
        transport = self._transport
        assert transport is not None, "called with received bytes"
        protocol = self._open()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            buffer = cast(memoryview, protocol.get_buffer(len(received)))
            buffer[: len(received)] = received
            protocol.buffer_updated(len(received))

    def _open_tls(self, transport: asyncio.Transport, engine: TlsEngine) -> None:
        protocol = self._open()
        self._protocol = protocol
        self._opened = TlsTransport(transport, engine, protocol, self._tls_ended)
        protocol.connection_made(self._opened)
        self._opened.received(memoryview(b""))  # what came together with the end of the handshake

    def _tls_ended(self, detail: str) -> None:
        self._arrivals.tls_ended(self._peer, detail)

    def _open(self) -> asyncio.BufferedProtocol:
        """The connection belongs to its protocol from now on."""
        assert self._timer is not None, "set when the connection was made"
        try:
            protocol = self._arrivals.reception.open(self._address, self._peer)
        except BaseException:
            self.abort()
            raise
        self._timer.cancel()
        self._transport = None
        self._arrivals.ends(self)
        return protocol

    def _restart_timer(self, after_s: float, failure: Failure) -> None:
        assert self._timer is not None, "set when the connection was made"
        self._timer.cancel()
        self._timer = self._loop.call_later(after_s, self._fail, failure)

    def _fail(self, failure: Failure, detail: str = "") -> None:
        if self._transport is not None:
            self._arrivals.failed(failure, self._peer, detail)
            self._transport.close()  # an alert may wait
            self._leave()

    def _leave(self) -> None:
        """The connection has ended before it was open."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._arrivals.ends(self)
        self._arrivals.reception.released(self._address)


class TlsTransport(asyncio.Transport):
    """The plaintext side of a connection. Limits and waiting bytes are those of the ciphertext in the transport below.

    So a protocol that was not told to pause knows that the peer's kernel has everything, as it does without TLS. The
    transport below, which is paused at first, is read only while nothing waits that was received before. So no more
    waits than one read and a part of a record of anything that a peer sends, and the end of a connection comes last.
    `on_broken` gets the reason when the peer breaks its TLS, and the connection ends.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        engine: TlsEngine,
        protocol: asyncio.BufferedProtocol,
        on_broken: Callable[[str], object],
    ) -> None:
        super().__init__()
        self._transport = transport
        self._engine = engine
        self._protocol = protocol
        self._on_broken = on_broken
        self._is_paused = False
        self._rests = False
        self._reads_below = False
        self._answer_bytes = 0

    def received(self, ciphertext: memoryview) -> None:
        """Decrypt for the protocol, until nothing is left or the protocol pauses."""
        try:
            self._engine.feed(ciphertext)
            self._deliver()
        except ssl.SSLError as error:
            self._end(_detail(error))
        except BaseException:  # the loop ends a connection for that only if it has received the bytes just now
            self._transport.abort()
            raise

    def _deliver(self) -> None:
        engine, protocol = self._engine, self._protocol
        while not (self._is_paused or self._rests or self._transport.is_closing()):
            target = cast(memoryview, protocol.get_buffer(-1))
            count = engine.read_into(target)
            if output := engine.take_output():  # an answer to a new key of the peer
                self._answer(output)
            if count:
                protocol.buffer_updated(count)
            if engine.has_ended:
                self._transport.close()
            elif engine.has_more:
                self._rest()
            elif count < len(target):
                self._read_below(wanted=not self._is_paused)
                return

    def _answer(self, output: bytes) -> None:
        """Send what the peer has OpenSSL answer. The protocol does not count it, so it is bounded here."""
        if not self._transport.get_write_buffer_size():
            self._answer_bytes = 0
        self._answer_bytes += len(output)
        if self._answer_bytes > UNTAKEN_ANSWER_BYTES_MAX:
            self._end("the peer does not take the answers to its new keys")
        else:
            self._transport.write(output)

    def _rest(self) -> None:
        """Leave the rest to the next turn of the event loop, so that other connections get theirs."""
        self._rests = True
        self._read_below(wanted=False)
        asyncio.get_running_loop().call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._rests = False
        self._continue()

    def _continue(self) -> None:
        if not (self._is_paused or self._rests or self._transport.is_closing()):
            self.received(memoryview(b""))

    def _read_below(self, *, wanted: bool) -> None:
        if wanted != self._reads_below and not self._transport.is_closing():
            self._reads_below = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _end(self, detail: str) -> None:
        self._on_broken(detail)
        self._transport.abort()

    # asyncio.Transport

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._transport.is_closing():
            return
        parts: Iterable[Buffer] = list_of_data
        try:
            for output in self._engine.encrypted(parts):
                self._transport.write(output)
                if self._transport.is_closing():  # it could not be written
                    return
        except ssl.SSLError as error:
            self._end(_detail(error))

    def pause_reading(self) -> None:
        self._is_paused = True
        self._read_below(wanted=False)

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            # As without TLS, what the protocol itself has scheduled comes before further bytes.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._continue)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._engine.close()
            self._transport.write(self._engine.take_output())
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def is_reading(self) -> bool:
        return not self._is_paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


_FAILURES: Final = {
    "UNSUPPORTED_PROTOCOL": Failure.VERSION,
    "VERSION_TOO_LOW": Failure.VERSION,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": Failure.PEER_CERTIFICATE,
}


def _failure_of(error: ssl.SSLError) -> Failure:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure.PEER_CERTIFICATE
    if "ALERT" in reason:
        return Failure.REFUSED_BY_PEER
    return _FAILURES.get(reason, Failure.INVALID)


def _detail(error: ssl.SSLError) -> str:
    """OpenSSL's words, which hold no bytes of the connection."""
    verification = getattr(error, "verify_message", "")
    return f"{error.reason or type(error).__name__}{f': {verification}' if verification else ''}"
