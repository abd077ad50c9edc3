"""One table: the state against which updates are checked, and look-ups in it.

The newest entries are in tails in memory: one that takes updates, and at most one that is full and waits to be flushed
to the index. Older entries are in the index, of which memory has some blocks.

As all state of a container, this state is ahead of the log. A caller that answers from it must wait until the log is
durable. Updates are checked one after the other, in the order of their arrival, without waiting for the durability of
earlier ones.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from headrace.codec.table_entries import Place, decode_entries, entry_bytes
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.segment_attributes import TABLE_BATCHES, TABLE_KEY_LENGTH
from headrace.model.table_indexes import IndexRun
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tables.index_store import IndexReader, IndexRecord, IndexStore, Window
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_reader import StorageReader

# Reads parts of a table's segment in the same way as for stream readers: from memory, else from tier 2.


def read_in_memory(segment: Segment, offset: int, length: int) -> bytes | None:
    """Exactly these bytes, durable or not; None unless memory has all of them."""
    pieces: list[memoryview] = []
    while length:
        parts, _ = segment.index.read(offset, length)
        if not parts:
            return None
        taken = sum(map(len, parts))
        pieces.extend(parts)
        offset += taken
        length -= taken
    return b"".join(pieces)


async def read_segment(segment: Segment, reader: StorageReader, offset: int, length: int) -> bytes:
    """Exactly these bytes, durable or not.

    Raises:
        NotFoundError: the segment was removed or truncated.
        ThrottledError, UnavailableError, CorruptError: as `StorageReader.read`.
    """
    pieces: list[bytes | memoryview] = []
    while length:
        parts, _ = segment.index.read(offset, length)
        if parts:
            piece: bytes | memoryview = b"".join(parts)
        else:
            in_memory = segment.index.next_in_memory(offset)
            wanted = length if in_memory is None else min(length, in_memory - offset)
            piece = (await reader.read(segment, offset, wanted)).data
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return b"".join(pieces)


# The newest entries of a part of a table, by key, in memory: the entries that no index object has yet.

KEY_CHARGE_BYTES: Final = 300
"""The memory of a key in Python objects, in addition to its own bytes."""


class TailAddition:
    """Entries to add to `tail`, and the changes of its sizes.

    A large addition is built in steps. Readers of the tail see no entry of it before `Tail.enter`.
    """

    __slots__ = ("live", "live_bytes", "memory_bytes", "places", "tail")

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.places: dict[bytes, Place] = {}
        self.memory_bytes = 0
        self.live = 0
        self.live_bytes = 0

    def put(self, key: bytes, place: Place) -> None:
        """Add an entry that follows all others in the segment."""
        former = self.places.get(key) or self.tail.places.get(key)
        if former is None:
            self.memory_bytes += len(key) + KEY_CHARGE_BYTES
        elif not former.removed:
            self.live -= 1
            self.live_bytes -= entry_bytes(key, former)
        self.places[key] = place
        if not place.removed:
            self.live += 1
            self.live_bytes += entry_bytes(key, place)


class Tail:
    """The entries from the offset `start` on, up to the next tail.

    Sizes are in bytes: `memory_bytes` counts memory, `live_bytes` the entries in the segment that are not removals.
    """

    __slots__ = ("_sorted", "live", "live_bytes", "memory_bytes", "places", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.places: dict[bytes, Place] = {}
        self.memory_bytes = 0
        self.live = 0
        self.live_bytes = 0
        self._sorted: list[bytes] | None = None

    def enter(self, addition: TailAddition) -> None:
        """Add entries that follow all others in the segment, all at once."""
        self.places.update(addition.places)
        self.memory_bytes += addition.memory_bytes
        self.live += addition.live
        self.live_bytes += addition.live_bytes
        if addition.memory_bytes:
            self._sorted = None

    def keys(self, first: bytes, end: bytes | None) -> list[bytes]:
        """The keys from `first` on and before `end` (None: all), in the order of their bytes, with removed ones."""
        if self._sorted is None:
            self._sorted = sorted(self.places)
        begin = bisect_left(self._sorted, first)
        return self._sorted[begin : None if end is None else bisect_left(self._sorted, end)]


REPLAY_READ_BYTES: Final = 1 << 20
LOOK_UPS_AT_ONCE_MAX: Final = 16


class Table:
    """A table in memory. Before `ready` has returned, no other method may be called.

    A caller holds `order` while it checks and appends an update, or when it must exclude updates. `failure` is the
    error for which the index cannot be maintained any more; the table then rejects updates. A table with `users` is
    not evicted, except for `TableStore.stop`. `is_evicted` tells that another one may take its place.
    """

    def __init__(
        self,
        container: SegmentContainer,
        reader: StorageReader,
        segment: Segment,
        index: IndexReader,
        index_store: IndexStore,
        limits: TableLimits,
    ) -> None:
        self.container = container
        self.reader = reader
        self.segment = segment
        self.key_length = segment.attribute(TABLE_KEY_LENGTH)
        self.order = asyncio.Lock()
        self.users = 0
        self.tails: list[Tail] = []
        self.failure: HeadraceError | None = None
        self._index = index
        self._index_store = index_store
        self._limits = limits
        self._record: IndexRecord | None = None
        self._loading = asyncio.Lock()
        self._room = asyncio.Event()
        self._room.set()
        self.is_being_removed = False
        self.is_evicted = False
        self._retired_by: HeadraceError | None = None

    @property
    def memory_bytes(self) -> int:
        return sum(tail.memory_bytes for tail in self.tails)

    @property
    def is_ready(self) -> bool:
        return self._record is not None

    @property
    def record(self) -> IndexRecord:
        if self._record is None:
            raise AssertionError("a table was used before it was ready")
        return self._record

    @property
    def runs(self) -> tuple[IndexRun, ...]:
        return self.record.index.runs

    @property
    def entry_count(self) -> int:
        """The number of keys. A key in several runs, or in a tail and a run, may count more than once."""
        newest, *full = self.tails
        covered = sum(
            not place.removed and key not in newest.places for tail in full for key, place in tail.places.items()
        )
        return newest.live + covered + sum(each.live for run in self.runs for each in run)

    @property
    def live_bytes(self) -> int:
        """The bytes of the newest entries in the segment. It may be too high, as `entry_count`."""
        return sum(tail.live_bytes for tail in self.tails) + sum(each.live_bytes for run in self.runs for each in run)

    async def ready(self) -> None:
        """Load the index record and the entries that no index has, unless they are loaded.

        Callers return in the order of their calls, since updates must keep the order of their arrival.

        Raises:
            NotFoundError: the segment was removed meanwhile.
            ThrottledError, UnavailableError: tier 2 or the metadata store does not answer.
            CorruptError: the record or the bytes do not decode.
        """
        async with self._loading:  # also if it is loaded: callers that waited for that may not have been resumed yet
            if self._record is None:
                record = await self._index_store.load(self.segment)
                self.tails = await self._replay(max(record.index.covered, self.segment.accepted.start_offset))
                self._record = record
                self.freeze_if_full()

    async def _replay(self, start: int) -> list[Tail]:
        """The tails from this offset on: as if they had never been evicted, else each load would add to its bound."""
        tails = [Tail(start)]
        position, unread = start, b""
        while position < self.segment.accepted.length:
            length = min(REPLAY_READ_BYTES, self.segment.accepted.length - position)
            data = unread + await read_segment(self.segment, self.reader, position, length)
            entries, used = decode_entries(memoryview(data), position - len(unread))
            addition = TailAddition(tails[0])
            for key, place in entries:
                memory_bytes = tails[0].memory_bytes + addition.memory_bytes
                if len(tails) == 1 and self._is_long(memory_bytes, place.offset - start):
                    tails[0].enter(addition)
                    tails.insert(0, Tail(place.offset))
                    addition = TailAddition(tails[0])
                addition.put(key, place)
            tails[0].enter(addition)
            position += length
            unread = data[used:]
        return tails

    # Look-ups

    def peek(self, key: bytes) -> Place | None:
        """The newest entry of a key in the tails, which may be a removal; None if the tails have none."""
        for tail in self.tails:
            place = tail.places.get(key)
            if place is not None:
                return place
        return None

    async def find(self, key: bytes) -> Place | None:
        """The newest entry of a key; None if the table does not have the key. Raises as `ready`."""
        while True:
            place, runs = self.peek(key), self.runs
            if place is not None or not runs:
                return self.alive(place)
            try:
                place = await self._index.find(runs, key)
            except NotFoundError as error:
                self._check_changed(runs, error)
                continue
            newer = self.peek(key)
            if newer is not None or self.runs is runs:
                return self.alive(newer or place)

    async def find_all(self, keys: Iterable[bytes]) -> dict[bytes, Place | None]:
        """As `find`, for several keys."""
        places = {key: self.alive(self.peek(key)) for key in keys}
        elsewhere = [key for key in places if self.peek(key) is None] if self.runs else []
        for first in range(0, len(elsewhere), LOOK_UPS_AT_ONCE_MAX):
            group = elsewhere[first : first + LOOK_UPS_AT_ONCE_MAX]
            places.update(zip(group, await asyncio.gather(*map(self.find, group)), strict=True))
        return places

    async def walk(self, first: bytes, last: bytes | None) -> AsyncIterator[tuple[bytes, Place]]:
        """The keys from `first` to `last`, both inclusive, in the order of their bytes.

        The walk sees concurrent updates of the keys that it has not reached.
        """
        position: bytes | None = first
        while position is not None and (last is None or position <= last):
            window = await self._window(position)
            for tail in reversed(self.tails):
                for key in tail.keys(position, window.end):
                    window.places[key] = tail.places[key]
            for key in sorted(window.places):
                place = self.alive(window.places[key])
                if last is not None and key > last:
                    return
                if place is not None:
                    yield key, place
            position = window.end

    async def _window(self, first: bytes) -> Window:
        while True:
            runs = self.runs
            try:
                window = await self._index.window(runs, first)
            except NotFoundError as error:
                self._check_changed(runs, error)
                continue
            if self.runs is runs:  # else a tail may have become a run that this window does not have
                return window

    def _check_changed(self, runs: tuple[IndexRun, ...], error: NotFoundError) -> None:
        """Raise CorruptError if the runs are still the same: only an object of former runs may be missing.

        Those of a table that is being removed are removed before the table is.
        """
        self.check_stays()
        if self.runs is runs:
            raise CorruptError(f"the index of table {self.segment.name} has lost an object: {error}") from error

    def alive(self, place: Place | None) -> Place | None:
        """The place, or None if it is a removal or was truncated.

        Before a compaction truncates an entry it appends the entry again, unless a newer one replaces it.
        """
        return None if place is None or place.removed or place.offset < self.segment.accepted.start_offset else place

    def check_key(self, key: bytes) -> None:
        """Raise InvalidRequestError if the table has keys of another length."""
        if self.key_length and len(key) != self.key_length:
            raise InvalidRequestError(
                f"the keys of table {self.segment.name} have {self.key_length} bytes, this one has {len(key)}"
            )

    async def read_is_durable(self) -> None:
        """Return when what was read of the table is durable. Raises the error of `check_current`, and of the log."""
        self.check_current()
        await self.container.log.durable()

    # Changes

    @property
    def has_room(self) -> bool:
        """Whether memory may hold more keys of this table."""
        return len(self.tails) == 1 or not self._is_full(self.tails[0].memory_bytes)

    async def room(self) -> None:
        """Wait until `has_room`.

        Raises:
            HeadraceError: the index cannot be maintained, so there will be no room.
        """
        while self.failure is None and not self.has_room:
            self._room.clear()
            self.hurry()
            await self._room.wait()
        if self.failure is not None:
            raise self.failure

    def hurry(self) -> None:
        """If updates wait for room, have the segment flushed to tier 2 at once instead of at the next interval."""
        if not self._room.is_set() and self.segment.tiered.length < self.tails[0].start:
            self.segment.is_urgent = True
            self.container.wake_flusher()

    def append(self, data: Reservation, addition: TailAddition, done: Callable[[HeadraceError | None], None]) -> None:
        """Append entries whose places are in `addition`. `data` and `done` are those of `SegmentContainer.append`."""
        segment = self.segment
        batches = segment.attribute(TABLE_BATCHES)
        self.container.append(segment, TABLE_BATCHES, batches, max(batches, 0) + 1, 0, data, done)
        addition.tail.enter(addition)
        self.freeze_if_full()

    def freeze_if_full(self) -> None:
        """Start a new tail if the only one is full, or has a large part of the segment."""
        segment, tail = self.segment, self.tails[0]
        replayed = segment.accepted.length - max(tail.start, segment.accepted.start_offset)
        if len(self.tails) == 1 and self._is_long(tail.memory_bytes, replayed):
            self.tails.insert(0, Tail(segment.accepted.length))

    def thaw(self) -> None:
        """Discard the full tail, whose entries the index has now."""
        del self.tails[1:]
        self.freeze_if_full()
        self._room.set()

    def begin_removal(self) -> None:
        """Retire the table. If the removal fails, the table must be loaded again."""
        self.is_being_removed = True
        self.retire(UnavailableError(f"table {self.segment.name} is being removed: try again"))

    def retire(self, error: HeadraceError) -> None:
        """Reject updates, new users and removals from now on, so that the table is soon without users and evicted."""
        self._retired_by = self.failure = error
        self._room.set()

    def check_stays(self) -> None:
        """Raise the error of `retire` if the table is retired."""
        if self._retired_by is not None:
            raise self._retired_by

    def check_current(self) -> None:
        """Raise an error if the table was evicted in use.

        The table that was loaded since may have got entries, or have moved those that this one knows.
        """
        if self.is_evicted:
            raise self.failure or UnavailableError(f"table {self.segment.name} must be loaded again: try again")

    def fail(self, error: HeadraceError) -> None:
        """Reject updates from now on, those that wait for room included. The error of `retire` stays."""
        if self._retired_by is None:
            self.failure = error
        self._room.set()

    def _is_full(self, memory_bytes: int) -> bool:
        return 2 * memory_bytes > self._limits.tail_memory_bytes

    def _is_long(self, memory_bytes: int, segment_bytes: int) -> bool:
        return self._is_full(memory_bytes) or 2 * segment_bytes > self._limits.replay_segment_bytes
