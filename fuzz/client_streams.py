"""The streams that the stores of a random client program serve: segments, scaling, and transactions.

All stores share this state. It says what is stored, so a store that loses a reply has still done what it was asked.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fuzz.client_patches import now_us
from fuzz.randomness import Random
from headrace import wire
from headrace.model.names import segment_name, transaction_segment_name
from headrace.model.segments import KeyRange, equal_ranges, segment_id
from headrace.model.transactions import TransactionState

SCOPE: Final = "scope"
STORES: Final = 3
SEGMENTS_MAX: Final = 40
_ACTIVE_MAX: Final = 6
_COMMITTED_POLL_S: Final = 0.01

OnStored = Callable[["StoredSegment", bytes], None]


@dataclass(slots=True, eq=False)
class StoredSegment:
    """One segment. Transaction segments and transient ones are served by the store of their parent."""

    name: str
    key_range: KeyRange
    predecessors: Sequence[int] = ()
    parent: StoredSegment | None = None
    successors: list[int] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    is_sealed: bool = False
    is_deleted: bool = False
    writers: dict[int, int] = field(default_factory=dict)
    """The last event number of each writer."""
    readers: dict[Callable[[], None], None] = field(default_factory=dict)
    """Called after each change, for reads that wait."""
    place: int = 0
    starts: list[int] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)

    @property
    def owner(self) -> int:
        """The number of the store that serves it."""
        return self.place if self.parent is None else self.parent.owner

    def last_number(self, writer_id: int) -> int:
        return self.writers.get(writer_id, wire.NO_EVENT_NUMBER)

    def extend(self, data: bytes) -> None:
        self.starts.append(len(self.data))
        self.times_us.append(now_us())
        self.data += data
        self.changed()

    def stored_at_us(self, offset: int) -> int:
        """When the byte at an offset was stored; now, if it is still to come."""
        if offset >= len(self.data):
            return now_us()
        return self.times_us[bisect_right(self.starts, offset) - 1]

    def locate(self, offset: int, ordering: int) -> tuple[int, int]:
        """Where the first append begins that is at the offset or behind and not older, and when it was stored."""
        found = max(bisect_left(self.starts, offset), bisect_left(self.times_us, ordering))
        if found == len(self.starts):
            return len(self.data), now_us()
        return self.starts[found], self.times_us[found]

    def changed(self) -> None:
        for look in list(self.readers):
            look()


@dataclass(slots=True, eq=False)
class StoredTransaction:
    """A transaction, with the segments in which its events wait for the commit."""

    text: str
    epoch: int
    lease_end_ms: int
    parents: tuple[int, ...]
    state: TransactionState = TransactionState.OPEN
    segments: dict[int, StoredSegment] = field(default_factory=dict)
    """Those that were asked for, by the id of the parent."""

    def segment_name(self, stream: StoredStream, parent: int) -> str:
        return transaction_segment_name(stream.segments[parent].name, int(self.text, 16))


class StoredStream:
    """A stream. `on_stored` hears of all bytes that become readable, with their segment."""

    def __init__(self, name: str, random: Random, segments: int, on_stored: OnStored) -> None:
        self.name = name
        self.epoch = 0
        self.is_sealed = False
        self.begins_transactions = True
        self.segments: dict[int, StoredSegment] = {}
        self.by_name: dict[str, StoredSegment] = {}
        self.transactions: dict[str, StoredTransaction] = {}
        self._random = random
        self._on_stored = on_stored
        self._changing = asyncio.Lock()
        self._number = 0
        self.active = self._create(equal_ranges(segments), ())
        self.first = tuple(self.active)

    def add(self, segment: StoredSegment) -> None:
        self.by_name[segment.name] = segment

    def remove(self, segment: StoredSegment) -> None:
        segment.is_deleted = True
        self.by_name.pop(segment.name, None)
        segment.changed()

    def append(self, segment: StoredSegment, data: bytes) -> None:
        segment.extend(data)
        if segment.parent is None:
            self._on_stored(segment, data)

    async def scale(self, pause: Callable[[], float]) -> bool:
        """Split or merge segments. Each step comes after a pause. Returns whether there was anything to do."""
        async with self._changing:
            if self.is_sealed or len(self.segments) >= SEGMENTS_MAX:
                return False
            old, ranges = self._choice()
            self.epoch += 1
            new = self._create(ranges, old)
            await asyncio.sleep(pause())
            for each in old:
                self._seal(each)
                await asyncio.sleep(pause())
            self._replace(old, new)
            return True

    async def seal(self, pause: Callable[[], float]) -> None:
        """Abort the open transactions, wait for those that are being committed, and seal the segments."""
        self.begins_transactions = False
        for transaction in self.transactions.values():
            if transaction.state is TransactionState.OPEN:
                self.abort(transaction)
        while any(transaction.state is TransactionState.COMMITTING for transaction in self.transactions.values()):
            await asyncio.sleep(_COMMITTED_POLL_S)
        async with self._changing:
            for each in self.active:
                self._seal(each)
                await asyncio.sleep(pause())
            self.is_sealed = True

    async def commit(self, transaction: StoredTransaction, pause: Callable[[], float]) -> None:
        """Merge the events of a transaction into the stream, which returns to its epoch for that."""
        async with self._changing:
            await asyncio.sleep(pause())
            targets = {parent: parent for parent in transaction.parents}
            active = list(self.active)
            is_rolling = set(transaction.parents) != set(active)
            if is_rolling:
                self.epoch += 1
                ranges = [self.segments[parent].key_range for parent in transaction.parents]
                new = self._create(ranges, active)
                targets = dict(zip(transaction.parents, new, strict=True))
            for parent, segment in transaction.segments.items():
                segment.is_sealed = True
                if segment.data:
                    self.append(self.segments[targets[parent]], bytes(segment.data))
                self.remove(segment)
            if is_rolling:
                self._roll(active, list(targets.values()))
            transaction.state = TransactionState.COMMITTED

    def abort(self, transaction: StoredTransaction) -> None:
        transaction.state = TransactionState.ABORTED
        for segment in transaction.segments.values():
            self.remove(segment)

    def contents(self) -> Iterable[tuple[StoredSegment, bytes]]:
        for segment in self.segments.values():
            yield segment, bytes(segment.data)

    def _roll(self, active: list[int], between: list[int]) -> None:
        """Replace the active segments by those with the transaction, and these by copies of the active ones."""
        for each in [*active, *between]:
            self._seal(each)
        self._replace(active, between)
        self.epoch += 1
        self._replace(between, self._create([self.segments[each].key_range for each in active], between))

    def _create(self, ranges: Sequence[KeyRange], old: Sequence[int]) -> list[int]:
        new = []
        for key_range in ranges:
            identifier = segment_id(self.epoch, self._number)
            self._number += 1
            before = [each for each in old if self.segments[each].key_range.overlaps(key_range)]
            segment = StoredSegment(segment_name(SCOPE, self.name, identifier), key_range, before)
            segment.place = self._random.randrange(STORES)
            self.segments[identifier] = segment
            self.add(segment)
            new.append(identifier)
        return new

    def _replace(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Record which segments follow."""
        for identifier in new:
            for predecessor in self.segments[identifier].predecessors:
                self.segments[predecessor].successors.append(identifier)
        self.active = [each for each in self.active if each not in old] + list(new)

    def _seal(self, identifier: int) -> None:
        self.segments[identifier].is_sealed = True
        self.segments[identifier].changed()

    def _choice(self) -> tuple[list[int], list[KeyRange]]:
        """Segments to replace, and the key ranges of those that replace them."""
        random = self._random
        active = sorted(self.active, key=lambda identifier: self.segments[identifier].key_range)
        if len(active) > 1 and (len(active) >= _ACTIVE_MAX or random.random() < 0.5):
            first = random.randrange(len(active) - 1)
            old = active[first : first + 2]
            low, high = self.segments[old[0]].key_range.low, self.segments[old[1]].key_range.high
            return old, [KeyRange(low, high)]
        identifier = random.choice(active)
        key_range = self.segments[identifier].key_range
        if random.random() < 0.2:
            return [identifier], [key_range]
        middle = (key_range.low + key_range.high) / 2
        return [identifier], [KeyRange(key_range.low, middle), KeyRange(middle, key_range.high)]
