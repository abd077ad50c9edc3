"""Ids of segments that rolled-back scales may have created: empty, and of no epoch yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from headrace.codec.records.bodies import Body, decoded, versioned

LEFTOVERS_SORT: Final = "leftovers"


def leftovers_body(identifiers: Iterable[int]) -> dict[str, Any]:
    return versioned(segments=sorted(identifiers))


def leftovers_of_body(body: Body) -> tuple[int, ...]:
    return decoded("leftovers", body, lambda fields: tuple(int(one) for one in fields["segments"]))
