"""The stream cut at which a stream begins, once it was truncated; and the truncation that runs, while one does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.codec.records.bodies import Body, decoded, segments_body, segments_of_body, versioned
from headrace.model.stream_cut_order import PlacedCut
from headrace.model.stream_cuts import StreamCut
from headrace.model.truncation import RunningTruncation, Truncation

TRUNCATION_SORT = "truncation"
RUNNING_TRUNCATION_SORT = "truncating"


def truncation_body(truncation: Truncation) -> dict[str, Any]:
    return versioned(**_truncation_fields(truncation))


def truncation_of_body(body: Body) -> Truncation:
    return decoded("truncation", body, _truncation)


def running_truncation_body(running: RunningTruncation) -> dict[str, Any]:
    return versioned(
        target=placed_cut_fields(running.target),
        first_epoch=running.first_epoch,
        before=_truncation_fields(running.before) if running.before else None,
        next_epoch=running.next_epoch,
        size_bytes=running.size_bytes,
        recorded=running.is_recorded,
        **({"positions_done": running.positions_done} if running.positions_done else {}),
    )


def running_truncation_of_body(body: Body) -> RunningTruncation:
    return decoded("running truncation", body, _running)


def placed_cut_fields(placed: PlacedCut) -> dict[str, Any]:
    """A cut with its segments as part of a body."""
    cut = placed.cut
    return {
        "scope": cut.scope,
        "stream": cut.stream,
        "positions": [list(position) for position in cut.positions],
        "segments": segments_body(placed.segments),
    }


def placed_cut_of_fields(fields: Mapping[str, Any]) -> PlacedCut:
    positions = tuple((int(identifier), int(offset)) for identifier, offset in fields["positions"])
    cut = StreamCut(str(fields["scope"]), str(fields["stream"]), positions)
    return PlacedCut(cut, segments_of_body(fields["segments"]))


def _truncation_fields(truncation: Truncation) -> dict[str, Any]:
    return {
        "head": placed_cut_fields(truncation.head),
        "first_epoch": truncation.first_epoch,
        "size_bytes": truncation.size_bytes,
    }


def _truncation(fields: Mapping[str, Any]) -> Truncation:
    return Truncation(placed_cut_of_fields(fields["head"]), int(fields["first_epoch"]), int(fields["size_bytes"]))


def _running(body: Body) -> RunningTruncation:
    return RunningTruncation(
        target=placed_cut_of_fields(body["target"]),
        first_epoch=int(body["first_epoch"]),
        before=_truncation(body["before"]) if body["before"] is not None else None,
        next_epoch=int(body["next_epoch"]),
        size_bytes=int(body["size_bytes"]),
        is_recorded=bool(body["recorded"]),
        positions_done=int(body.get("positions_done", 0)),
    )
