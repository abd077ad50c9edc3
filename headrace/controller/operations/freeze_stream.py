"""Freeze a stream: complete its transactions and seal its segments, until a user unfreezes it. Unfreeze it again.

Segment stores know no frozen segments, so the active segments are sealed. They stay the active ones, because no
operation has replaced them: they have no successors, and readers wait at their ends. To unfreeze is to scale each of
them to one of the same key range, and runs the steps of a scale (`registry.py`). So a late processor of a freeze seals
only segments that are sealed already.

The sizes are recorded when the segments are replaced. An entry without the epoch that replaced a segment would stay.
"""

from __future__ import annotations

from headrace.api.streams import StreamView
from headrace.controller.acceptance import Acceptance
from headrace.controller.engine import MUST_COMPLETE, Operation, Step, Tools
from headrace.controller.steps.resources import STREAM
from headrace.controller.steps.stream_segments import close_sealed, seal_segments
from headrace.controller.steps.transaction_aborts import settle_transactions
from headrace.metadata.stream import create_transition
from headrace.metadata.stream_records import StoredStream
from headrace.model.epochs import scaled_epoch
from headrace.model.requests import RequestKind
from headrace.model.streams import started


def accept(acceptance: Acceptance, scope: str, stream: str) -> StreamView:
    """Accept the freeze; raises as `StreamService.freeze_stream` does."""
    return acceptance.repeat(lambda: _accept(acceptance, scope, stream))


def accept_unfreeze(acceptance: Acceptance, scope: str, stream: str) -> StreamView:
    """Accept the end of the freeze; raises as `StreamService.unfreeze_stream` does."""
    return acceptance.repeat(lambda: _accept_unfreeze(acceptance, scope, stream))


def _accept(acceptance: Acceptance, scope: str, name: str) -> StreamView:
    stored = acceptance.streams.get(scope, name)
    if stored.stream.shown_state.is_frozen:
        return StreamView.of(stored.stream)
    freezing = started(stored.stream, stored.version, RequestKind.FREEZE_STREAM)
    acceptance.change_stream(stored, freezing)
    return StreamView.of(freezing)


def _accept_unfreeze(acceptance: Acceptance, scope: str, name: str) -> StreamView:
    stored = acceptance.streams.get(scope, name)
    if stored.stream.shown_state.takes_events:
        return StreamView.of(stored.stream)
    unfreezing = started(stored.stream, stored.version, RequestKind.UNFREEZE_STREAM)
    active = unfreezing.epoch.segments
    sealed, ranges = [segment.segment_id for segment in active], [segment.key_range for segment in active]
    epoch = scaled_epoch(unfreezing.epoch, sealed, ranges, acceptance.clock.now_ms())
    acceptance.change_stream(stored, unfreezing, create_transition(unfreezing, epoch))
    return StreamView.of(unfreezing)


def _seal_and_close(tools: Tools, stored: StoredStream) -> None:
    seal_segments(tools, stored.stream, stored.stream.epoch.segments)
    close_sealed(tools, stored)


FREEZE_STREAM = Operation(
    RequestKind.FREEZE_STREAM,
    STREAM,
    (
        Step("settle transactions", settle_transactions),
        Step("seal segments and close", _seal_and_close),
    ),
    rollback=MUST_COMPLETE,
)
