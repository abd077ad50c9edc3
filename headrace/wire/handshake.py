"""Commands of the connection itself: version exchange and keep-alive."""

from __future__ import annotations

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


@command(100)
class KeepAlive(WireCommand):
    """The server echoes it. A body is ignored."""
