"""The records of a stream that never change once written: its epochs, its long tags and its sealed segments.

They are cached in memory, within a bound. The cache is keyed by the incarnation of the stream, so that a stream that is
deleted and created again never sees the records of its former incarnation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.metadata.bounded_cache import BoundedCache
from headrace.metadata.record_layout import decoded, stream_partition, time_prefix, versioned
from headrace.metadata.stream import (
    EpochReference,
    TagsReference,
    decode_epoch,
    decode_stream_tags,
    epoch_body,
    epoch_key,
    stream_tags_key,
)
from headrace.model.epochs import Epoch
from headrace.model.errors import NotFoundError
from headrace.model.names import scoped_stream_name
from headrace.model.segments import segment_epoch, segment_number
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Create, Delete, Key, MetadataStore, Record, Replace

# Sizes of sealed segments, and the epoch that replaced each: one record for a block of segment numbers and epochs.
#
# Numbers alone are not enough: a rolling commit creates segments with new epochs and old numbers. A record only gains
# entries. A stream that is sealed as a whole has segments that no epoch replaced. Until the seal has ended, such an
# entry may still gain the epoch of a commit that replaces the segment; otherwise an entry never changes.

NUMBERS_PER_SHARD = 400
EPOCHS_PER_SHARD = 16
"""Together they keep a record below BODY_BYTES_MAX: an entry takes 54 bytes at most."""

Shard = tuple[int, int]
_SEALED_SEGMENTS_PREFIX = "sealed/"


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """Where a segment ended, in bytes; `replaced_in` is the number of an epoch, None at the end of the stream."""

    length: int
    replaced_in: int | None


def shard_of_segment(identifier: int) -> Shard:
    """The block of numbers, and the block of epochs in which segments with these numbers began."""
    return segment_number(identifier) // NUMBERS_PER_SHARD, segment_epoch(identifier) // EPOCHS_PER_SHARD


def sealed_segments_sort(shard: Shard) -> str:
    return f"{_SEALED_SEGMENTS_PREFIX}{shard[0]:010d}/{shard[1]:010d}"


def sealed_segments_key(scope: str, stream: str, shard: Shard) -> Key:
    return Key(stream_partition(scope, stream), sealed_segments_sort(shard))


def sealed_segments_body(sealed: Mapping[int, SealedSegment]) -> dict[str, Any]:
    return versioned(
        segments={str(identifier): [sealed[identifier].length, sealed[identifier].replaced_in] for identifier in sealed}
    )


def decode_sealed_segments(body: Body) -> dict[int, SealedSegment]:
    return decoded("sealed segments", body, _sealed_segments)


def extend_sealed_segments(
    store: MetadataStore, stream: Stream, shard: Shard, sealed: Mapping[int, SealedSegment]
) -> Create | Replace | None:
    """The write that adds entries to a shard; None if it has them all. One read.

    Present entries stay as they are, but one without an epoch gains it.
    """
    key = sealed_segments_key(stream.scope, stream.name, shard)
    record = store.get(key)
    if record is None:
        return Create(key, sealed_segments_body(sealed))
    known = decode_sealed_segments(record.body)
    ended = {identifier: end for identifier, end in known.items() if end.replaced_in is not None}
    extended = {**known, **sealed, **ended}
    return None if extended == known else Replace(key, sealed_segments_body(extended), record.version)


def _sealed_segments(body: Body) -> dict[int, SealedSegment]:
    return {
        int(identifier): SealedSegment(int(length), None if replaced_in is None else int(replaced_in))
        for identifier, (length, replaced_in) in body["segments"].items()
    }


# When each epoch of a stream began: sorted by time, so that one read finds the epoch of a time.

_PREFIX = "history/"
HISTORY_FIRST = _PREFIX
"""Lower bound of the sort keys of all entries."""


def history_sort(time_ms: int) -> str:
    """Sorts as the times do; also the upper bound of a query for what was at `time_ms`."""
    return f"{_PREFIX}{time_prefix(time_ms)}"


def history_time(sort: str) -> int:
    """When the epoch of this record began, in milliseconds since the Unix epoch."""
    return int(sort.removeprefix(_PREFIX))


def history_key(scope: str, stream: str, time_ms: int) -> Key:
    return Key(stream_partition(scope, stream), history_sort(time_ms))


def history_body(epoch_number: int) -> dict[str, Any]:
    return versioned(epoch=epoch_number)


def decode_history(body: Body) -> int:
    """The number of the epoch."""
    return decoded("history", body, lambda fields: int(fields["epoch"]))


def read_history(record: Record) -> int:
    """The number of the epoch."""
    return decode_history(record.body)


CACHED_SEGMENTS_MAX = 100_000
"""Segments in all cached epochs together: about 30 MB of memory."""

CACHED_SEALED_SEGMENTS_MAX = 200_000

CACHED_TAGS_BYTES_MAX = 8 * 1024 * 1024
"""Long tags of all streams together, in UTF-8: those of 128 streams with the longest that are allowed."""

RECORDS_PER_READ = 100

_Incarnation = tuple[str, int]
"""The scoped name of a stream and the first segment number of this incarnation of it."""


class HistoryRecords:
    """Reads the history of streams through a cache: a record that is in the cache is not read again."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._epochs: BoundedCache[tuple[_Incarnation, int], Epoch] = BoundedCache(CACHED_SEGMENTS_MAX, _epoch_weight)
        self._sealed: BoundedCache[tuple[_Incarnation, int], SealedSegment] = BoundedCache(
            CACHED_SEALED_SEGMENTS_MAX, lambda _: 1
        )
        self._tags: BoundedCache[TagsReference, tuple[str, ...]] = BoundedCache(CACHED_TAGS_BYTES_MAX, _tags_weight)

    def active_epoch(self, reference: EpochReference) -> Epoch | None:
        """The epoch that a current record names; one read unless it is cached. None if it no longer exists."""
        name = scoped_stream_name(reference.scope, reference.stream)
        place = (name, reference.first_segment_number), reference.number
        known = self._epochs.get(place)
        if known is not None and reference.is_of(known):
            return known
        record = self._store.get(epoch_key(reference.scope, reference.stream, reference.number))
        epoch = decode_epoch(record.body) if record else None
        if epoch is None or not reference.is_of(epoch):
            return None
        self._epochs.put(place, epoch)
        return epoch

    def tags(self, reference: TagsReference) -> tuple[str, ...] | None:
        """The tags that a current record names: one read unless they are cached. None if they no longer exist."""
        known = self._tags.get(reference)
        if known is not None:
            return known
        key = stream_tags_key(reference.scope, reference.stream, reference.first_segment_number, reference.version)
        record = self._store.get(key)
        if record is None:
            return None
        tags = decode_stream_tags(record.body)
        self._tags.put(reference, tags)
        return tags

    def remember(self, stream: Stream, tags_version: int | None) -> None:
        """Cache the active epoch and the long tags of a stream whose record was just written."""
        self._epochs.put((_incarnation(stream), stream.epoch.number), stream.epoch)
        if tags_version is not None:
            reference = TagsReference(stream.scope, stream.name, stream.first_segment_number, tags_version)
            self._tags.put(reference, stream.configuration.tags)

    def epoch(self, stream: Stream, number: int) -> Epoch:
        """Raises NotFoundError if the stream never had this epoch, or no longer has it because it is being deleted."""
        return next(self.epochs(stream, range(number, number + 1)))

    def epochs(self, stream: Stream, numbers: Sequence[int]) -> Iterator[Epoch]:
        """These epochs in this order, read in batches during the iteration. Raises NotFoundError as `epoch` does."""
        for start in range(0, len(numbers), RECORDS_PER_READ):
            yield from self._epoch_batch(stream, numbers[start : start + RECORDS_PER_READ])

    def epoch_at(self, stream: Stream, time_ms: int) -> Epoch:
        """The epoch that was active at `time_ms` since the Unix epoch; the first one for a time before the creation."""
        if time_ms >= stream.epoch.creation_time_ms:
            return stream.epoch
        page = self._store.query(
            stream_partition(stream.scope, stream.name),
            first=HISTORY_FIRST,
            last=history_sort(max(time_ms, stream.creation_time_ms)),
            limit=1,
            descending=True,
        )
        if not page.records:
            raise NotFoundError(f"stream {stream.scoped_name} is being deleted: its history is gone")
        return self.epoch(stream, decode_history(page.records[0].body))

    def sealed_segments(self, stream: Stream, identifiers: Sequence[int]) -> dict[int, SealedSegment]:
        """The sealed segments among these, by id. Segments without a record of their sealing are left out."""
        incarnation = _incarnation(stream)
        segments: dict[int, SealedSegment] = {}
        for identifier in identifiers:
            cached = self._sealed.get((incarnation, identifier))
            if cached is not None:
                segments[identifier] = cached
        missing = [identifier for identifier in identifiers if identifier not in segments]
        if missing:
            segments |= self._read_sealed(stream, missing)
        return segments

    def _read_sealed(self, stream: Stream, identifiers: Sequence[int]) -> dict[int, SealedSegment]:
        shards = sorted({shard_of_segment(identifier) for identifier in identifiers})
        wanted, segments = set(identifiers), {}
        for start in range(0, len(shards), RECORDS_PER_READ):
            batch = shards[start : start + RECORDS_PER_READ]
            for record in self._store.get_many(
                [sealed_segments_key(stream.scope, stream.name, shard) for shard in batch]
            ):
                for identifier, sealed in decode_sealed_segments(record.body).items() if record else ():
                    if sealed.replaced_in is not None or stream.state.is_sealed:
                        self._sealed.put((_incarnation(stream), identifier), sealed)
                    if identifier in wanted:
                        segments[identifier] = sealed
        return segments

    def _epoch_batch(self, stream: Stream, numbers: Sequence[int]) -> list[Epoch]:
        incarnation = _incarnation(stream)
        epochs = {number: self._epochs.get((incarnation, number)) for number in numbers}
        if stream.epoch.number in epochs:
            epochs[stream.epoch.number] = stream.epoch
        missing = [number for number, known in epochs.items() if known is None]
        records = (
            self._store.get_many([epoch_key(stream.scope, stream.name, number) for number in missing])
            if missing
            else []
        )
        for number, record in zip(missing, records, strict=True):
            epoch = decode_epoch(record.body) if record else None
            if epoch is None or _is_of_later_incarnation(stream, epoch):
                raise NotFoundError(
                    f"stream {stream.scoped_name} has no epoch {number}",
                    details={"epoch": number, "currentEpoch": stream.epoch.number},
                )
            self._epochs.put((incarnation, number), epoch)
            epochs[number] = epoch
        return [known for number in numbers if (known := epochs[number]) is not None]


def create_epoch(stream: Stream, epoch: Epoch) -> tuple[Create, Create]:
    """The writes that record an epoch: the epoch itself, and its entry in the index by time."""
    return (
        Create(epoch_key(stream.scope, stream.name, epoch.number), epoch_body(epoch)),
        Create(history_key(stream.scope, stream.name, epoch.creation_time_ms), history_body(epoch.number)),
    )


def delete_epoch(stream: Stream, epoch: Epoch) -> tuple[Delete, Delete]:
    """The writes that delete the two records of `create_epoch`."""
    return (
        Delete(epoch_key(stream.scope, stream.name, epoch.number), None),
        Delete(history_key(stream.scope, stream.name, epoch.creation_time_ms), None),
    )


def _is_of_later_incarnation(stream: Stream, epoch: Epoch) -> bool:
    """Whether a stream that was deleted and created again since `stream` was read has written this epoch.

    Its segment numbers tell: they continue to grow from one incarnation to the next.
    """
    return epoch.number <= stream.epoch.number and epoch.next_segment_number > stream.epoch.next_segment_number


def _incarnation(stream: Stream) -> _Incarnation:
    return stream.scoped_name, stream.first_segment_number


def _tags_weight(tags: tuple[str, ...]) -> int:
    return sum(len(tag.encode()) for tag in tags)


def _epoch_weight(epoch: Epoch) -> int:
    return len(epoch.segments) + len(epoch.replaced)
