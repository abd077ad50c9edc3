"""One table: the state that updates are checked against, and look-ups in it.

The newest entries lie in a tail in memory. State runs ahead of the log like all state of a container: whoever
answers from it waits until the log has caught up. Updates are checked one after the other, in the order in which
they came, and never wait for each other's durability.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from headrace.codec.table_entries import Place, decode_entries
from headrace.codec.wire_commands import NO_TABLE_OFFSET, NO_VERSION, NOT_EXISTS
from headrace.model.errors import ConflictError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.segmentstore.containers.attributes import TABLE_BATCHES, TABLE_KEY_LENGTH
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.operation_log import resolve
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.storage.storage_reader import StorageReader
from headrace.segmentstore.tables.batches import Batch
from headrace.segmentstore.tables.segment_reads import read_segment
from headrace.segmentstore.tables.tail import Tail

REPLAY_READ_BYTES: Final = 1 << 20


class Table:
    """A table in memory, for as long as somebody uses it or there is room."""

    def __init__(self, container: SegmentContainer, reader: StorageReader, segment: Segment) -> None:
        self.container = container
        self.reader = reader
        self.segment = segment
        self.key_length = segment.attribute(TABLE_KEY_LENGTH)
        self.order = asyncio.Lock()
        """Held while an update is checked and appended, and by whoever needs updates to stand still."""
        self.users = 0
        self.tail: Tail | None = None
        self._loading = asyncio.Lock()

    @property
    def memory_bytes(self) -> int:
        return self.tail.memory_bytes if self.tail else 0

    @property
    def entry_count(self) -> int:
        """Keys that the table has."""
        return self.tail.live if self.tail else 0

    async def ready(self) -> Tail:
        """Read what the table is, if that has not been done.

        Raises:
            NotFoundError: the segment was removed meanwhile.
            ThrottledError, UnavailableError, CorruptError: tier 2 does not answer, or not what was written.
        """
        if self.tail is None:
            async with self._loading:
                if self.tail is None:
                    self.tail = await self._replay(self.segment.start_offset)
        return self.tail

    async def _replay(self, start: int) -> Tail:
        tail = Tail(start)
        position, unread = start, b""
        while position < self.segment.length:
            length = min(REPLAY_READ_BYTES, self.segment.length - position)
            data = unread + await read_segment(self.segment, self.reader, position, length)
            entries, used = decode_entries(memoryview(data), position - len(unread))
            for key, place in entries:
                tail.put(key, place)
            position += length
            unread = data[used:]
        return tail

    # Look-ups

    async def find(self, key: bytes) -> Place | None:
        """The newest entry of a key, None if it has none or was removed; raises as `ready`."""
        return self._alive((await self.ready()).places.get(key))

    async def find_all(self, keys: Iterable[bytes]) -> dict[bytes, Place | None]:
        return {key: await self.find(key) for key in keys}

    def _alive(self, place: Place | None) -> Place | None:
        return None if place is None or place.removed or place.offset < self.segment.start_offset else place

    async def walk(self, first: bytes, last: bytes | None) -> AsyncIterator[tuple[bytes, Place]]:
        """The keys from `first` to `last`, both inclusive, in order of their bytes, each as it is when reached."""
        tail = await self.ready()
        for key in tail.keys(first, last):
            place = self._alive(tail.places[key])
            if place is not None:
                yield key, place

    def check_key(self, key: bytes) -> None:
        """Raises InvalidRequestError: the table has keys of another length."""
        if self.key_length and len(key) != self.key_length:
            raise InvalidRequestError(
                f"the keys of table {self.segment.name} have {self.key_length} bytes, this one has {len(key)}"
            )

    # Updates

    async def update(self, batch: Batch, expected_length: int = NO_TABLE_OFFSET) -> tuple[int, ...]:
        """Append a batch if all its conditions hold before it, and return when that is durable: the new versions.

        Raises:
            ConflictError: a key is missing (code "table_key_missing") or has another version ("table_key_version"), or
                the table has not the length `expected_length` ("table_offset", with `details["length"]`).
            InvalidRequestError: a key has a wrong length, or a version is none.
            NotFoundError, SealedError: the table is gone or takes no more.
            ThrottledError, UnavailableError, FencedError: as `SegmentContainer.append`, and as `ready`.
        """
        durable: asyncio.Future[None] | None = None
        try:
            async with self.order:
                await self.ready()
                wanted = {key for key, version, _, _ in batch.changes if version != NO_VERSION}
                known = await self.find_all(wanted)
                self._check(batch, known, expected_length)
                base = self.segment.length
                if not self._changes_nothing(batch):
                    durable = self._append(batch)
        except HeadraceError:
            await self.container.log.durable()  # what the answer rests on
            raise
        await (durable if durable is not None else self.container.log.durable())
        return tuple(base + position for _, _, position, _ in batch.changes)

    def _check(self, batch: Batch, known: dict[bytes, Place | None], expected_length: int) -> None:
        segment = self.segment
        if segment.removed:
            raise NotFoundError(f"table {segment.name} was removed", details={"segment": segment.name})
        if expected_length not in (NO_TABLE_OFFSET, segment.length):
            raise ConflictError(
                f"table {segment.name} has length {segment.length}, expected {expected_length}",
                details={"length": segment.length},
                code="table_offset",
            )
        for key, version, _, _ in batch.changes:
            self.check_key(key)
            if version == NO_VERSION:
                continue
            if version < NOT_EXISTS:
                raise InvalidRequestError(f"{version} is no version of a key")
            place = known[key]
            if place is None and version != NOT_EXISTS:
                raise ConflictError(
                    f"table {segment.name} has no key {key[:64]!r}, expected version {version}",
                    code="table_key_missing",
                )
            if place is not None and version != place.version:
                raise ConflictError(
                    f"key {key[:64]!r} of table {segment.name} has version {place.version}, expected {version}",
                    code="table_key_version",
                )

    def _changes_nothing(self, batch: Batch) -> bool:
        """Whether all that the batch does is to remove keys that are known not to be there."""
        places = self.tail.places if self.tail else {}
        return all(
            value_length < 0 and self._alive(places.get(key)) is None for key, _, _, value_length in batch.changes
        )

    def _append(self, batch: Batch) -> asyncio.Future[None]:
        """Accept the batch; the future ends with its durability."""
        if self.tail is None:
            raise AssertionError("a table is ready before it is updated")
        segment, log = self.segment, self.container.log
        base, batches = segment.length, segment.attribute(TABLE_BATCHES)
        durable = log.expect()
        data = batch.take_data()
        try:
            self.container.append(
                segment, TABLE_BATCHES, batches, max(batches, 0) + 1, 0, data,
                lambda error: resolve(durable) if error is None else None,  # a failed log tells all who expect it
            )  # fmt: skip
        except HeadraceError:
            durable.cancel()
            batch.data = data
            raise
        for key, _, position, value_length in batch.changes:
            self.tail.put(key, Place(base + position, base + position, value_length))
        return durable
