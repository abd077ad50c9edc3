"""The messages of the ticks queue: one per tick of a kind and bucket. Each minute sends its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import topology
from headrace.model.errors import InvalidRequestError

_BUCKETS = {tick.kind: tick.buckets for tick in topology.TICKS}


def tick_message(kind: str, bucket: int) -> dict[str, Any]:
    return {"kind": kind, "bucket": bucket}


def parse_tick(body: Mapping[str, Any]) -> tuple[str, int]:
    """The kind and the bucket of a tick.

    Raises:
        InvalidRequestError: the message is not a tick of this deployment, so a retry cannot succeed.
    """
    kind, bucket = body.get("kind"), body.get("bucket")
    if set(body) != {"kind", "bucket"} or not isinstance(kind, str) or kind not in _BUCKETS:
        raise InvalidRequestError(f"a tick has a kind and a bucket; the kinds are {', '.join(sorted(_BUCKETS))}")
    if type(bucket) is not int or not 0 <= bucket < _BUCKETS[kind]:
        raise InvalidRequestError(f"a tick of kind {kind} has a bucket from 0 to {_BUCKETS[kind] - 1}")
    return kind, bucket
