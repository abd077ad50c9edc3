"""What several kinds of records share: the format of bodies, fields that many have, partitions, keys sorted by time.

Bodies are plain JSON values. A body contains the number of its format, so that a format can change while old records
exist. A body that cannot be decoded raises CorruptError, because only this package writes records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from headrace.model.errors import CorruptError, HeadraceError
from headrace.model.names import check_known_name
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.writer_marks import Positions, positions_of
from headrace.ports.metadata_store import Body

FORMAT = 1
T = TypeVar("T")
_TIME_DIGITS = 20


def versioned(**fields: Any) -> dict[str, Any]:
    """A body of the current format."""
    return {"format": FORMAT, **fields}


def decoded(kind: str, body: Body, decode: Callable[[Body], T]) -> T:
    """`decode(body)`.

    Raises:
        CorruptError: the body is of an unknown format or does not hold what a record of this kind holds.
    """
    stored_format = body.get("format")
    if stored_format != FORMAT:
        raise CorruptError(f"a {kind} record of format {stored_format!r} was found: this version reads format {FORMAT}")
    try:
        return decode(body)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, HeadraceError) as error:
        raise CorruptError(f"a {kind} record does not decode: {error!r}") from error


def segment_rows(segments: Iterable[StreamSegment]) -> list[list[int | float]]:
    """Each as [id, low, high]; JSON keeps doubles exactly."""
    return [[segment.segment_id, segment.key_range.low, segment.key_range.high] for segment in segments]


def decode_segments(rows: Iterable[Iterable[Any]]) -> tuple[StreamSegment, ...]:
    return tuple(StreamSegment(int(identifier), KeyRange(float(low), float(high))) for identifier, low, high in rows)


def position_rows(positions: Positions) -> list[list[int | float]]:
    """Each as [id, low, high, offset]."""
    return [
        [*row, position.offset]
        for row, position in zip(segment_rows(position.segment for position in positions), positions, strict=True)
    ]


def decode_positions(rows: Iterable[Sequence[Any]]) -> Positions:
    return positions_of({segment: int(row[3]) for row in rows for segment in decode_segments([row[:3]])})


def time_prefix(time_ms: int) -> str:
    """The beginning of a sort key of what is due at this time."""
    return f"{time_ms:0{_TIME_DIGITS}d}"


def moved_to(sort: str, time_ms: int) -> str:
    """The sort key of the same entry at another time."""
    return f"{time_prefix(time_ms)}{sort[_TIME_DIGITS:]}"


def stream_partition(scope: str, stream: str) -> str:
    """The partition of the records of a stream, except those of its transactions.

    Raises InvalidRequestError, code "invalid_name", for an invalid name, as every function does that makes a key.
    """
    return f"stream/{check_known_name('scope', scope)}/{check_known_name('stream', stream)}"


def transactions_partition(scope: str, stream: str) -> str:
    """The partition of the records of a stream's transactions."""
    return f"transactions/{check_known_name('scope', scope)}/{check_known_name('stream', stream)}"
