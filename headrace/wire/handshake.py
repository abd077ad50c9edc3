"""Commands of the connection itself: version exchange and keep-alive."""

from __future__ import annotations

from typing import Final

from headrace.model.errors import CorruptError
from headrace.wire.commands import WireCommand, command
from headrace.wire.fields import I32

WIRE_VERSION = 17
"""The protocol version of this code, which always sends all fields of that version."""

OLDEST_COMPATIBLE_VERSION = 5


@command(-127)
class Hello(WireCommand):
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
class KeepAlive(WireCommand):
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
