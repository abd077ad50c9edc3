"""The memory for incomplete commands: one budget for all connections of a process.

It is separate from the cache, so that the cache has only whole commands. A connection is charged in pieces for the
bytes that it has received, never for the size that a frame header claims.

A part of the budget is a reserve for the largest command, which one connection at a time may use: the finisher. The
rest is shared. The first small piece of a command comes from a lane of its own, as long as there is room in it. Of the
other memory a connection, an address, and all peers that have not shown a valid token may each have a share.

A connection that gets no piece waits. Free memory goes to the address that has least, and the finisher's place to the
connection that has waited longest. While any waits, the slowest connection in their way is closed (`close_slowest`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heapreplace
from typing import Final

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import WIRE_FRAME_PAYLOAD_BYTES_MAX
from headrace.segmentstore.connections.connection_limits import CONTROL_FRAME_BYTES_MAX

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

CONNECTION_SHARE: Final = 8
ADDRESS_SHARE: Final = 2
STRANGERS_SHARE: Final = 8
SMALL_LANE_SHARE: Final = 8
"""Parts of the shared memory: what one connection may have, one address, all peers that have not shown a valid token
yet, and first small pieces alone. A connection with more than its share waits for the reserve."""

PATIENCE_S: Final = 0.05
"""The time between two calls of `close_slowest` while connections wait."""

SLOW_PERIODS: Final = 80
"""A connection is slow if it needs longer than this many times PATIENCE_S, which is 4 s, to send what it holds."""

_RECENT_PERIODS: Final = 4
_GRACE: Final = 2
"""The rate of a connection is an average over about four periods. At first it is twice the least one. So a peer that
sends nothing has three periods, and one behind a slow network has time for a round trip."""

_FINISHER_GRACE: Final = 1.5
"""For a connection that gets the reserve: one whole period behind the one in which it gets it, which may end at once.
Bytes of a peer that sends wait in its socket. Of many silent peers in a row, each takes only these two periods."""

_ROUNDING_BYTES: Final = 4 * LARGE_PIECE_BYTES
"""Unused ends of the pieces of a block and of its end, and bytes that were received after a command."""

STRANGERS: Final = ""
"""The address under which peers are counted that have not shown a valid token."""


class ReceiveMemory:
    """The receive memory of a process, of `total_bytes` bytes, the reserve and the scratch buffer included.

    `command_bytes_max` is the size of the largest command, which is an append together with its block. `on_waiting` is
    called when connections begin to wait: call `close_slowest` after each PATIENCE_S as long as any waits.
    """

    def __init__(
        self,
        total_bytes: int,
        connections_max: int,
        command_bytes_max: int = WIRE_FRAME_PAYLOAD_BYTES_MAX,
        on_waiting: Callable[[], None] = lambda: None,
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
        shared_bytes = total_bytes - least + LARGE_PIECE_BYTES
        self._lane_bytes = min(shared_bytes // SMALL_LANE_SHARE, shared_bytes - LARGE_PIECE_BYTES)
        self._shared_bytes = shared_bytes - self._lane_bytes
        self._connection_bytes = self._share(CONNECTION_SHARE)
        self._lane_used = 0
        self._shared_used = 0
        self._reserve_used = 0
        self._by_address: dict[str, int] = {}
        self._finisher: ReceiveAccount | None = None
        self._charged: dict[ReceiveAccount, None] = {}
        self._waiters: dict[ReceiveAccount, int] = {}  # in the order of arrival
        self._is_short = False
        self._on_waiting = on_waiting
        self._free: dict[int, list[memoryview]] = {SMALL_PIECE_BYTES: [], LARGE_PIECE_BYTES: []}
        self._made_bytes = 0
        self.direct_bytes = 0
        """The bytes charged for appends that are received directly into the cache."""
        self.direct_count = 0

    @property
    def used_bytes(self) -> int:
        """The bytes that connections are charged for."""
        return self._lane_used + self._shared_used + self._reserve_used

    @property
    def waiting(self) -> int:
        """The number of connections that wait for room."""
        return len(self._waiters)

    def room_for(self, account: ReceiveAccount) -> int:
        """The bytes that a connection may receive before their command is known.

        It is 0 while other connections wait for the same memory. It is 0 for the finisher too, which takes only the
        bytes of its command, so that the reserve is free again when the command has arrived.
        """
        if self._is_short or self._finisher is account:
            return 0
        return max(min(self._shared_bytes - self._shared_used, self._room_of_shares(account)), 0)

    def charge(self, account: ReceiveAccount, size_bytes: int) -> bool:
        """Charge a connection for a piece. If that is False, it waits, and `on_room` tells when it has been charged."""
        if self._takes_reserve(account, size_bytes) or self._takes_lane(account, size_bytes):
            return True
        if self._fits(account, size_bytes) and self._comes_first(account):
            self._take(account, size_bytes)
            return True
        if self._finisher is None and account.may_finish:
            self._finish_with(account, size_bytes)
            return True
        if not self._waiters:
            for each in self._charged:
                each.begin_contest()
        self._waiters[account] = size_bytes
        self._note_shortage()
        if len(self._waiters) == 1:
            self._on_waiting()
        return False

    def admit_direct(self, account: ReceiveAccount, size_bytes: int, cache_bytes: int) -> bool:
        """Charge an append to receive it directly into a cache of `cache_bytes`; False if that is not allowed now."""
        if (
            self.direct_count >= DIRECT_APPENDS_MAX
            or DIRECT_CACHE_SHARE * (self.direct_bytes + size_bytes) > cache_bytes
            or self._is_short
            or self._finisher is account
            or not self._fits(account, size_bytes)
        ):
            return False
        self._take(account, size_bytes)
        self.direct_bytes += size_bytes
        self.direct_count += 1
        return True

    def give_back_direct(self, account: ReceiveAccount, size_bytes: int) -> None:
        """Free the charge of `admit_direct`."""
        self.direct_bytes -= size_bytes
        self.direct_count -= 1
        self.give_back(account, size_bytes)

    def charge_received(self, account: ReceiveAccount, size_bytes: int) -> None:
        """Charge for bytes that have been received already, within the room there was for them."""
        self._take(account, size_bytes)

    def give_back(self, account: ReceiveAccount, size_bytes: int) -> None:
        account.held_bytes -= size_bytes
        if self._finisher is account:
            reserve_bytes = min(size_bytes, self._reserve_used)
            self._reserve_used -= reserve_bytes
            size_bytes -= reserve_bytes
            if not self._reserve_used:
                self._finisher = None
        lane_bytes = min(size_bytes, account.lane_bytes)
        account.lane_bytes -= lane_bytes
        self._lane_used -= lane_bytes
        size_bytes -= lane_bytes
        account.shared_bytes -= size_bytes
        self._shared_used -= size_bytes
        self._count(account.address, -size_bytes)
        if not account.held_bytes:
            self._charged.pop(account, None)
        self._serve_waiters()

    def move(self, account: ReceiveAccount, address: str) -> None:
        """Count a connection under this address from now on."""
        self._count(account.address, -account.shared_bytes)
        account.address = address
        self._count(address, account.shared_bytes)
        self._serve_waiters()

    def stop_waiting(self, account: ReceiveAccount) -> None:
        self._waiters.pop(account, None)
        self._serve_waiters()

    def close_slowest(self) -> None:
        """Close the slowest of the connections whose memory others wait for, unless all of them are fast enough.

        A connection is slow if what it holds is more than what it sends in 4 s. A connection that the store keeps
        from sending is not slow.
        """
        slow = [account for account in self._in_the_way() if account.ends_period()]
        if slow:
            min(slow, key=lambda account: (account.recent_bytes, -account.held_bytes)).on_slow()

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

    # Inside

    def _share(self, part: int) -> int:
        return max(self._shared_bytes // part, LARGE_PIECE_BYTES)

    def _room_of_shares(self, account: ReceiveAccount) -> int:
        """What the shares of a connection and of its address leave to it."""
        return min(self._connection_bytes - account.shared_bytes, self._room_of_address(account.address))

    def _room_of_address(self, address: str) -> int:
        address_bytes = self._share(STRANGERS_SHARE if address == STRANGERS else ADDRESS_SHARE)
        return address_bytes - self._by_address.get(address, 0)

    def _order(self, account: ReceiveAccount) -> tuple[int, int]:
        """Those come first whose address has least, and of these the one that has least."""
        return self._by_address.get(account.address, 0), account.held_bytes

    def _fits(self, account: ReceiveAccount, size_bytes: int) -> bool:
        return self._shared_used + size_bytes <= self._shared_bytes and size_bytes <= self._room_of_shares(account)

    def _takes_reserve(self, account: ReceiveAccount, size_bytes: int) -> bool:
        if self._finisher is not account:
            return False
        self._reserve_used += size_bytes
        account.held_bytes += size_bytes
        return True

    def _takes_lane(self, account: ReceiveAccount, size_bytes: int) -> bool:
        if self._lane_used + size_bytes > self._lane_bytes or not _may_use_lane(account, size_bytes):
            return False
        self._lane_used += size_bytes
        account.lane_bytes = size_bytes
        self._hold(account, size_bytes)
        return True

    def _take(self, account: ReceiveAccount, size_bytes: int) -> None:
        self._shared_used += size_bytes
        account.shared_bytes += size_bytes
        self._count(account.address, size_bytes)
        self._hold(account, size_bytes)

    def _finish_with(self, account: ReceiveAccount, size_bytes: int) -> None:
        self._finisher = account
        self._reserve_used = size_bytes
        self._hold(account, size_bytes)
        account.begin_contest(_FINISHER_GRACE)

    def _hold(self, account: ReceiveAccount, size_bytes: int) -> None:
        account.held_bytes += size_bytes
        if account.held_bytes == size_bytes:
            self._charged[account] = None
            account.begin_contest()

    def _count(self, address: str, size_bytes: int) -> None:
        used = self._by_address.get(address, 0) + size_bytes
        if used:
            self._by_address[address] = used
        else:
            self._by_address.pop(address, None)

    def _note_shortage(self) -> None:
        """Find out whether a connection waits for memory that its shares would allow it to have."""
        self._is_short = any(size <= self._room_of_shares(account) for account, size in self._waiters.items())

    def _in_the_way(self) -> Iterable[ReceiveAccount]:
        if self._is_short:
            lane_is_wanted = any(_may_use_lane(account, size) for account, size in self._waiters.items())
            return [
                account
                for account in self._charged
                if lane_is_wanted or account.shared_bytes or account is self._finisher
            ]
        blocked = {each.address for each, size in self._waiters.items() if size > self._room_of_address(each.address)}
        return [account for account in self._charged if account is self._finisher or account.address in blocked]

    def _comes_first(self, account: ReceiveAccount) -> bool:
        """Whether no connection waits that must get memory before this one."""
        order = self._order(account)
        return not self._is_short or all(order < self._order(each) for each in self._waiters)

    def _serve_waiters(self) -> None:
        waiters = self._waiters
        if waiters:
            self._serve_from_lane()
        if waiters and self._shared_used + SMALL_PIECE_BYTES <= self._shared_bytes:
            self._serve_fitting()
        if waiters and self._finisher is None:
            first = next((account for account in waiters if account.may_finish), None)
            if first is not None:
                self._finish_with(first, waiters.pop(first))
                first.on_room()
        if self._is_short or waiters:
            self._note_shortage()

    def _serve_from_lane(self) -> None:
        """Serve those that wait for a first small piece, in the order of arrival. No later one may overtake them."""
        waiters = self._waiters
        while self._lane_used + SMALL_PIECE_BYTES <= self._lane_bytes:
            account = next((account for account, size in waiters.items() if _may_use_lane(account, size)), None)
            if account is None or not self._takes_lane(account, waiters[account]):
                return
            del waiters[account]
            account.on_room()

    def _serve_fitting(self) -> None:
        """Serve the waiting connections in their order. Each is looked at a few times only: there may be thousands."""
        waiting: dict[str, list[tuple[int, int, ReceiveAccount]]] = {}
        for arrival, (account, size) in enumerate(self._waiters.items()):
            if self._fits(account, size):
                waiting.setdefault(account.address, []).append((account.held_bytes, arrival, account))
        addresses = []
        for address, accounts in waiting.items():
            heapify(accounts)
            addresses.append((self._by_address.get(address, 0), *accounts[0][:2], address))
        heapify(addresses)
        while addresses and self._shared_used + SMALL_PIECE_BYTES <= self._shared_bytes:
            address = addresses[0][-1]
            accounts = waiting[address]
            account = heappop(accounts)[-1]
            if self._fits(account, self._waiters[account]):
                self._take(account, self._waiters.pop(account))
                account.on_room()
            if accounts:
                heapreplace(addresses, (self._by_address.get(address, 0), *accounts[0][:2], address))
            else:
                heappop(addresses)


class ReceiveAccount:
    """The part of the receive memory that one connection is charged for.

    `address` is that of its peer, or STRANGERS. The memory calls `on_room` in the middle of a change, so `on_room` must
    not call the memory. `on_slow` closes the connection. `is_excused` is called to ask whether the store keeps the peer
    from sending.
    """

    __slots__ = (
        "_is_excused",
        "_kept_bytes",
        "_received_bytes",
        "address",
        "held_bytes",
        "lane_bytes",
        "memory",
        "on_room",
        "on_slow",
        "recent_bytes",
        "shared_bytes",
    )

    def __init__(
        self,
        memory: ReceiveMemory,
        address: str,
        on_room: Callable[[], None],
        on_slow: Callable[[], None],
        is_excused: Callable[[], bool],
    ) -> None:
        self.memory = memory
        self.address = address
        self.held_bytes = 0
        self.shared_bytes = 0
        self.lane_bytes = 0
        self.on_room = on_room
        self.on_slow = on_slow
        self.recent_bytes = 0
        """What has arrived in the last periods of a contest, weighted."""
        self._received_bytes = 0
        self._is_excused = is_excused
        self._kept_bytes = 0

    @property
    def room_bytes(self) -> int:
        return self.memory.room_for(self)

    @property
    def may_finish(self) -> bool:
        """Whether it may have the reserve. Peers without a valid token send no large commands."""
        return self.address != STRANGERS

    def arrived(self, count: int) -> None:
        """Note bytes that were received into memory for which this account was charged."""
        self._received_bytes += count

    def begin_contest(self, grace: float = _GRACE) -> None:
        """Begin to measure how fast the peer sends, as if it had sent `grace` times what it must."""
        self._received_bytes = 0
        self.recent_bytes = int(grace * _RECENT_PERIODS * max(self.held_bytes, SMALL_PIECE_BYTES) / SLOW_PERIODS)

    def ends_period(self) -> bool:
        """Measure another period of a contest; return whether the connection is too slow."""
        if self._is_excused():
            return False
        self.recent_bytes += self._received_bytes - self.recent_bytes // _RECENT_PERIODS
        self._received_bytes = 0
        return SLOW_PERIODS * self.recent_bytes < _RECENT_PERIODS * self.held_bytes

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


def _may_use_lane(account: ReceiveAccount, size_bytes: int) -> bool:
    """Whether the lane is for this piece: a first small one, and not of a stranger."""
    return size_bytes <= SMALL_PIECE_BYTES and not account.lane_bytes and account.address != STRANGERS


def receive_bytes_min(connections_max: int, command_bytes_max: int = WIRE_FRAME_PAYLOAD_BYTES_MAX) -> int:
    """The least memory with which every command can be received.

    It is the sum of the reserve, the bytes that each connection may always keep, twice the scratch buffer (once for
    bytes that are received before they are charged), and one shared piece.
    """
    reserve_bytes = command_bytes_max + CONTROL_FRAME_BYTES_MAX + _ROUNDING_BYTES
    return reserve_bytes + connections_max * UNCHARGED_BYTES + 2 * CONTROL_FRAME_BYTES_MAX + LARGE_PIECE_BYTES
