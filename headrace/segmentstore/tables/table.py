"""One table: the state that updates are checked against, and look-ups in it.

The newest entries are in tails in memory: one that takes updates, and perhaps one that is full and waits for its way
into the index. Older ones are in the index, of which memory has a few blocks. State runs ahead of the log like all
state of a container: whoever answers from it waits until the log has caught up. Updates are checked one after the
other, in the order in which they came, and never wait for each other's durability.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from headrace.codec.table_entries import Place, decode_entries
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.model.table_indexes import IndexRun
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.containers.attributes import TABLE_BATCHES, TABLE_KEY_LENGTH
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.tables.index_reader import IndexReader, Window
from headrace.segmentstore.tables.index_store import IndexRecord, IndexStore
from headrace.segmentstore.tables.limits import TableLimits
from headrace.segmentstore.tables.segment_reads import read_segment
from headrace.segmentstore.tables.tail import Tail, TailAddition
from headrace.segmentstore.tiering.storage_reader import StorageReader

REPLAY_READ_BYTES: Final = 1 << 20
LOOK_UPS_AT_ONCE_MAX: Final = 16


class Table:
    """A table in memory, for as long as somebody uses it or there is room. Nothing but `ready` before that is done.

    `order` is held while an update is checked and appended, and by whoever needs updates to stand still. `failure` is
    why the index cannot be kept any more: then the table takes no updates.
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

    @property
    def memory_bytes(self) -> int:
        return sum(tail.memory_bytes for tail in self.tails)

    @property
    def is_ready(self) -> bool:
        return self._record is not None

    @property
    def record(self) -> IndexRecord:
        if self._record is None:
            raise AssertionError("a table is ready before it is used")
        return self._record

    @property
    def runs(self) -> tuple[IndexRun, ...]:
        return self.record.index.runs

    @property
    def entry_count(self) -> int:
        """Keys that the table has. An index may count a key more than once, until its runs are merged."""
        newest, *full = self.tails
        covered = sum(
            not place.removed and key not in newest.places for tail in full for key, place in tail.places.items()
        )
        return newest.live + covered + sum(each.live for run in self.runs for each in run)

    @property
    def live_bytes(self) -> int:
        """What the newest entries take in the segment, or more: see `entry_count`."""
        return sum(tail.live_bytes for tail in self.tails) + sum(each.live_bytes for run in self.runs for each in run)

    async def ready(self) -> None:
        """Read what the table is, if that has not been done.

        Raises:
            NotFoundError: the segment was removed meanwhile.
            ThrottledError, UnavailableError, CorruptError: tier 2 does not answer, or not what was written.
        """
        if self._record is not None:
            return
        async with self._loading:
            if self._record is None:
                record = await self._index_store.load(self.segment)
                self.tails = [await self._replay(max(record.index.covered, self.segment.start_offset))]
                self._record = record
                self.freeze_if_full()

    async def _replay(self, start: int) -> Tail:
        tail = Tail(start)
        position, unread = start, b""
        while position < self.segment.length:
            length = min(REPLAY_READ_BYTES, self.segment.length - position)
            data = unread + await read_segment(self.segment, self.reader, position, length)
            entries, used = decode_entries(memoryview(data), position - len(unread))
            addition = TailAddition(tail)
            for key, place in entries:
                addition.put(key, place)
            tail.enter(addition)
            position += length
            unread = data[used:]
        return tail

    # Look-ups

    def peek(self, key: bytes) -> Place | None:
        """The newest entry that memory has of a key, which may be a removal."""
        for tail in self.tails:
            place = tail.places.get(key)
            if place is not None:
                return place
        return None

    async def find(self, key: bytes) -> Place | None:
        """The newest entry of a key; None if it has none or was removed. Raises as `ready`."""
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
        """As `find`, for many keys."""
        found = {key: self.alive(self.peek(key)) for key in keys}
        elsewhere = [key for key in found if self.peek(key) is None] if self.runs else []
        for first in range(0, len(elsewhere), LOOK_UPS_AT_ONCE_MAX):
            group = elsewhere[first : first + LOOK_UPS_AT_ONCE_MAX]
            found.update(zip(group, await asyncio.gather(*map(self.find, group)), strict=True))
        return found

    async def walk(self, first: bytes, last: bytes | None) -> AsyncIterator[tuple[bytes, Place]]:
        """The keys from `first` to `last`, both inclusive, in order of their bytes, each as it is when reached."""
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
            if self.runs is runs:  # else a tail may have become a run of which this knows nothing
                return window

    def _check_changed(self, runs: tuple[IndexRun, ...], error: NotFoundError) -> None:
        """An object may be gone only because the index does not have it any more."""
        if self.runs is runs:
            raise CorruptError(f"the index of table {self.segment.name} has lost an object: {error}") from error

    def alive(self, place: Place | None) -> Place | None:
        """None for what was removed; a compaction that truncated an entry has appended it again or found it dead."""
        return None if place is None or place.removed or place.offset < self.segment.start_offset else place

    def check_key(self, key: bytes) -> None:
        """Raises InvalidRequestError: the table has keys of another length."""
        if self.key_length and len(key) != self.key_length:
            raise InvalidRequestError(
                f"the keys of table {self.segment.name} have {self.key_length} bytes, this one has {len(key)}"
            )

    # Changes

    async def room(self) -> None:
        """Return when memory may hold more keys of this table.

        Raises:
            HeadraceError: the index cannot be written, so that it never will.
        """
        while self.failure is None and len(self.tails) > 1 and self._is_full(self.tails[0]):
            self._room.clear()
            self.hurry()
            await self._room.wait()
        if self.failure is not None:
            raise self.failure

    def hurry(self) -> None:
        """Do not let updates that wait for room wait for the time of the next flush as well."""
        if not self._room.is_set() and self.segment.storage_length < self.tails[0].start:
            self.segment.unstored_since_s = -math.inf
            self.container.tell_news()

    def append(self, data: Reservation, addition: TailAddition, done: Callable[[HeadraceError | None], None]) -> None:
        """Append entries, whose places in the newest tail are known; `data` and `done` as in
        `SegmentContainer.append`, which see."""
        segment = self.segment
        batches = segment.attribute(TABLE_BATCHES)
        self.container.append(segment, TABLE_BATCHES, batches, max(batches, 0) + 1, 0, data, done)
        addition.tail.enter(addition)
        self.freeze_if_full()

    def freeze_if_full(self) -> None:
        """Begin a new tail if the first one is full and there is no other."""
        segment, tail = self.segment, self.tails[0]
        replayed = segment.length - max(tail.start, segment.start_offset)
        if len(self.tails) == 1 and (self._is_full(tail) or 2 * replayed > self._limits.replay_segment_bytes):
            self.tails.insert(0, Tail(segment.length))

    def thaw(self) -> None:
        """Let go of the full tail, which the index has now."""
        del self.tails[1:]
        self.freeze_if_full()
        self._room.set()

    def give_up(self, error: HeadraceError) -> None:
        """Take no more updates."""
        self.failure = error
        self._room.set()

    def _is_full(self, tail: Tail) -> bool:
        return 2 * tail.memory_bytes > self._limits.tail_memory_bytes
