"""What the parts of a connection expect of each other: the socket of a session, and the handlers of its assembler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace import wire
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.connections.append_frames import AppendFrame
from headrace.segmentstore.connections.received_bytes import ReceivedBytes


class Channel(Protocol):
    """The socket of a session.

    It calls `Session.writing_paused` when sent bytes begin to wait in it, and `writing_resumed` when none waits.
    """

    def send(self, parts: Sequence[wire.Buffer]) -> None: ...

    def pause_receiving(self) -> None: ...

    def resume_receiving(self) -> None: ...

    def close(self) -> None:
        """Send the bytes that wait, then close."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class CommandHandler(Protocol):
    """The session's handlers of commands, which are called in the order of arrival."""

    def check_append(self, frame: AppendFrame, block: AppendFrame | None) -> None:
        """Raise WireFormatError if this append is not allowed now. No memory has been taken for it yet.

        `block` is the AppendBlock that was received before, and whose end is expected.
        """
        ...

    def on_append(self, frame: AppendFrame) -> None:
        """Handle an append whose data is in the cache. The handler takes ownership of the data."""
        ...

    def on_table_prefix(self, type_code: int, prefix: wire.TablePrefix) -> bool:
        """Return whether the rest of a table command may be received. If not, the reply has been sent."""
        ...

    def on_slow(self) -> None:
        """Close the connection, because others wait for the memory that it holds."""
        ...

    @property
    def waits_for_store(self) -> bool:
        """Whether the store keeps the peer from sending, for a reason that is not the peer's."""
        ...

    def on_pooled_command(self, type_code: int, received: Reservation) -> None:
        """Handle a command whose payload is in the cache. The handler takes ownership of the reservation."""
        ...

    def on_large_command(self, command: wire.WireCommand, received: ReceivedBytes) -> None:
        """As `on_command`, for a large command. The handler owns `received` and releases it at the end."""
        ...

    def on_command(self, command: wire.WireCommand) -> None: ...

    def on_memory_wanted(self) -> None:
        """Receive nothing until `on_memory_granted`, because the cache or the receive memory is full."""
        ...

    def on_memory_granted(self) -> None:
        """Schedule `FrameAssembler.resume`. Do not call it here, since the caller is the cache or receive memory."""
        ...

    @property
    def accepts_commands(self) -> bool:
        """Whether the next command may start. If not, the assembler stops before it until `resume`."""
        ...
