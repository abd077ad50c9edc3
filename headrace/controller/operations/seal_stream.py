"""Seal a stream: seal its segments, keep their sizes, and the stream is closed for ever."""

from __future__ import annotations

from headrace.controller.steps.segment_sealing import record_sizes, seal_segments
from headrace.controller.steps.settle_transactions import settle_transactions
from headrace.controller.workflow import Step, Tools, Workflow
from headrace.metadata.stream_records import StoredStream, delete_intent
from headrace.model.requests import RequestKind
from headrace.model.streams import completed


def _seal_segments(tools: Tools, stored: StoredStream) -> None:
    seal_segments(tools, stored.stream, stored.stream.epoch.segments)


def _record_sizes(tools: Tools, stored: StoredStream) -> None:
    record_sizes(tools, stored, stored.stream.epoch.segments, replaced_in=None)


def _close(tools: Tools, stored: StoredStream) -> None:
    tools.records.replace(stored, completed(stored.stream), delete_intent(stored.stream))


SEAL_STREAM = Workflow(
    RequestKind.SEAL_STREAM,
    (
        Step("settle transactions", settle_transactions),
        Step("seal segments", _seal_segments),
        Step("record sizes", _record_sizes),
        Step("close", _close),
    ),
)
