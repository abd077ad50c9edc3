"""Retention of a stream: its state, the cuts of its retention set, and its entry in the index of what is due.

State and cuts carry the first segment number of the stream's incarnation in their keys: a process that was delayed
beyond the end of an incarnation cannot write into the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.codec.records.due_order import time_prefix
from headrace.codec.records.truncation_record import placed_cut_fields, placed_cut_of_fields
from headrace.model.retention import Counting, RetentionCut, RetentionState
from headrace.model.truncation import Truncation


@dataclass(frozen=True, slots=True)
class DueStream:
    """A stream whose retention is to be looked at, from `due_ms` since the Unix epoch on.

    `failures` looks in a row have failed before.
    """

    due_ms: int
    scope: str
    stream: str
    first_segment_number: int
    failures: int = 0


def retention_sort(first_segment_number: int) -> str:
    return f"retention/{first_segment_number:010d}"


def retention_cut_sort(first_segment_number: int, time_ms: int) -> str:
    return f"retention-cut/{first_segment_number:010d}/{time_prefix(time_ms)}"


def retention_due_partition(bucket: int) -> str:
    return f"retention-due/{bucket:04d}"


def retention_due_sort(due: DueStream) -> str:
    """Two incarnations of a stream have two entries: removing one never removes the other."""
    return f"{retention_due_last(due.due_ms)}{due.scope}/{due.stream}/{due.first_segment_number:010d}"


def retention_due_last(time_ms: int) -> str:
    """Sorts before all that is due at this time, and after all that is due before it."""
    return f"{time_prefix(time_ms)}/"


def retention_body(state: RetentionState) -> dict[str, Any]:
    return versioned(
        due=state.due_ms,
        head_time=state.head_time_ms,
        cuts=[[cut.time_ms, cut.size_bytes] for cut in state.cuts],
        **({"counting": _counting_fields(state.counting)} if state.counting else {}),
    )


def retention_of_body(body: Body) -> RetentionState:
    return decoded("retention", body, _state)


def retention_cut_body(cut: Truncation) -> dict[str, Any]:
    """A place to truncate at has the shape of a truncation."""
    return versioned(cut=placed_cut_fields(cut.head), first_epoch=cut.first_epoch, size_bytes=cut.size_bytes)


def retention_cut_of_body(body: Body) -> Truncation:
    return decoded(
        "retention cut",
        body,
        lambda fields: Truncation(
            placed_cut_of_fields(fields["cut"]), int(fields["first_epoch"]), int(fields["size_bytes"])
        ),
    )


def retention_due_body(due: DueStream) -> dict[str, Any]:
    return versioned(
        due=due.due_ms,
        scope=due.scope,
        stream=due.stream,
        first_number=due.first_segment_number,
        **({"failures": due.failures} if due.failures else {}),
    )


def retention_due_of_body(body: Body) -> DueStream:
    return decoded(
        "due retention",
        body,
        lambda fields: DueStream(
            int(fields["due"]),
            str(fields["scope"]),
            str(fields["stream"]),
            int(fields["first_number"]),
            int(fields.get("failures", 0)),
        ),
    )


def _state(body: Body) -> RetentionState:
    due = body["due"]
    return RetentionState(
        due_ms=None if due is None else int(due),
        head_time_ms=int(body["head_time"]),
        cuts=tuple(RetentionCut(int(time_ms), int(size_bytes)) for time_ms, size_bytes in body["cuts"]),
        counting=_counting_of_fields(body["counting"]) if "counting" in body else None,
    )


def _counting_fields(counting: Counting) -> dict[str, Any]:
    return {
        "place": placed_cut_fields(counting.place),
        "first_epoch": counting.first_epoch,
        "before_bytes": counting.before_bytes,
        "next_epoch": counting.next_epoch,
        "size_bytes": counting.size_bytes,
    }


def _counting_of_fields(fields: Body) -> Counting:
    return Counting(
        placed_cut_of_fields(fields["place"]),
        int(fields["first_epoch"]),
        int(fields["before_bytes"]),
        int(fields["next_epoch"]),
        int(fields["size_bytes"]),
    )
