"""Seal a stream: complete its transactions, seal its segments and record their sizes, then it is SEALED forever."""

from __future__ import annotations

from headrace.api.streams import StreamView
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import STREAM
from headrace.controller.steps.segment_sealing import record_sizes, seal_segments
from headrace.controller.steps.settle_transactions import settle_transactions
from headrace.metadata.commit_run import commit_run_key
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.requests import RequestKind
from headrace.model.streams import completed, started
from headrace.ports.metadata_store import Check


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
    """Seal the segments, and end the seal if they are still the active ones, and no run commits into them.

    A transaction that was begun late may be marked after the others were settled. A run that commits it, perhaps in
    another process, must end before the seal, because it replaces the segments.
    """
    stream = stored.stream
    seal_segments(tools, stream, stream.epoch.segments)
    record_sizes(tools, stored, stream.epoch.segments, replaced_in=None)
    no_run = Check(commit_run_key(stream.scope, stream.name), None)
    tools.records.replace(stored, completed(stream), delete_intent(stream), no_run)


SEAL_STREAM = Operation(
    RequestKind.SEAL_STREAM,
    STREAM,
    (
        Step("settle transactions", settle_transactions),
        Step("seal segments and close", _seal_and_close),
    ),
    rollback=MUST_COMPLETE,
)
