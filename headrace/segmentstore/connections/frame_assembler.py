"""Cuts the bytes that a connection receives into commands, and moves whole appends into the cache.

The assembler parses only headers. It checks a size before it takes memory for it, and takes none for an append of a
writer that is not set up on this connection. A store that needs tokens receives the large part of a table command only
when the token in its first fields was admitted, and drops the rest of another one.

A command that has arrived as a whole is read from the scratch buffer that all connections share. The bytes of an
incomplete command wait in the receive memory. The cache gets an append only when all its bytes have arrived, those of
an AppendBlock together with its end. So tier 2 can take all data that fills the cache, and making room never depends
on a peer. For speed a few appends at a time are received directly into the cache. A slow one is moved out of it again
(see `ReceivedBytes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from headrace import wire
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation, slice_parts
from headrace.segmentstore.connections.append_frames import PREFIXES, AppendFrame, read_trailer, with_block
from headrace.segmentstore.connections.connection_limits import CONTROL_FRAME_BYTES_MAX, STRANGER_FRAME_BYTES_MAX
from headrace.segmentstore.connections.receive_memory import (
    SMALL_PIECE_BYTES,
    STRANGERS,
    UNCHARGED_BYTES,
    ReceiveAccount,
    ReceiveMemory,
)
from headrace.segmentstore.connections.received_bytes import ReceivedBytes

# What the parts of a connection expect of each other: the socket of a session, and the handlers of its assembler.


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


_FRAME_HEADER_BYTES: Final = 8

_DIRECT_TRAILER_BYTES_MAX: Final = 64
"""The trailer is read from the scratch buffer, in which a connection may keep only a few bytes."""


class FrameAssembler:
    """The receiving half of one connection from `address`.

    With `token_bytes_max` the store needs tokens of at most this length, and the peer is a stranger until `admit_peer`.
    """

    def __init__(
        self,
        pool: BlockPool,
        memory: ReceiveMemory,
        handler: CommandHandler,
        address: str,
        token_bytes_max: int | None = None,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._scratch = memory.scratch
        self._handler = handler
        self._address = address or "unknown"
        self._token_bytes_max = token_bytes_max
        self._account = ReceiveAccount(
            memory,
            self._address if token_bytes_max is None else STRANGERS,
            on_room=self._piece_granted,
            on_slow=handler.on_slow,
            is_excused=lambda: handler.waits_for_store,
        )
        self._leftover = b""
        self._frame: AppendFrame | None = None
        self._has_prefix_to_check = False
        self._drops_frame = False
        self._dropped_bytes = 0
        self._received = ReceivedBytes(self._account, self._pool)
        self._block: tuple[AppendFrame, ReceivedBytes] | None = None
        self._piece_bytes = 0  # the size of the last requested piece of receive memory
        self._reservation: Reservation | None = None  # granted after a wait, and not used yet
        self._waiting = False
        self._closed = False
        self._commands = 0
        self._slow_command: int | None = None

    @property
    def owed_command(self) -> int | None:
        """The number of the command whose rest the peer must send; None if there is none, or if memory is missing."""
        owed = not self._waiting and (self._frame is not None or self._leftover or self._block is not None)
        return self._commands if owed else None

    @property
    def receives_owed(self) -> bool:
        """Whether received bytes belong to the owed command. False for other frames between a block and its end."""
        block = self._block
        return block is None or (self._frame is not None and self._frame.type_code == wire.AppendBlockEnd.TYPE)

    @property
    def held_bytes(self) -> int:
        """The bytes of the receive memory that this connection is charged for."""
        return self._account.held_bytes

    def admit_peer(self) -> None:
        """Note that the peer has shown a valid token."""
        if self._account.address == STRANGERS:
            self._memory.move(self._account, self._address)

    def writable(self) -> memoryview:
        """The buffer for the next received bytes. Call `received` before any other method."""
        frame = self._frame
        if frame is not None and self._drops_frame:
            return self._scratch[: max(frame.body_bytes - self._dropped_bytes, 1)]
        if frame is not None:
            target = self._received.writable
            if target:
                return target[: frame.body_bytes - self._received.length]
        filled = len(self._leftover)
        if filled:
            self._scratch[:filled] = self._leftover
        return self._scratch[filled : filled + max(self._account.room_bytes, UNCHARGED_BYTES - filled, 1)]

    def received(self, count: int) -> None:
        """Take note of `count` bytes in `writable()`.

        Raises:
            WireFormatError: the bytes violate the protocol, and the connection must be closed.
        """
        if self._frame is None or not self._received.writable:
            self._consume(self._scratch[: len(self._leftover) + count])
            return
        self._received.advance(count)
        complete = not self._received.writable or self._received.length >= self._frame.body_bytes
        if complete or self._has_prefix_to_check:
            self._consume(self._scratch[:0])

    def resume(self) -> None:
        """Process bytes that were received before. Raises as `received`."""
        if not self._waiting:
            self._consume(memoryview(self._leftover))

    def leave_cache_if_slow(self) -> None:
        """Move an incomplete append out of the cache if the last call found the same one there."""
        if not self._received.in_cache:
            self._slow_command = None
        elif self._slow_command == self._commands:
            self._received.leave_cache()
            self.resume()  # a part of the trailer that has arrived belongs behind the data, before what comes next
        else:
            self._slow_command = self._commands

    def close(self) -> None:
        """Free the memory of incomplete commands."""
        self._closed = True
        self._leftover = b""
        self._frame = None
        self._account.close()  # first: else this connection may be served with the memory that it gives back
        self._received.release()
        if self._block is not None:
            self._block[1].release()
            self._block = None
        if self._reservation is not None:
            self._pool.release(self._reservation)
            self._reservation = None

    def _consume(self, view: memoryview) -> None:
        position = 0
        while not self._closed and not self._waiting:
            taken = self._begin_frame(view[position:]) if self._frame is None else self._continue(view[position:])
            if taken < 0:
                break
            position += taken
        if self._closed:
            return
        self._leftover = bytes(view[position:])
        self._account.keep(len(self._leftover))

    # Frames

    def _begin_frame(self, view: memoryview) -> int:
        """Read the header and prefix of a frame; return the bytes consumed, or -1 if more must arrive first."""
        if len(view) < _FRAME_HEADER_BYTES or not self._handler.accepts_commands:
            return -1
        type_code, length = wire.decode_header(view)
        read_prefix = PREFIXES.get(type_code)
        if read_prefix is not None:
            prefix_bytes, read = read_prefix
            if length < prefix_bytes:
                raise wire.WireFormatError(f"an append command of type {type_code} has only {length} payload bytes")
            if len(view) < _FRAME_HEADER_BYTES + prefix_bytes:
                return -1
            frame = read(view[_FRAME_HEADER_BYTES:], length)
            self._handler.check_append(frame, self._block[0] if self._block else None)
            self._check_size(frame.data_bytes)
            end = _FRAME_HEADER_BYTES + length
            if len(view) >= end and self._take_whole(frame, view[_FRAME_HEADER_BYTES + prefix_bytes : end]):
                return end
            self._frame = frame
            return _FRAME_HEADER_BYTES + prefix_bytes
        end = _FRAME_HEADER_BYTES + length
        is_of_table = type_code in _TABLE_COMMANDS
        if is_of_table:
            self._check_size(length)
        else:
            self._check_control_size(type_code, end)
        if len(view) < end <= UNCHARGED_BYTES:
            return -1
        self._frame = AppendFrame(type_code, 0, length, 0)
        self._has_prefix_to_check = is_of_table and self._token_bytes_max is not None
        return _FRAME_HEADER_BYTES

    def _check_control_size(self, type_code: int, frame_bytes: int) -> None:
        """Check the size of a command without data. Only one that merges has its token behind a long list."""
        is_small = self._account.address == STRANGERS and type_code != wire.MergeSegmentsBatch.TYPE
        bytes_max = STRANGER_FRAME_BYTES_MAX if is_small else CONTROL_FRAME_BYTES_MAX
        if frame_bytes > bytes_max:
            raise wire.WireFormatError(
                f"a command of type {type_code} has {frame_bytes} bytes, allowed are {bytes_max}"
            )

    def _take_whole(self, frame: AppendFrame, body: memoryview) -> bool:
        """Take an append that is in the scratch buffer as a whole, as most are; False if it needs another way."""
        if frame.type_code == wire.AppendBlock.TYPE or frame.event_header or self._block is not None:
            return False
        reservation = self._pool.reserve(frame.data_bytes)
        if reservation is None:
            return False
        reservation.fill((body[: frame.data_bytes],))
        frame.data = reservation
        read_trailer(frame, body[frame.data_bytes :])
        self._commands += 1
        self._handler.on_append(frame)
        return True

    def _check_size(self, data_bytes: int) -> None:
        """Check the size of a command. A block and its end count as one append."""
        total_bytes = data_bytes + (self._block[0].data_bytes if self._block else 0)
        bytes_max = min(self._memory.command_bytes_max, self._pool.reservation_bytes_max)
        if total_bytes > bytes_max:
            raise wire.WireFormatError(
                f"a command of {total_bytes} bytes exceeds the limit of this store, which is {bytes_max} bytes"
            )

    def _continue(self, view: memoryview) -> int:
        """Continue the current frame; return the bytes consumed, or -1 if more bytes or memory are needed first."""
        frame = self._frame
        if frame is None:
            return -1
        body_bytes = frame.body_bytes
        if self._has_prefix_to_check:
            self._check_prefix(frame, view)
        if self._drops_frame:
            return self._drop(frame, len(view))
        if len(view) >= body_bytes and not self._received.length and frame.type_code != wire.AppendBlock.TYPE:
            return body_bytes if self._finish(frame, [view[:body_bytes]]) else -1
        if self._received.in_cache or self._goes_to_cache(frame, view):
            return self._continue_in_cache(frame, view)
        taken = self._keep(view, body_bytes)
        if self._received.length == body_bytes:
            self._finish(frame, self._received.parts)
        return taken or (-1 if self._frame is frame else 0)

    def _check_prefix(self, frame: AppendFrame, view: memoryview) -> None:
        """Read the first fields of a table command as soon as they have arrived, and drop the rest if it is refused."""
        if self._token_bytes_max is None:
            return
        arrived = memoryview(b"".join([*self._received.parts, view[: frame.body_bytes - self._received.length]]))
        prefix = wire.read_table_prefix(arrived, frame.body_bytes, self._token_bytes_max)
        if prefix is None:
            return
        self._has_prefix_to_check = False
        if not self._handler.on_table_prefix(frame.type_code, prefix):
            self._drops_frame = True
            self._dropped_bytes = self._received.length
            self._received.release()

    def _drop(self, frame: AppendFrame, present_bytes: int) -> int:
        """Drop bytes of a command that was refused; return how many."""
        count = min(present_bytes, frame.body_bytes - self._dropped_bytes)
        self._dropped_bytes += count
        if self._dropped_bytes < frame.body_bytes:
            return count or -1
        self._drops_frame = False
        self._dropped_bytes = 0
        self._end_frame()
        return count

    def _goes_to_cache(self, frame: AppendFrame, view: memoryview) -> bool:
        """Whether an append may be received directly into the cache. If so, the room for it is reserved.

        With TLS it often begins with the few bytes that were behind the end of the one before.
        """
        received = self._received
        simple = frame.type_code in _DIRECT_COMMANDS and self._block is None and received.may_enter_cache
        return (
            simple
            and frame.trailer_bytes <= _DIRECT_TRAILER_BYTES_MAX
            and received.length + len(view) >= SMALL_PIECE_BYTES
            and received.length <= frame.data_bytes
            and received.begin_in_cache(frame.data_bytes)
        )

    def _continue_in_cache(self, frame: AppendFrame, view: memoryview) -> int:
        taken = self._received.write(view)
        trailer = view[taken : taken + frame.trailer_bytes]
        if self._received.writable or len(trailer) < frame.trailer_bytes:
            return taken or -1
        read_trailer(frame, trailer)
        frame.data = self._received.take_reservation()
        self._end_frame()
        self._handler.on_append(frame)
        return taken + len(trailer)

    def _keep(self, view: memoryview, body_bytes: int) -> int:
        """Copy the arrived bytes of a frame into the receive memory, and get room there for the next ones."""
        received, taken = self._received, 0
        while (owed_bytes := body_bytes - received.length) and not self._waiting:
            if received.writable:
                if taken == len(view):
                    break
                taken += received.write(view[taken : taken + owed_bytes])
                continue
            self._piece_bytes = received.next_piece_bytes(owed_bytes, len(view) - taken)
            if self._memory.charge(self._account, self._piece_bytes):
                received.add_piece(self._piece_bytes)
            else:
                self._waiting = True
                self._handler.on_memory_wanted()
        return taken

    def _piece_granted(self) -> None:
        self._received.add_piece(self._piece_bytes)
        self._waiting = False
        self._handler.on_memory_granted()

    def _finish(self, frame: AppendFrame, parts: list[memoryview]) -> bool:
        """Pass on a command that has arrived as a whole; return False if the cache has no room for it yet."""
        if frame.type_code == wire.AppendBlock.TYPE:
            self._block, self._received = (frame, self._received), ReceivedBytes(self._account, self._pool)
            self._frame = None
        elif frame.type_code in PREFIXES:
            data = self._append_data(frame, parts)
            reservation = self._cached(data)
            if reservation is None:
                return False
            frame.data = reservation
            if self._block is not None:
                self._block[1].release()
                self._block = None
            self._end_frame()
            self._handler.on_append(frame)
        elif frame.type_code in _CACHED_COMMANDS:
            reservation = self._cached(parts)
            if reservation is None:
                return False
            self._end_frame()
            self._handler.on_pooled_command(frame.type_code, reservation)
        else:
            self._finish_command(frame, parts)
        return True

    def _finish_command(self, frame: AppendFrame, parts: list[memoryview]) -> None:
        # Copy the payload, because the handler may use the command after the buffers are reused.
        command = wire.decode(frame.type_code, memoryview(b"".join(parts)))
        if frame.body_bytes <= CONTROL_FRAME_BYTES_MAX:
            self._end_frame()
            self._handler.on_command(command)
            return
        received, self._received = self._received, ReceivedBytes(self._account, self._pool)
        self._end_frame()
        self._handler.on_large_command(command, received)

    def _end_frame(self) -> None:
        self._frame = None
        self._received.release()
        if self._block is None:
            self._commands += 1

    def _append_data(self, frame: AppendFrame, parts: list[memoryview]) -> list[memoryview]:
        """The bytes to append. Also reads the trailer of the frame."""
        sent_bytes = frame.body_bytes - frame.trailer_bytes
        if len(parts) == 1:
            data, trailer = [parts[0][:sent_bytes]], parts[0][sent_bytes:]
        else:
            data = slice_parts(parts, 0, sent_bytes)
            trailer = memoryview(b"".join(slice_parts(parts, sent_bytes, frame.trailer_bytes)))
        read_trailer(frame, trailer)
        if frame.event_header:
            data.insert(0, memoryview(frame.event_header))
        if self._block is not None:
            data = with_block(self._block[0], self._block[1].parts, frame, data)
        return data

    def _cached(self, data: Sequence[memoryview]) -> Reservation | None:
        """A copy of `data` in the cache; None if the cache has no room yet."""
        reservation, self._reservation = self._reservation, None
        if reservation is None:
            length = sum(map(len, data))
            reservation = self._pool.reserve(length)
            if reservation is None:
                self._waiting = True
                self._handler.on_memory_wanted()
                self._pool.wait(length, self._room_granted)
                return None
        reservation.fill(data)
        return reservation

    def _room_granted(self, reservation: Reservation) -> None:
        # If the connection is closed already, the session calls `close` again later, outside of the pool's change.
        self._reservation = reservation
        self._waiting = False
        self._handler.on_memory_granted()


_DIRECT_COMMANDS: Final = frozenset((wire.AppendBlockEnd.TYPE, wire.ConditionalBlockEnd.TYPE))
"""Commands whose data is appended unchanged."""

_CACHED_COMMANDS: Final = frozenset((wire.UpdateTableEntries.TYPE, wire.RemoveTableKeys.TYPE))
_TABLE_COMMANDS: Final = _CACHED_COMMANDS | {wire.ReadTable.TYPE}
"""Commands with keys or entries of tables, which may be large."""
