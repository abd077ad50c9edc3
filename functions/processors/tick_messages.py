"""The messages of the ticks queue: one per kind of work and bucket, all sent anew each minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import topology
from headrace.model.errors import InvalidRequestError

RESEND_INTENTS = "resend-intents"


def tick_message(bucket: int) -> dict[str, Any]:
    return {"kind": RESEND_INTENTS, "bucket": bucket}


def parse_tick(body: Mapping[str, Any]) -> int:
    """The bucket of a tick that asks for lost intents.

    Raises:
        InvalidRequestError: this is no tick of ours; it will never be one.
    """
    bucket = body.get("bucket")
    known = set(body) == {"kind", "bucket"} and body["kind"] == RESEND_INTENTS and type(bucket) is int
    if not known or not 0 <= bucket < topology.INTENT_BUCKET_COUNT:  # type: ignore[operator]
        raise InvalidRequestError(
            f"a tick holds the kind {RESEND_INTENTS!r} and a bucket from 0 to {topology.INTENT_BUCKET_COUNT - 1}"
        )
    return int(bucket)  # type: ignore[arg-type]
