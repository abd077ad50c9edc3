"""The last mark of each writer of a stream, in the stream's partition.

A record has the incarnation of its stream, since one of an earlier incarnation may be written late.
"""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, positions_body, positions_of_body, versioned
from headrace.model.writer_marks import WriterMark

WRITER_MARKS_FIRST, WRITER_MARKS_LAST = "writer-mark/", "writer-mark/~"
"""Bounds of the sort keys of all marks."""


def writer_mark_sort(writer: str) -> str:
    return f"{WRITER_MARKS_FIRST}{writer}"


def writer_mark_body(mark: WriterMark, first_segment_number: int) -> dict[str, Any]:
    return versioned(
        writer=mark.writer,
        time=mark.time,
        positions=positions_body(mark.positions),
        alive=mark.is_alive,
        first_number=first_segment_number,
    )


def writer_mark_of_body(body: Body) -> tuple[WriterMark, int]:
    """The mark, and the first segment number of the incarnation of its stream."""
    return decoded("writer mark", body, _writer_mark)


def _writer_mark(body: Body) -> tuple[WriterMark, int]:
    positions = positions_of_body(body["positions"])
    mark = WriterMark(str(body["writer"]), int(body["time"]), positions, bool(body["alive"]))
    return mark, int(body["first_number"])
