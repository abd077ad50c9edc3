"""The memory for incomplete commands: one budget for all connections of a process.

It is separate from the cache, so that the cache has only whole commands. A connection is charged in pieces for the
bytes that it has received, never for the size that a frame header claims.

Most of the budget is shared. The rest is a reserve for the largest command, which one connection at a time may use:
the finisher. If the shared part is full, a connection waits in a queue. If there is no finisher, it becomes the
finisher instead, and can receive its whole command. So one connection can always continue, and the others get their
turn in the order of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import WIRE_FRAME_PAYLOAD_BYTES_MAX
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation, slice_parts
from headrace.segmentstore.connections.limits import CONTROL_FRAME_BYTES_MAX

SMALL_PIECE_BYTES: Final = 16 << 10
"""The size of the first piece of a frame, before many of its bytes have arrived."""

LARGE_PIECE_BYTES: Final = 256 << 10
"""The size of further pieces. Each piece costs a system call and a turn of the event loop, so they are large."""

UNCHARGED_BYTES: Final = 1 << 10
"""Bytes that a connection may always keep: enough to read any frame's header while the shared part is full."""

DIRECT_APPENDS_MAX: Final = 16
DIRECT_CACHE_SHARE: Final = 8
"""Limits for appends that are received directly into the cache: their number, and the share 1/8 of the cache. Each may
prevent the reuse of a few blocks, even if only little of it has arrived."""

_ROUNDING_BYTES: Final = 4 * LARGE_PIECE_BYTES
"""Unused ends of the pieces of a block and of its end, and bytes that were received after a command."""


class ReceiveMemory:
    """The receive memory of a process, of `total_bytes` bytes, the reserve and the scratch buffer included.

    `command_bytes_max` is the size of the largest command, which is an append together with its block.
    """

    def __init__(
        self, total_bytes: int, connections_max: int, command_bytes_max: int = WIRE_FRAME_PAYLOAD_BYTES_MAX
    ) -> None:
        least = receive_bytes_min(connections_max, command_bytes_max)
        if total_bytes < least:
            raise InvalidRequestError(
                f"{total_bytes} bytes of receive memory are too few for {connections_max} connections: "
                f"configure at least {least}"
            )
        self.total_bytes = total_bytes
        self.command_bytes_max = command_bytes_max
        self.scratch = memoryview(bytearray(CONTROL_FRAME_BYTES_MAX))
        """Shared by all connections: its bytes are consumed or copied before another connection receives."""
        self._shared_bytes = total_bytes - least + LARGE_PIECE_BYTES
        self._shared_used = 0
        self._reserve_used = 0
        self._finisher: ReceiveAccount | None = None
        self._waiters: deque[tuple[ReceiveAccount, int]] = deque()
        self._free: dict[int, list[memoryview]] = {SMALL_PIECE_BYTES: [], LARGE_PIECE_BYTES: []}
        self._made_bytes = 0
        self.direct_bytes = 0
        """The bytes charged for appends that are received directly into the cache."""
        self.direct_count = 0

    @property
    def used_bytes(self) -> int:
        """The bytes that connections are charged for."""
        return self._shared_used + self._reserve_used

    @property
    def waiting(self) -> int:
        """The number of connections that wait for room."""
        return len(self._waiters)

    def room_for(self, account: ReceiveAccount) -> int:
        """The bytes that a connection may receive before their command is known.

        It is 0 while other connections wait. It is 0 for the finisher too, which takes only the bytes of its command,
        so that the reserve is free again when the command has arrived.
        """
        if self._waiters or self._finisher is account:
            return 0
        return max(self._shared_bytes - self._shared_used, 0)

    def charge(self, account: ReceiveAccount, size_bytes: int) -> bool:
        """Charge a connection. If that is False, it waits, and `on_room` is called when it has been charged."""
        if self._finisher is account:
            self._reserve_used += size_bytes
        elif not self._waiters and self._shared_used + size_bytes <= self._shared_bytes:
            self._shared_used += size_bytes
        elif self._finisher is None:
            self._finisher = account
            self._reserve_used = size_bytes
        else:
            self._waiters.append((account, size_bytes))
            return False
        account.held_bytes += size_bytes
        return True

    def admit_direct(self, account: ReceiveAccount, size_bytes: int, cache_bytes: int) -> bool:
        """Charge an append to receive it directly into a cache of `cache_bytes`; False if that is not allowed now."""
        if (
            self.direct_count >= DIRECT_APPENDS_MAX
            or DIRECT_CACHE_SHARE * (self.direct_bytes + size_bytes) > cache_bytes
            or self._waiters
            or self._finisher is account
            or self._shared_used + size_bytes > self._shared_bytes
        ):
            return False
        self._shared_used += size_bytes
        account.held_bytes += size_bytes
        self.direct_bytes += size_bytes
        self.direct_count += 1
        return True

    def charge_received(self, account: ReceiveAccount, size_bytes: int) -> None:
        """Charge for bytes that have been received already, within the room there was for them."""
        self._shared_used += size_bytes
        account.held_bytes += size_bytes

    def give_back(self, account: ReceiveAccount, size_bytes: int) -> None:
        account.held_bytes -= size_bytes
        if self._finisher is account:
            reserve_bytes = min(size_bytes, self._reserve_used)
            self._reserve_used -= reserve_bytes
            size_bytes -= reserve_bytes
            if not self._reserve_used:
                self._finisher = None
        self._shared_used -= size_bytes
        self._serve_waiters()

    def stop_waiting(self, account: ReceiveAccount) -> None:
        self._waiters = deque(waiter for waiter in self._waiters if waiter[0] is not account)
        self._serve_waiters()

    def piece(self, size_bytes: int) -> memoryview:
        """Take a piece of memory, for which the connection was charged before."""
        free = self._free[size_bytes]
        if free:
            return free.pop()
        self._made_bytes += size_bytes
        for unused in self._free.values():  # drop free pieces of the other size, to stay within the budget
            while unused and self._made_bytes > self.total_bytes:
                self._made_bytes -= len(unused.pop())
        return memoryview(bytearray(size_bytes))

    def recycle(self, piece: memoryview) -> None:
        """Return a piece. It is the next to be reused, because it is the most likely to be in the CPU's caches."""
        self._free[len(piece)].append(piece)

    def _serve_waiters(self) -> None:
        while self._waiters:
            account, size_bytes = self._waiters[0]
            if self._shared_used + size_bytes <= self._shared_bytes:
                self._shared_used += size_bytes
            elif self._finisher is None:
                self._finisher = account
                self._reserve_used = size_bytes
            else:
                return
            self._waiters.popleft()
            account.held_bytes += size_bytes
            account.on_room()


class ReceiveAccount:
    """The part of the receive memory that one connection is charged for.

    The memory calls `on_room` in the middle of a change, so `on_room` must not call the memory.
    """

    __slots__ = ("_kept_bytes", "held_bytes", "memory", "on_room")

    def __init__(self, memory: ReceiveMemory, on_room: Callable[[], None]) -> None:
        self.memory = memory
        self.held_bytes = 0
        self.on_room = on_room
        self._kept_bytes = 0

    @property
    def room_bytes(self) -> int:
        return self.memory.room_for(self)

    def keep(self, length: int) -> None:
        """Charge `length` received bytes that were not consumed, in place of those of the last call."""
        kept_bytes = max(length - UNCHARGED_BYTES, 0)
        change, self._kept_bytes = kept_bytes - self._kept_bytes, kept_bytes
        if change > 0:
            self.memory.charge_received(self, change)
        elif change:
            self.memory.give_back(self, -change)

    def close(self) -> None:
        """Stop waiting, and free the charge of `keep`. The owner of the pieces frees them."""
        self.memory.stop_waiting(self)
        self.keep(0)


class ReceivedBytes:
    """The bytes of one frame that have arrived, in pieces of the receive memory.

    An append that arrives fast may be received directly into the cache instead, which saves a copy. It is charged for
    its whole size, so that it can move to the receive memory at any time. A slow one must move, because the cache
    cannot reuse its blocks meanwhile.
    """

    __slots__ = ("_account", "_buffers", "_charged_bytes", "_pool", "_reservation", "_targets", "length")

    def __init__(self, account: ReceiveAccount, pool: BlockPool) -> None:
        self.length = 0
        self._account = account
        self._pool = pool
        self._buffers: list[memoryview] = []
        self._targets: list[memoryview] = []  # the parts of the last buffers that are not filled
        self._charged_bytes = 0
        self._reservation: Reservation | None = None

    @property
    def writable(self) -> memoryview:
        """The buffer for the next bytes; empty if there is no room."""
        return self._targets[0] if self._targets else _NOTHING

    @property
    def parts(self) -> list[memoryview]:
        return slice_parts(self._buffers, 0, self.length)

    @property
    def is_empty(self) -> bool:
        return not self._buffers

    @property
    def in_cache(self) -> bool:
        return self._reservation is not None

    def next_piece_bytes(self, owed_bytes: int, present_bytes: int) -> int:
        """The size of the next piece, if `owed_bytes` are missing and `present_bytes` of them have arrived."""
        small = owed_bytes <= SMALL_PIECE_BYTES or (not self.length and present_bytes <= SMALL_PIECE_BYTES)
        return SMALL_PIECE_BYTES if small else LARGE_PIECE_BYTES

    def add_piece(self, size_bytes: int) -> None:
        """Take a piece, for which the account was charged before."""
        piece = self._account.memory.piece(size_bytes)
        self._buffers.append(piece)
        self._targets.append(piece)
        self._charged_bytes += size_bytes

    def advance(self, count: int) -> None:
        """Note that `count` bytes were written to `writable`."""
        self.length += count
        target = self._targets[0][count:]
        if target:
            self._targets[0] = target
        else:
            del self._targets[0]

    def write(self, view: memoryview) -> int:
        """Copy as much of `view` as there is room for; return the number of bytes."""
        taken = 0
        while self._targets and taken < len(view):
            target = self._targets[0]
            count = min(len(target), len(view) - taken)
            target[:count] = view[taken : taken + count]
            self.advance(count)
            taken += count
        return taken

    def begin_in_cache(self, data_bytes: int) -> bool:
        """Reserve room in the cache for all data of an append; return False if that is not possible now."""
        memory, pool = self._account.memory, self._pool
        charged_bytes = data_bytes + LARGE_PIECE_BYTES  # the most that it takes in pieces
        if pool.under_pressure or not memory.admit_direct(self._account, charged_bytes, pool.capacity_bytes):
            return False
        self._charged_bytes = charged_bytes
        self._reservation = pool.reserve(data_bytes)
        if self._reservation is None:
            self._give_back_direct()
            return False
        self._buffers = [part for part in self._reservation.parts if part]
        self._targets = list(self._buffers)
        return True

    def take_reservation(self) -> Reservation | None:
        """The data that was received directly into the cache. The caller takes ownership of it."""
        reservation = self._reservation
        if reservation is not None:
            self._reservation = None
            self._give_back_direct()
        return reservation

    def leave_cache(self) -> None:
        """Move the bytes to the receive memory, for which the connection was charged before."""
        arrived, charged_bytes = self.parts, self._charged_bytes
        reservation = self._reservation
        if reservation is None:
            return
        memory = self._account.memory
        memory.direct_bytes -= charged_bytes
        memory.direct_count -= 1
        self._reservation, self._buffers, self._targets, self._charged_bytes, self.length = None, [], [], 0, 0
        for part in arrived:
            while part:
                if not self._targets:
                    self.add_piece(LARGE_PIECE_BYTES)
                part = part[self.write(part) :]
        self._pool.release(reservation)
        memory.give_back(self._account, charged_bytes - self._charged_bytes)

    def release(self) -> None:
        """Free all memory. Calling it twice does no harm."""
        if not self._buffers:
            return
        reservation = self.take_reservation()
        buffers, self._buffers, self._targets = self._buffers, [], []
        charged_bytes, self._charged_bytes, self.length = self._charged_bytes, 0, 0
        if reservation is not None:
            self._pool.release(reservation)
        elif charged_bytes:
            for piece in reversed(buffers):
                self._account.memory.recycle(piece)
            self._account.memory.give_back(self._account, charged_bytes)

    def _give_back_direct(self) -> None:
        memory, charged_bytes = self._account.memory, self._charged_bytes
        self._charged_bytes = 0
        memory.direct_bytes -= charged_bytes
        memory.direct_count -= 1
        memory.give_back(self._account, charged_bytes)


def receive_bytes_min(connections_max: int, command_bytes_max: int = WIRE_FRAME_PAYLOAD_BYTES_MAX) -> int:
    """The least memory with which every command can be received.

    It is the sum of the reserve, the bytes that each connection may always keep, twice the scratch buffer (once for
    bytes that are received before they are charged), and one shared piece.
    """
    reserve_bytes = command_bytes_max + CONTROL_FRAME_BYTES_MAX + _ROUNDING_BYTES
    return reserve_bytes + connections_max * UNCHARGED_BYTES + 2 * CONTROL_FRAME_BYTES_MAX + LARGE_PIECE_BYTES


_NOTHING: Final = memoryview(b"")
