"""Seal a stream: complete its transactions, seal its segments and record their sizes, then it is SEALED forever."""

from __future__ import annotations

from headrace.api.streams import StreamView
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import STREAM
from headrace.controller.steps.stream_segments import close_sealed, record_sizes, seal_segments
from headrace.controller.steps.transaction_aborts import settle_transactions
from headrace.metadata.stream_records import StoredStream
from headrace.model.requests import RequestKind
from headrace.model.streams import started


def accept(acceptance: Acceptance, scope: str, stream: str) -> StreamView:
    """Accept the seal; raises as `StreamService.seal_stream` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, stream))


def _accept(acceptance: Acceptance, scope: str, name: str) -> StreamView:
    stored = acceptance.streams.get(scope, name)
    if stored.stream.has_accepted(RequestKind.SEAL_STREAM):
        return StreamView.of(stored.stream)
    sealing = started(stored.stream, stored.version, RequestKind.SEAL_STREAM)
    acceptance.change_stream(stored, sealing)
    return StreamView.of(sealing)


def _seal_and_close(tools: Tools, stored: StoredStream) -> None:
    segments = stored.stream.epoch.segments
    seal_segments(tools, stored.stream, segments)
    record_sizes(tools, stored, segments, replaced_in=None)
    close_sealed(tools, stored)


SEAL_STREAM = Operation(
    RequestKind.SEAL_STREAM,
    STREAM,
    (
        Step("settle transactions", settle_transactions),
        Step("seal segments and close", _seal_and_close),
    ),
    rollback=MUST_COMPLETE,
)
