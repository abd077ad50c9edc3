"""A subscriber of a stream: how far a reader group has read it, in the partition of the stream.

The key carries the first segment number of the stream's incarnation, so that no subscriber outlives its stream.
"""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.codec.records.truncation_record import placed_cut_fields, placed_cut_of_fields
from headrace.model.subscribers import Subscriber


def subscribers_prefix(first_segment_number: int) -> str:
    """What the sort keys of all subscribers of a stream begin with."""
    return f"subscriber/{first_segment_number:010d}/"


def subscriber_sort(first_segment_number: int, name: str) -> str:
    return f"{subscribers_prefix(first_segment_number)}{name}"


def subscriber_body(subscriber: Subscriber) -> dict[str, Any]:
    return versioned(
        name=subscriber.name,
        generation=subscriber.generation,
        position=placed_cut_fields(subscriber.position),
        updated=subscriber.updated_ms,
    )


def subscriber_of_body(body: Body) -> Subscriber:
    return decoded(
        "subscriber",
        body,
        lambda fields: Subscriber(
            str(fields["name"]),
            int(fields["generation"]),
            placed_cut_of_fields(fields["position"]),
            int(fields["updated"]),
        ),
    )
