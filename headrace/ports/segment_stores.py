"""Operations of the controller on segments, in whichever segment store they are.

The adapter finds the owner of a segment's container, follows WrongHost, and retries a store that is restarting within
its deadline. Every operation may be repeated: creating what exists, sealing what is sealed, deleting and merging what
is gone, appending bytes that are stored there already and setting an attribute to the value that it has all succeed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX, EVENT_HEADER_BYTES

APPEND_BYTES_MAX = EVENT_BYTES_MAX + EVENT_HEADER_BYTES
"""Bytes of one conditional append: an event and its header."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Offsets in bytes; `last_modified_ms` since the Unix epoch."""

    name: str
    start_offset: int
    length: int
    is_sealed: bool
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class SegmentScaleRate:
    """Target rate of a segment as CreateSegment carries it: 0 none, 1 KB/s, 2 events/s."""

    scale_type: int = 0
    target_rate: int = 0


@dataclass(frozen=True, slots=True)
class AttributeBound:
    """Carry a request out unless the attribute of its segment is above `value_max`; one that is not set is not.

    The store compares and carries out in one step.
    """

    attribute_id: int
    value_max: int


class SegmentStores(Protocol):
    """All segment stores of a deployment, addressed by segment name.

    Every method raises UnavailableError if a store does not answer in time, and NotFoundError for a segment that
    does not exist, except for deletions and for sources of a merge, where a missing segment is success. A method for
    many segments sends all requests before it waits; if it raises, some of them may have been carried out.
    """

    def create_segment(self, name: str, rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None: ...

    def create_segments(self, names: Sequence[str], rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None: ...

    def seal_segment(self, name: str) -> None: ...

    def seal_segments(self, names: Sequence[str]) -> None: ...

    def truncate_segment(self, name: str, offset: int) -> None:
        """Removes the bytes before `offset`; InvalidRequestError if that is beyond the segment's end."""
        ...

    def truncate_segment_up_to(self, name: str, offset: int, bound: AttributeBound) -> bool:
        """As `truncate_segment`, within the bound; whether it was."""
        ...

    def delete_segment(self, name: str) -> None: ...

    def delete_segments(self, names: Sequence[str]) -> None: ...

    def delete_segment_up_to(self, name: str, bound: AttributeBound) -> bool:
        """Removes the segment, within the bound; whether it is gone."""
        ...

    def segment_info(self, name: str) -> SegmentInfo: ...

    def segment_infos(self, names: list[str]) -> list[SegmentInfo]: ...

    def locate_offsets(self, targets: Sequence[tuple[str, int]]) -> list[int]:
        """For each segment and target the first append boundary at or after the target, as far as boundaries are known.

        It is the segment's length if no such boundary is known. An append boundary is an event boundary.
        """
        ...

    def update_segment_policy(self, name: str, rate: SegmentScaleRate) -> None:
        """From now on the store compares the segment's traffic with this rate."""
        ...

    def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        """Appends each source as a whole to the target, in order, and removes it.

        A source that is gone counts as merged. At most 1,000 sources are merged in one step, all or none. Raises
        SealedError if the target is sealed, also when no source is left. Raises IllegalStateError, code
        "source_incomplete", if a source may lack bytes since a volume was lost (details: "segment"); nothing is merged.
        """
        ...

    def incomplete_segments(self, names: Sequence[str]) -> set[str]:
        """Those that do not exist, or may lack bytes since a volume was lost."""
        ...

    def append(self, name: str, data: bytes, expected_offset: int, incarnation: int = 0) -> int:
        """Puts `data` at `expected_offset` if the segment ends there; the offset behind the data.

        Succeeds also if exactly these bytes are stored there already, by an earlier attempt whose answer was lost.
        After an append for an incarnation the store refuses those for smaller ones.

        Raises:
            ConflictError: other bytes are stored there, or a later incarnation has appended (details: "offset", the
                segment's length).
            SealedError: the segment takes no more.
            InvalidRequestError: no data, or more than APPEND_BYTES_MAX; or the segment is a table.
        """
        ...

    def read(self, name: str, offset: int, length_max: int) -> bytes:
        """The bytes from `offset` on, `length_max` of them or as many as there are; never waits for more.

        Raises TruncatedError (details: "start_offset") if they were truncated away.
        """
        ...

    def get_attribute(self, name: str, attribute_id: int) -> int | None:
        """The value (64 bits, signed) of an attribute (an unsigned 128-bit id); None if it is not set."""
        ...

    def compare_and_set_attribute(self, name: str, attribute_id: int, value: int, expected: int | None) -> bool:
        """Sets the attribute if it is `expected` (None: not set); whether it is `value` now."""
        ...

    def set_attribute_up_to(
        self, name: str, attribute_id: int, value: int, expected: int | None, bound: AttributeBound
    ) -> bool:
        """As `compare_and_set_attribute`, within the bound."""
        ...

    def create_table_segment(self, name: str, key_length: int, rollover_size_bytes: int = 0) -> None:
        """`key_length` 0 allows keys of any length; one that exists is left as it is."""
        ...

    def delete_table_segment(self, name: str) -> None:
        """Removes the table with its entries; InvalidRequestError if the segment is not a table."""
        ...


def check_append(name: str, data: bytes) -> None:
    """Raises InvalidRequestError unless `data` may be appended at once."""
    if not 0 < len(data) <= APPEND_BYTES_MAX:
        raise InvalidRequestError(
            f"an append to segment {name} has 1 to {APPEND_BYTES_MAX} bytes, not {len(data)}",
            details={"segment": name, "bytes": len(data), "bytes_max": APPEND_BYTES_MAX},
        )
