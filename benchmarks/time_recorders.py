"""Notes when blocks pass their stations, by functions that are wrapped in the process of a benchmark.

The product knows nothing of it: without `record_client` or `record_store` not one instruction is added. Compiled
classes refuse to be wrapped, so the store of the timeline runs interpreted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.adapters.disk import DiskJournalFile
from headrace.client.writing.batch_accumulator import BatchAccumulator
from headrace.client.writing.event_blocks import Block
from headrace.client.writing.segment_appender import SegmentAppender
from headrace.segmentstore.connections.append_processor import AppendProcessor, _PendingAcknowledgement
from headrace.segmentstore.containers.operation_log import _Frame
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_thread import Journal

Record = dict[str, int]
Wrapped = Callable[..., Any]


def wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Replace a method by `around(method, *arguments)`."""
    method: Wrapped = getattr(owner, name)

    def wrapper(*arguments: Any, **named: Any) -> Any:
        return around(method, *arguments, **named)

    setattr(owner, name, wrapper)


class ClientRecorder:
    """The stations of a writer's process. `blocks` is complete when the writer has flushed."""

    def __init__(self) -> None:
        self.blocks: list[Record] = []
        self._under_way: dict[Block, Record] = {}
        self._replied_ns = 0

    def install(self) -> None:
        wrap(Block, "__init__", self._opened)
        wrap(BatchAccumulator, "_start_block", self._full)
        wrap(BatchAccumulator, "take", self._taken)
        wrap(SegmentAppender, "_send_block", self._sent)
        wrap(SegmentAppender, "replied", self._replied)
        wrap(BatchAccumulator, "complete", self._completed)

    def _opened(self, method: Wrapped, block: Block, *arguments: Any) -> None:
        method(block, *arguments)
        self._under_way[block] = {"opened": time.monotonic_ns()}

    def _full(self, method: Wrapped, accumulator: BatchAccumulator, queue: Any) -> Any:
        self._under_way[queue.open]["full"] = time.monotonic_ns()
        return method(accumulator, queue)

    def _taken(self, method: Wrapped, accumulator: BatchAccumulator, queue: Any, **options: Any) -> Block | None:
        now_ns = time.monotonic_ns()
        block: Block | None = method(accumulator, queue, **options)
        if block is not None:
            record = self._under_way[block]
            record["full"] = min(record.get("full", now_ns), now_ns)
            record["taken"] = now_ns
        return block

    def _sent(self, method: Wrapped, appender: SegmentAppender, flow: Any, block: Block) -> None:
        method(appender, flow, block)
        self._under_way[block] |= {
            "sent": time.monotonic_ns(),
            "writer": appender._writer_id,
            "number": block.last_number,
            "size_bytes": block.size_bytes,
        }

    def _replied(self, method: Wrapped, appender: SegmentAppender, reply: Any) -> None:
        self._replied_ns = time.monotonic_ns()
        method(appender, reply)

    def _completed(self, method: Wrapped, accumulator: BatchAccumulator, blocks: Sequence[Block]) -> None:
        method(accumulator, blocks)
        now_ns = time.monotonic_ns()
        for block in blocks:
            record = self._under_way.pop(block)
            self.blocks.append(record | {"replied": self._replied_ns, "completed": now_ns})


class StoreRecorder:
    """The stations of a store's process, of each append."""

    def __init__(self) -> None:
        self.appends: list[Record] = []
        self._by_append: dict[tuple[int, int], Record] = {}
        self._of_frame: dict[Any, Record] = {}
        """Of frames that are not durable: the stations of all their appends."""
        self._durable: Record = {}
        """Of the frame whose appends are being reported."""
        self._writing: Record = {}

    def install(self) -> None:
        wrap(AppendProcessor, "_append", self._accepted)
        wrap(Journal, "submit", self._submitted)
        wrap(JournalCommits, "commit", self._committed)
        wrap(DiskJournalFile, "write_durably", self._written)
        wrap(_Frame, "__call__", self._reported)
        wrap(_PendingAcknowledgement, "__call__", self._appended)
        wrap(AppendProcessor, "collect_acknowledgements", self._acknowledged)

    def _accepted(self, method: Wrapped, processor: Any, writer: Any, frame: Any, data: Any) -> None:
        record = {"writer": frame.writer_id, "number": frame.event_number, "accepted": time.monotonic_ns()}
        self._by_append[frame.writer_id, frame.event_number] = record
        method(processor, writer, frame, data)

    def _submitted(self, method: Wrapped, journal: Any, pending: Any) -> None:
        if isinstance(pending.done, _Frame):
            self._of_frame[pending.done] = {"submitted": time.monotonic_ns()}
        method(journal, pending)

    def _committed(self, method: Wrapped, commits: Any, batch: list[Any], committed: Any) -> None:
        now_ns = time.monotonic_ns()
        for pending in batch:
            if (record := self._of_frame.get(pending.done)) is not None:
                record["committing"] = now_ns

        def noted(done: list[Any]) -> None:
            for pending in done:
                if (record := self._of_frame.get(pending.done)) is not None:
                    record.update(self._writing)
            committed(done)

        method(commits, batch, noted)

    def _written(self, method: Wrapped, file: Any, position: int, parts: Any) -> None:
        began_ns = time.monotonic_ns()
        method(file, position, parts)
        self._writing = {"writing": began_ns, "written": time.monotonic_ns()}

    def _reported(self, method: Wrapped, frame: Any, error: Exception | None) -> None:
        self._durable = self._of_frame.pop(frame, {})
        method(frame, error)
        self._durable = {}

    def _appended(self, method: Wrapped, pending: Any, error: Exception | None) -> None:
        record = self._by_append[pending.writer.writer_id, pending.event_number]
        record.update(self._durable)
        record["appended"] = time.monotonic_ns()
        method(pending, error)

    def _acknowledged(self, method: Wrapped, processor: Any) -> Any:
        due = [(writer.writer_id, writer.due[0]) for writer in processor._due if writer.due is not None]
        parts = method(processor)
        now_ns = time.monotonic_ns()
        for writer_id, number in due:
            covered = [key for key in self._by_append if key[0] == writer_id and key[1] <= number]
            for key in covered:
                self.appends.append(self._by_append.pop(key) | {"acknowledged": now_ns})
        return parts
