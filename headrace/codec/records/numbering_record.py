"""The first segment number for the next life of a stream's name.

It outlives the stream, so that no segment name is ever used twice.
"""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned

NUMBERING_SORT = "numbering"


def numbering_body(next_segment_number: int) -> dict[str, Any]:
    return versioned(next=next_segment_number)


def numbering_of_body(body: Body) -> int:
    return decoded("numbering", body, lambda fields: int(fields["next"]))
