"""What all record bodies have in common: the format number, and one way to refuse what does not decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from headrace.model.errors import CorruptError, HeadraceError
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.writer_marks import Positions, positions_of

Body = Mapping[str, Any]
FORMAT = 1
T = TypeVar("T")


def versioned(**fields: Any) -> dict[str, Any]:
    """A body of the current format."""
    return {"format": FORMAT, **fields}


def decoded(kind: str, body: Body, decode: Callable[[Body], T]) -> T:
    """`decode(body)`.

    Raises:
        CorruptError: the body is of an unknown format or does not hold what a record of this kind holds.
    """
    found = body.get("format")
    if found != FORMAT:
        raise CorruptError(f"a {kind} record of format {found!r} was found: this version reads format {FORMAT}")
    try:
        return decode(body)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, HeadraceError) as error:
        raise CorruptError(f"a {kind} record does not decode: {error!r}") from error


def incarnation_fields(first_segment_number: int | None) -> dict[str, int]:
    """The incarnation of a stream as part of a body, nothing where it is not known."""
    return {} if first_segment_number is None else {"first_number": first_segment_number}


def incarnation_of_fields(fields: Body) -> int | None:
    number = fields.get("first_number")
    return None if number is None else int(number)


def segments_body(segments: Iterable[StreamSegment]) -> list[list[int | float]]:
    """Each as [id, low, high]; JSON keeps doubles exactly."""
    return [[one.segment_id, one.key_range.low, one.key_range.high] for one in segments]


def segments_of_body(rows: Iterable[Iterable[Any]]) -> tuple[StreamSegment, ...]:
    return tuple(StreamSegment(int(identifier), KeyRange(float(low), float(high))) for identifier, low, high in rows)


def positions_body(positions: Positions) -> list[list[int | float]]:
    """Each as [id, low, high, offset]."""
    return [
        [*row, one.offset] for row, one in zip(segments_body(one.segment for one in positions), positions, strict=True)
    ]


def positions_of_body(rows: Iterable[Sequence[Any]]) -> Positions:
    return positions_of({segment: int(row[3]) for row in rows for segment in segments_of_body([row[:3]])})
