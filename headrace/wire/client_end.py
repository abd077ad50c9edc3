"""The client's end of a connection, without I/O: handshake, request ids, keep-alive, and the error for a lost store.

The asyncio and the blocking connection in `headrace/wire/connections/` share it. They move the bytes and keep the time.

A request id is `flow << 32 | sequence`, as in Pravega's Java client. A reply echoes the id, and its upper half names
the flow, which is one of the conversations that share a connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.model.errors import CorruptError, UnavailableError
from headrace.wire.fields import I32, WireCommand, command
from headrace.wire.framing import FrameReceiver, decode

# Commands of the connection itself: version exchange and keep-alive.

WIRE_VERSION = 17
"""The protocol version of this code, which always sends all fields of that version."""

OLDEST_COMPATIBLE_VERSION = 5


@command(-127)
class Hello(WireCommand, frozen=True):
    """Both sides send the highest and the lowest version that they support."""

    high_version: I32
    low_version: I32

    @property
    def is_compatible(self) -> bool:
        """Whether the sender supports a version that this code supports."""
        reaches = self.low_version <= WIRE_VERSION and self.high_version >= OLDEST_COMPATIBLE_VERSION
        return reaches and self.low_version <= self.high_version


OWN_HELLO: Final = Hello(WIRE_VERSION, OLDEST_COMPATIBLE_VERSION)


@command(100)
class KeepAlive(WireCommand, frozen=True):
    """The server echoes it. A body is ignored."""


def check_hello(reply: WireCommand, peer: str) -> None:
    """Raise CorruptError unless `reply`, the first command of a segment store, is a compatible Hello."""
    if not isinstance(reply, Hello):
        raise CorruptError(f"{peer} answered Hello with {type(reply).__name__}: is this a segment store?")
    if not reply.is_compatible:
        raise CorruptError(
            f"{peer} speaks wire protocol versions {reply.low_version} to {reply.high_version}, "
            f"we speak {OLDEST_COMPATIBLE_VERSION} to {WIRE_VERSION}: upgrade the older side"
        )


CONNECT_TIMEOUT_S: Final = 5.0
"""The time in which a store must accept a connection. It has the same time for its Hello."""

SILENT_PERIODS_MAX: Final = 10
"""A connection that has received nothing in this many keep-alive periods is lost: no keep-alive was echoed.

It must not be soon: a store whose memory is full reads nothing for a while, and would lose all its connections.
"""

_FLOW_BITS: Final = 32
_SEQUENCE_MASK: Final = (1 << _FLOW_BITS) - 1


class RequestIds:
    """The ids of the requests of one flow."""

    __slots__ = ("_sequence", "number")

    def __init__(self, number: int = 0) -> None:
        """`number` is that of the flow. A connection with a single flow uses 0."""
        self.number = number
        self._sequence = 0

    def next_id(self) -> int:
        self._sequence = (self._sequence + 1) & _SEQUENCE_MASK
        return self.number << _FLOW_BITS | self._sequence


def request_id_of(reply: WireCommand) -> int:
    """Return the id of the request that is answered; 0, which no request has, for a command without an id."""
    request_id: int = getattr(reply, "request_id", 0)
    return request_id


def flow_of(reply: WireCommand) -> int:
    """Return the number of the flow to which a reply belongs; 0 for a command without an id."""
    request_id: int = getattr(reply, "request_id", 0)
    return request_id >> _FLOW_BITS


class ClientEnd:
    """What the client has received from one segment store. Receive into `writable()`, then call `received(n)`."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._receiver = FrameReceiver()
        self.writable = self._receiver.writable
        self._greeted = False
        self._heard = True
        self._silent_periods = 0

    def received(self, count: int) -> Iterator[WireCommand]:
        """Yield the commands that `count` new bytes complete, except echoed keep-alives. The first one is a Hello.

        Raises:
            WireFormatError: the bytes are not frames of the protocol.
            CorruptError: the peer does not answer Hello with a compatible Hello.
        """
        self._heard = True
        for type_code, payload in self._receiver.received(count):
            command = decode(type_code, payload)
            if isinstance(command, KeepAlive):
                continue
            if not self._greeted:
                check_hello(command, f"{self.host}:{self.port}")
                self._greeted = True
            yield command

    def keep_alive_is_due(self) -> bool:
        """End a keep-alive period. Return whether it was silent, so that a keep-alive must be sent.

        Raises:
            UnavailableError: SILENT_PERIODS_MAX periods were silent.
        """
        silent = not self._heard
        self._silent_periods = self._silent_periods + 1 if silent else 0
        if self._silent_periods >= SILENT_PERIODS_MAX:
            raise self.unavailable("has stopped answering")
        self._heard = False
        return silent

    @property
    def is_silent(self) -> bool:
        """Whether a keep-alive was not echoed for a whole period."""
        return self._silent_periods > 1

    def unavailable(self, problem: str) -> UnavailableError:
        """Return the error for a store that does not answer. `problem` completes the sentence "segment store X ..."."""
        return UnavailableError(
            f"segment store {self.host}:{self.port} {problem}", details={"host": self.host, "port": self.port}
        )
