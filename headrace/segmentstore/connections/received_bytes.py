"""The bytes of an incomplete command: in pieces of the receive memory, or directly in the cache."""

from __future__ import annotations

from typing import Final

from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Reservation, slice_parts
from headrace.segmentstore.connections.receive_memory import LARGE_PIECE_BYTES, SMALL_PIECE_BYTES, ReceiveAccount

_NOTHING: Final = memoryview(b"")


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
    def may_enter_cache(self) -> bool:
        """Whether nothing has arrived, or a first small piece that is full. What has left the cache has a large one."""
        return not self._buffers or self.length == len(self._buffers[0]) == SMALL_PIECE_BYTES

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
        self._account.arrived(count)
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
        """Reserve room in the cache for all data of an append, and move there what has arrived of it.

        Return False if that is not possible now.
        """
        memory, pool = self._account.memory, self._pool
        charged_bytes = data_bytes + LARGE_PIECE_BYTES  # the most that it takes in pieces
        if pool.under_pressure or not memory.admit_direct(self._account, charged_bytes, pool.capacity_bytes):
            return False
        reservation = pool.reserve(data_bytes)
        if reservation is None:
            memory.give_back_direct(self._account, charged_bytes)
            return False
        arrived, pieces, piece_bytes = self.parts, self._buffers, self._charged_bytes
        self._reservation, self._charged_bytes = reservation, charged_bytes
        self._buffers = [part for part in reservation.parts if part]
        self._targets = list(self._buffers)
        self._arrives_again()
        for part in arrived:
            self.write(part)
        for piece in pieces:
            memory.recycle(piece)
        if piece_bytes:
            memory.give_back(self._account, piece_bytes)
        return True

    def take_reservation(self) -> Reservation | None:
        """The data that was received directly into the cache. The caller takes ownership of it."""
        reservation = self._reservation
        if reservation is not None:
            charged_bytes, self._reservation, self._charged_bytes = self._charged_bytes, None, 0
            self._account.memory.give_back_direct(self._account, charged_bytes)
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
        self._reservation, self._buffers, self._targets, self._charged_bytes = None, [], [], 0
        self._arrives_again()
        for part in arrived:
            while part:
                if not self._targets:
                    self.add_piece(LARGE_PIECE_BYTES)
                taken = self.write(part)
                part = part[taken:]
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

    def _arrives_again(self) -> None:
        """The bytes are written again, but have arrived only once."""
        self._account.arrived(-self.length)
        self.length = 0
