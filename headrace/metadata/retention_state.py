"""The state of a stream's retention: when it is due, and the cuts of its retention set.

The key has the first segment number of the stream's incarnation: a process that was delayed beyond the end of an
incarnation cannot write into the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.metadata.truncation import decode_placed_cut, placed_cut_fields
from headrace.model.retention import Counting, RetentionCut, RetentionState
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Body, Check, Key, Record


@dataclass(frozen=True, slots=True)
class StoredRetention:
    """A retention state as it was read, and the version of its record."""

    state: RetentionState
    version: int


def retention_sort(first_segment_number: int) -> str:
    return f"retention/{first_segment_number:010d}"


def retention_key(scope: str, stream: str, first_segment_number: int) -> Key:
    return Key(stream_partition(scope, stream), retention_sort(first_segment_number))


def retention_body(state: RetentionState) -> dict[str, Any]:
    return versioned(
        due=state.due_ms,
        head_time=state.head_time_ms,
        cuts=[[cut.time_ms, cut.size_bytes] for cut in state.cuts],
        **({"counting": _counting_fields(state.counting)} if state.counting else {}),
    )


def decode_retention(body: Body) -> RetentionState:
    return decoded("retention", body, _state)


def stored_retention(record: Record | None) -> StoredRetention | None:
    return StoredRetention(decode_retention(record.body), record.version) if record else None


def check_retention(stream: Stream, retention: StoredRetention) -> Check:
    """A check that the state has not changed and no subscriber was registered since it was read."""
    return Check(retention_key(stream.scope, stream.name, stream.first_segment_number), retention.version)


def _state(body: Body) -> RetentionState:
    due = body["due"]
    return RetentionState(
        due_ms=None if due is None else int(due),
        head_time_ms=int(body["head_time"]),
        cuts=tuple(RetentionCut(int(time_ms), int(size_bytes)) for time_ms, size_bytes in body["cuts"]),
        counting=_decode_counting(body["counting"]) if "counting" in body else None,
    )


def _counting_fields(counting: Counting) -> dict[str, Any]:
    return {
        "place": placed_cut_fields(counting.place),
        "first_epoch": counting.first_epoch,
        "before_bytes": counting.before_bytes,
        "next_epoch": counting.next_epoch,
        "size_bytes": counting.size_bytes,
    }


def _decode_counting(fields: Body) -> Counting:
    return Counting(
        decode_placed_cut(fields["place"]),
        int(fields["first_epoch"]),
        int(fields["before_bytes"]),
        int(fields["next_epoch"]),
        int(fields["size_bytes"]),
    )
