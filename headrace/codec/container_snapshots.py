"""A container's metadata as bytes: a header line and one line of JSON per segment, cut into parts for the log.

Evicted segments are not in it: each has a record of its own (`metadata/evicted_segment.py`).

Attribute ids travel as hex text and values as JSON integers, which Python reads back exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from headrace.model.errors import CorruptError
from headrace.model.segment_attributes import REVISION_MARK

_Kind = TypeVar("_Kind")

FORMAT_VERSION: Final = 1
FORMAT_VERSION_RECORDS: Final = 2
"""The snapshot has evicted segments in addition to those in it. A reader that does not know of them must refuse it."""

PART_BYTES: Final = 1 << 20
"""A part is closed once it holds this much; it exceeds it by at most one segment's line."""


NO_IDS: Final[frozenset[int]] = frozenset()
"""The empty set that nearly all segments share: Python would make a new one of 216 bytes for each segment."""


class DirectoryPlace(NamedTuple):
    """From `offset` of the segment `name` on, as the chunk directory has it."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class MergedRange:
    """`length` bytes that belong at `offset` of a segment, came by one merge, and are complete in tier 2 at `place`,
    under the name of the segment that they came from.

    `inner` are the ranges of that segment, in its own offsets, which came to it by merges before and are to be moved
    there first. The storage writer may have moved any of them unheard. `ordering` is the merge's place in time.
    """

    offset: int
    length: int
    place: DirectoryPlace
    ordering: int
    inner: tuple[MergedRange, ...] = ()

    @property
    def end(self) -> int:
        return self.offset + self.length


class WritersGone(NamedTuple):
    """For how long writers of a segment have been gone, as the owner of the container with this `epoch` counted it.

    `periods` has a number for each attribute that a writer may have left, by ascending id: how many periods after the
    opening of the container the writer was gone, or -1 if it was connected.
    """

    epoch: int
    periods: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SegmentSnapshot:
    """What the log no longer has to tell about a segment. All its bytes up to `length` are in tier 2 by the time a
    log starts with this snapshot. Only snapshots in tier 2 have `merged` ranges.

    `client_attributes` are ids that clients set by request, which no expiry of writers touches. `forgot_writers`: the
    event numbers of some writers have expired. Only records of segments that are not in memory have `writers_gone`.

    `whole_length` is what a source of a merge had when it was merged; None for other segments. `may_lack_bytes`: a
    transaction's segment was restored without a log, and bytes that it had may be lost."""

    number: int
    name: str
    start_offset: int
    length: int
    sealed: bool
    last_modified_ms: int
    attributes: Mapping[int, int]
    merged: tuple[MergedRange, ...] = ()
    client_attributes: frozenset[int] = NO_IDS
    forgot_writers: bool = False
    writers_gone: WritersGone | None = None
    whole_length: int | None = None
    may_lack_bytes: bool = False


def without_lost_mark(segment: SegmentSnapshot, end: int) -> SegmentSnapshot:
    """The segment without its mark if that is behind `end`, where the bytes that are left of it end.

    Readers would begin at bytes that are not there, or inside an entry that is written there later.
    """
    if segment.attributes.get(REVISION_MARK, 0) <= end:
        return segment
    attributes = {number: value for number, value in segment.attributes.items() if number != REVISION_MARK}
    return replace(segment, attributes=attributes, client_attributes=segment.client_attributes - {REVISION_MARK})


@dataclass(frozen=True, slots=True)
class ContainerSnapshot:
    """`deletions` maps names of segments whose chunk directory is still to be emptied to their numbers.

    `has_records`: records of segments may have been written, and there may be segments that are only in one.
    `doubtful_before`: records that were written under a lower epoch may be older than what the chunk directory has,
    since a log was lost in between.
    `ordering` is the greatest number that the ordering clock had given to the container, in snapshots in tier 2.
    """

    next_number: int
    deletions: Mapping[str, int]
    segments: Iterable[SegmentSnapshot]
    has_records: bool = False
    doubtful_before: int = 0
    ordering: int = 0


def encode_snapshot(snapshot: ContainerSnapshot) -> Iterator[bytes]:
    """The parts, at least one."""
    header: dict[str, Any] = {"version": FORMAT_VERSION, "next": snapshot.next_number}
    header["deletions"] = dict(snapshot.deletions)
    if snapshot.has_records:
        header |= {"version": FORMAT_VERSION_RECORDS, "doubtful_before": snapshot.doubtful_before}
    if snapshot.ordering:
        header["ordering"] = snapshot.ordering
    lines = [_dump(header)]
    held_bytes = len(lines[0])
    for segment in snapshot.segments:
        if held_bytes >= PART_BYTES:
            yield b"".join(lines)
            lines, held_bytes = [], 0
        lines.append(encode_segment(segment))
        held_bytes += len(lines[-1])
    yield b"".join(lines)


def decode_snapshot(parts: Iterable[bytes]) -> ContainerSnapshot:
    """The snapshot made of these parts.

    Raises:
        CorruptError: the bytes are no snapshot of a known version.
    """
    lines = b"".join(parts).splitlines()
    try:
        header = json.loads(lines[0])
        version = header["version"]
        if version not in (FORMAT_VERSION, FORMAT_VERSION_RECORDS):
            raise CorruptError(f"a container snapshot has version {version}, known are up to {FORMAT_VERSION_RECORDS}")
        has_records = version == FORMAT_VERSION_RECORDS
        doubtful_before = _typed(header["doubtful_before"], int) if has_records else 0
        segments = [segment_of_body(json.loads(line)) for line in lines[1:]]
        deletions = {name: _typed(number, int) for name, number in _typed(header["deletions"], dict).items()}
        ordering = _typed(header.get("ordering", 0), int)
        next_number = _typed(header["next"], int)
        return ContainerSnapshot(next_number, deletions, segments, has_records, doubtful_before, ordering)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise CorruptError(f"a container snapshot of {len(lines)} lines does not decode: {error!r}") from error


def encode_segment(segment: SegmentSnapshot) -> bytes:
    """One segment as a line of JSON."""
    return _dump(segment_body(segment))


def decode_segment(raw: bytes | memoryview) -> SegmentSnapshot:
    """The segment in such a line.

    Raises:
        CorruptError: the bytes are none.
    """
    try:
        return segment_of_body(json.loads(bytes(raw)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"the state of a segment, {len(raw)} bytes, does not decode: {error!r}") from error


_to_json = json.JSONEncoder(separators=(",", ":")).encode
"""One encoder for all segments: `json.dumps` would make a new one for each of a hundred thousand segments."""


def _dump(body: Mapping[str, Any]) -> bytes:
    return _to_json(body).encode() + b"\n"


def segment_body(segment: SegmentSnapshot) -> dict[str, Any]:
    """The segment as plain JSON values."""
    body: dict[str, Any] = {
        "number": segment.number,
        "name": segment.name,
        "start": segment.start_offset,
        "length": segment.length,
        "sealed": segment.sealed,
        "modified": segment.last_modified_ms,
        "attributes": {f"{key:x}": value for key, value in segment.attributes.items()},
    }
    if segment.merged:
        body["merged"] = [_merged_fields(each) for each in segment.merged]
    if segment.client_attributes:
        body["client_attributes"] = [f"{key:x}" for key in sorted(segment.client_attributes)]
    if segment.forgot_writers:
        body["forgot_writers"] = True
    if segment.writers_gone is not None:
        body["writers_gone"] = [segment.writers_gone.epoch, list(segment.writers_gone.periods)]
    if segment.whole_length is not None:
        body["whole_length"] = segment.whole_length
    if segment.may_lack_bytes:
        body["may_lack_bytes"] = True
    return body


def segment_of_body(body: Mapping[str, Any]) -> SegmentSnapshot:
    """Raises ValueError, KeyError or TypeError: these values are no segment."""
    return SegmentSnapshot(
        number=_typed(body["number"], int),
        name=_typed(body["name"], str),
        start_offset=_typed(body["start"], int),
        length=_typed(body["length"], int),
        sealed=_typed(body["sealed"], bool),
        last_modified_ms=_typed(body["modified"], int),
        attributes={int(key, 16): _typed(value, int) for key, value in _typed(body["attributes"], dict).items()},
        merged=tuple(_merged_range(*fields) for fields in body.get("merged", ())),
        client_attributes=frozenset(int(key, 16) for key in _typed(body.get("client_attributes", []), list)) or NO_IDS,
        forgot_writers=_typed(body.get("forgot_writers", False), bool),
        writers_gone=_writers_gone(*body["writers_gone"]) if "writers_gone" in body else None,
        whole_length=_typed(body["whole_length"], int) if "whole_length" in body else None,
        may_lack_bytes=_typed(body.get("may_lack_bytes", False), bool),
    )


def _writers_gone(epoch: Any, periods: Any) -> WritersGone:
    return WritersGone(_typed(epoch, int), tuple(_typed(each, int) for each in _typed(periods, list)))


def _merged_fields(merged: MergedRange) -> list[Any]:
    """Those with inner ranges have two fields more: a reader that does not know of them must not go on."""
    fields = [merged.offset, merged.length, *merged.place, merged.ordering]
    return [*fields, [], [_merged_fields(each) for each in merged.inner]] if merged.inner else fields


def _merged_range(
    offset: Any, length: Any, name: Any, name_offset: Any, ordering: Any, former: Any = (), inner: Any = ()
) -> MergedRange:
    """`former` is empty: it was used before there were inner ranges."""
    if list(former):
        raise ValueError(f"a merged range has {former!r} as a field that is not used any more")
    place = DirectoryPlace(_typed(name, str), _typed(name_offset, int))
    inside = tuple(_merged_range(*fields) for fields in inner)
    return MergedRange(_typed(offset, int), _typed(length, int), place, _typed(ordering, int), inside)


def _typed(value: Any, kind: type[_Kind]) -> _Kind:
    if type(value) is not kind:  # not isinstance: JSON's true is not a number
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value
