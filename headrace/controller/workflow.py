"""A workflow as data: steps in order, each safe to run twice and by two processors at once.

A step changes the current record only on the condition that it is still the one that was read; what it does to segment
stores may be repeated. A step says from which states of the stream it applies, so that a replay begins where the work
stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.metadata.history_records import HistoryRecords
from headrace.metadata.stream_records import StoredStream, StreamRecords
from headrace.model.requests import RequestKind
from headrace.model.streams import Stream
from headrace.ports.clock import Clock
from headrace.ports.segment_stores import SegmentStores


@dataclass(frozen=True, slots=True)
class Tools:
    """What steps work with."""

    records: StreamRecords
    history: HistoryRecords
    segment_stores: SegmentStores
    clock: Clock


def _always(_stream: Stream) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Step:
    """`run` gets the stream as just read, with the workflow's request pending on it.

    What it returns is the stream as it read it at its end, with which the next step goes on; None: it is to be read.
    """

    name: str
    run: Callable[[Tools, StoredStream], StoredStream | None]
    applies: Callable[[Stream], bool] = _always


@dataclass(frozen=True, slots=True)
class Workflow:
    """The last step ends the request: it takes the pending request off the stream, and the intent with it."""

    kind: RequestKind
    steps: tuple[Step, ...]
