"""What a tick of each kind does: one bounded piece of work on a bucket; True asks for another piece at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from functions import wiring
from functions.observability import count, logger

RESEND_AFTER_MS = 30_000
"""An intent this old whose work is not done has probably lost its message; sending it in vain is harmless."""


# Workflows are imported where they are needed: importing is most of a cold start.
def _resend_intents(bucket: int) -> bool:
    from headrace.workflows.resend_intents import resend_intents

    sent = resend_intents(
        wiring.metadata_store(), wiring.request_queues(), wiring.clock(), bucket, older_than_ms=RESEND_AFTER_MS
    )
    if sent:
        count("IntentsResent", sent)
        logger.info("sent %d intents of bucket %d again", sent, bucket)
    return False  # What is left over is the next tick's: the queue drops what was sent minutes ago.


def _expire_transactions(bucket: int) -> bool:
    from headrace.workflows.expire_transactions import expire_transactions

    return expire_transactions(wiring.metadata_store(), wiring.transaction_queues(), wiring.clock(), bucket)


def _advance_watermarks(bucket: int) -> bool:
    return wiring.watermark_advancer().run(bucket)


def _apply_retention(bucket: int) -> bool:
    return wiring.retention_ticks().run(bucket)


TICK_WORK: Mapping[str, Callable[[int], bool]] = {
    "resend-intents": _resend_intents,
    "transactions": _expire_transactions,
    "watermarks": _advance_watermarks,
    "retention": _apply_retention,
}
"""By the kinds that the topology declares."""
