"""Segment stores in memory: offsets, flags, bytes and attributes, enough for all requests of the controller."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.model.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    TruncatedError,
    source_incomplete,
)
from headrace.ports.clock import Clock
from headrace.ports.segment_stores import AttributeBound, SegmentInfo, SegmentScaleRate, check_append


@dataclass(slots=True)
class _Segment:
    """`runs` are bytes with the offset where they start; the zeros between two runs are not stored.

    `boundaries` are 0 and the offsets at which an append or a merge ended, ascending.
    """

    info: SegmentInfo
    rate: SegmentScaleRate
    rollover_size_bytes: int
    runs: list[tuple[int, bytes]] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=lambda: [0])
    attributes: dict[int, int] = field(default_factory=dict)
    appended_for: int = 0
    table_key_length: int | None = None
    may_lack_bytes: bool = False


class MemorySegmentStores:
    """`ports.segment_stores.SegmentStores` for one process; safe for any number of threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._segments: dict[str, _Segment] = {}

    def create_segment(self, name: str, rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None:
        self.create_segments([name], rate, rollover_size_bytes)

    def create_segments(self, names: Sequence[str], rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None:
        with self._lock:
            for name in names:
                self._segments.setdefault(name, self._new_segment(name, rate, rollover_size_bytes))

    def seal_segment(self, name: str) -> None:
        self.seal_segments([name])

    def seal_segments(self, names: Sequence[str]) -> None:
        with self._lock:
            present = [name for name in names if name in self._segments]
            for name in present:
                segment = self._segments[name]
                if not segment.info.is_sealed:
                    segment.info = replace(segment.info, is_sealed=True, last_modified_ms=self._now_ms())
            for name in names:
                self._segment(name)

    def truncate_segment(self, name: str, offset: int) -> None:
        self._truncate(name, offset, None)

    def truncate_segment_up_to(self, name: str, offset: int, bound: AttributeBound) -> bool:
        return self._truncate(name, offset, bound)

    def _truncate(self, name: str, offset: int, bound: AttributeBound | None) -> bool:
        with self._lock:
            segment = self._segment(name)
            if _is_above(segment, bound):
                return False
            info = segment.info
            if not 0 <= offset <= info.length:
                raise InvalidRequestError(
                    f"segment {name} has {info.length} bytes: it cannot be truncated at {offset}",
                    details={"segment": name, "length": info.length, "offset": offset},
                )
            segment.info = replace(info, start_offset=max(info.start_offset, offset))
            return True

    def delete_segment(self, name: str) -> None:
        self.delete_segments([name])

    def delete_segments(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._segments.pop(name, None)

    def lose_volume(self, *names: str) -> None:
        """The volume under these segments is lost: they may lack bytes."""
        with self._lock:
            for name in names:
                self._segments[name].may_lack_bytes = True

    def delete_segment_up_to(self, name: str, bound: AttributeBound) -> bool:
        with self._lock:
            segment = self._segments.get(name)
            if segment is not None and _is_above(segment, bound):
                return False
            self._segments.pop(name, None)
            return True

    def segment_info(self, name: str) -> SegmentInfo:
        return self.segment_infos([name])[0]

    def segment_infos(self, names: list[str]) -> list[SegmentInfo]:
        with self._lock:
            return [self._segment(name).info for name in names]

    def locate_offsets(self, targets: Sequence[tuple[str, int]]) -> list[int]:
        with self._lock:
            return [_boundary_from(self._segment(name), target) for name, target in targets]

    def update_segment_policy(self, name: str, rate: SegmentScaleRate) -> None:
        with self._lock:
            self._segment(name).rate = rate

    def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        with self._lock:
            segment = self._appendable(target)
            for name in sources:
                if name in self._segments and self._segments[name].may_lack_bytes:
                    raise source_incomplete(name)
            for name in sources:
                source = self._segments.pop(name, None)
                if source is not None:
                    segment.runs += [(segment.info.length + offset, data) for offset, data in source.runs]
                    self._lengthen(segment, source.info.length)

    def incomplete_segments(self, names: Sequence[str]) -> set[str]:
        with self._lock:
            return {name for name in names if name not in self._segments or self._segments[name].may_lack_bytes}

    def append(self, name: str, data: bytes, expected_offset: int, incarnation: int = 0) -> int:
        check_append(name, data)
        with self._lock:
            segment = self._segment(name)
            if segment.table_key_length is not None:
                raise InvalidRequestError(f"segment {name} is a table: update its entries")
            length, end = segment.info.length, expected_offset + len(data)
            if segment.info.start_offset <= expected_offset and end <= length:
                if _bytes_of(segment, expected_offset, end) == data:
                    return end
            elif expected_offset == length and incarnation >= segment.appended_for:
                self._appendable(name).appended_for = incarnation
                segment.runs.append((length, bytes(data)))
                self._lengthen(segment, len(data))
                return end
            raise ConflictError(
                f"segment {name} has length {length}, expected {expected_offset}",
                details={"segment": name, "offset": length},
            )

    def read(self, name: str, offset: int, length_max: int) -> bytes:
        with self._lock:
            segment = self._segment(name)
            if offset < segment.info.start_offset:
                raise TruncatedError(
                    f"segment {name} begins at offset {segment.info.start_offset} now; what lay before is gone",
                    details={"segment": name, "start_offset": segment.info.start_offset, "offset": offset},
                )
            return _bytes_of(segment, offset, min(offset + length_max, segment.info.length))

    def get_attribute(self, name: str, attribute_id: int) -> int | None:
        with self._lock:
            return self._segment(name).attributes.get(attribute_id)

    def compare_and_set_attribute(self, name: str, attribute_id: int, value: int, expected: int | None) -> bool:
        return self._set_attribute(name, attribute_id, value, expected, None)

    def set_attribute_up_to(
        self, name: str, attribute_id: int, value: int, expected: int | None, bound: AttributeBound
    ) -> bool:
        return self._set_attribute(name, attribute_id, value, expected, bound)

    def _set_attribute(
        self, name: str, attribute_id: int, value: int, expected: int | None, bound: AttributeBound | None
    ) -> bool:
        with self._lock:
            segment = self._segment(name)
            attributes = segment.attributes
            if attributes.get(attribute_id) == expected and not _is_above(segment, bound):
                attributes[attribute_id] = value
            return attributes.get(attribute_id) == value

    def create_table_segment(self, name: str, key_length: int, rollover_size_bytes: int = 0) -> None:
        with self._lock:
            made = self._new_segment(name, SegmentScaleRate(), rollover_size_bytes)
            made.table_key_length = key_length
            self._segments.setdefault(name, made)

    def delete_table_segment(self, name: str) -> None:
        with self._lock:
            segment = self._segments.get(name)
            if segment is not None and segment.table_key_length is None:
                raise InvalidRequestError(f"segment {name} is not a table", details={"segment": name})
            self._segments.pop(name, None)

    # Operations of writers and tests, in addition to the port

    def extend(self, name: str, length_bytes: int) -> int:
        """As if a writer appended `length_bytes` zeros; the new length.

        Raises:
            SealedError, NotFoundError: as a real segment store would refuse.
        """
        with self._lock:
            segment = self._appendable(name)
            self._lengthen(segment, length_bytes)
            return segment.info.length

    def names(self) -> list[str]:
        """Every segment that exists, in order."""
        with self._lock:
            return sorted(self._segments)

    def creation_settings(self, name: str) -> tuple[SegmentScaleRate, int]:
        """The scale rate of the segment, and the rollover size in bytes with which it was created."""
        with self._lock:
            segment = self._segment(name)
            return segment.rate, segment.rollover_size_bytes

    def table_key_length(self, name: str) -> int | None:
        """The key length with which a table was created; None for a segment that is not a table."""
        with self._lock:
            return self._segment(name).table_key_length

    def _new_segment(self, name: str, rate: SegmentScaleRate, rollover_size_bytes: int) -> _Segment:
        return _Segment(SegmentInfo(name, 0, 0, False, self._now_ms()), rate, rollover_size_bytes)

    def _segment(self, name: str) -> _Segment:
        segment = self._segments.get(name)
        if segment is None:
            raise NotFoundError(f"there is no segment {name}", details={"segment": name})
        return segment

    def _appendable(self, name: str) -> _Segment:
        segment = self._segment(name)
        if segment.info.is_sealed:
            raise SealedError(f"segment {name} is sealed", details={"segment": name, "length": segment.info.length})
        return segment

    def _lengthen(self, segment: _Segment, length_bytes: int) -> None:
        info = segment.info
        segment.info = replace(info, length=info.length + length_bytes, last_modified_ms=self._now_ms())
        segment.boundaries.append(segment.info.length)

    def _now_ms(self) -> int:
        return self._clock.now_ms() if self._clock else 0


def _boundary_from(segment: _Segment, target: int) -> int:
    """The first boundary at or after `target` that was not truncated, else the segment's length."""
    target = max(target, segment.info.start_offset)
    index = bisect_left(segment.boundaries, target)
    return segment.boundaries[index] if index < len(segment.boundaries) else segment.info.length


def _is_above(segment: _Segment, bound: AttributeBound | None) -> bool:
    value = None if bound is None else segment.attributes.get(bound.attribute_id)
    return bound is not None and value is not None and value > bound.value_max


def _bytes_of(segment: _Segment, start: int, end: int) -> bytes:
    """The bytes between two offsets, with zeros outside of the runs."""
    content = bytearray(max(0, end - start))
    for offset, data in segment.runs:
        first, last = max(offset, start), min(offset + len(data), end)
        if first < last:
            content[first - start : last - start] = data[first - offset : last - offset]
    return bytes(content)
