"""An epoch of a stream: written once, never changed. The same body serves the planned epoch of a running scale."""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, segments_body, segments_of_body, versioned
from headrace.model.epochs import Epoch

TRANSITION_SORT = "transition"
"""The place of the epoch that a running scale creates, until the scale is done."""

_PREFIX = "epoch/"


def epoch_sort(number: int) -> str:
    return f"{_PREFIX}{number:010d}"


def epoch_body(epoch: Epoch) -> dict[str, Any]:
    return versioned(**epoch_fields(epoch))


def epoch_of_body(body: Body) -> Epoch:
    return decoded("epoch", body, epoch_of_fields)


def epoch_fields(epoch: Epoch) -> dict[str, Any]:
    """An epoch as part of a body."""
    return {
        "number": epoch.number,
        "created": epoch.creation_time_ms,
        "segments": segments_body(epoch.segments),
        "replaced": segments_body(epoch.replaced),
        "duplicate_of": epoch.duplicate_of,
    }


def epoch_of_fields(fields: Body) -> Epoch:
    return Epoch(
        number=int(fields["number"]),
        creation_time_ms=int(fields["created"]),
        segments=segments_of_body(fields["segments"]),
        replaced=segments_of_body(fields["replaced"]),
        duplicate_of=None if fields["duplicate_of"] is None else int(fields["duplicate_of"]),
    )
