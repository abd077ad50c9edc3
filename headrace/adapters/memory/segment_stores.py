"""Segment stores in memory that keep offsets and flags but no bytes: enough for everything the controller asks."""

from __future__ import annotations

import threading
from dataclasses import replace

from headrace.model.errors import InvalidRequestError, NotFoundError, SealedError
from headrace.ports.clock import Clock
from headrace.ports.segment_stores import SegmentInfo, SegmentScaleRate


class MemorySegmentStores:
    """`ports.segment_stores.SegmentStores` for one process; safe for any number of threads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._segments: dict[str, SegmentInfo] = {}
        self._rates: dict[str, tuple[SegmentScaleRate, int]] = {}

    def create_segment(self, name: str, rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None:
        with self._lock:
            self._segments.setdefault(name, SegmentInfo(name, 0, 0, False, self._now_ms()))
            self._rates.setdefault(name, (rate, rollover_size_bytes))

    def seal_segment(self, name: str) -> None:
        with self._lock:
            info = self._info(name)
            if not info.is_sealed:
                self._segments[name] = replace(info, is_sealed=True, last_modified_ms=self._now_ms())

    def truncate_segment(self, name: str, offset: int) -> None:
        with self._lock:
            info = self._info(name)
            if not 0 <= offset <= info.length:
                raise InvalidRequestError(
                    f"segment {name} has {info.length} bytes: it cannot be truncated at {offset}",
                    details={"segment": name, "length": info.length, "offset": offset},
                )
            self._segments[name] = replace(info, start_offset=max(info.start_offset, offset))

    def delete_segment(self, name: str) -> None:
        with self._lock:
            self._segments.pop(name, None)
            self._rates.pop(name, None)

    def segment_info(self, name: str) -> SegmentInfo:
        with self._lock:
            return self._info(name)

    def segment_infos(self, names: list[str]) -> list[SegmentInfo]:
        with self._lock:
            return [self._info(name) for name in names]

    def append(self, name: str, length_bytes: int) -> int:
        """As if `length_bytes` were appended; the new length. What a writer does, beside the port.

        Raises:
            SealedError, NotFoundError: as a real segment store would refuse.
        """
        with self._lock:
            info = self._info(name)
            if info.is_sealed:
                raise SealedError(f"segment {name} is sealed", details={"segment": name, "length": info.length})
            self._segments[name] = replace(info, length=info.length + length_bytes, last_modified_ms=self._now_ms())
            return info.length + length_bytes

    def names(self) -> list[str]:
        """Every segment that exists, in order."""
        with self._lock:
            return sorted(self._segments)

    def creation_settings(self, name: str) -> tuple[SegmentScaleRate, int]:
        """The scale rate and the rollover size in bytes with which the segment was created."""
        with self._lock:
            self._info(name)
            return self._rates[name]

    def _info(self, name: str) -> SegmentInfo:
        info = self._segments.get(name)
        if info is None:
            raise NotFoundError(f"there is no segment {name}", details={"segment": name})
        return info

    def _now_ms(self) -> int:
        return self._clock.now_ms() if self._clock else 0
