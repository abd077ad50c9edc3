"""Ids of segments that rolled-back scales of a stream may have created: they are empty and part of no epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from headrace.metadata.record_layout import decoded, stream_partition, versioned
from headrace.ports.metadata_store import Body, Key

LEFTOVERS_SORT: Final = "leftovers"


def leftovers_key(scope: str, stream: str) -> Key:
    return Key(stream_partition(scope, stream), LEFTOVERS_SORT)


def leftovers_body(identifiers: Iterable[int]) -> dict[str, Any]:
    return versioned(segments=sorted(identifiers))


def decode_leftovers(body: Body) -> tuple[int, ...]:
    return decoded("leftovers", body, lambda fields: tuple(int(one) for one in fields["segments"]))
