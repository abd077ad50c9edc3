"""What the tasks of a query do to its rows before they are written: sort them, fail, or be slow.

Tasks tell what they did by files in a directory, which only a process of this machine reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from fuzz.sink_files import BEGAN, FAILED, OVERLAPPED, SPECULATIVE

ROWS_AT_ONCE: Final = 5
"""In an Arrow batch. Few, and small buffers, so that a task writes its first rows before it has read the last ones."""

_STRAGGLES_POLLS: Final = 400
_MEETS_POLLS: Final = 50
_POLL_S: Final = 0.1
_EVERY: Final = 3
"""Attempts fail, or are slow, in every third batch."""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """`fails`: first attempts fail at their last row, when the first ones are written. `straggles`: the first attempt
    at partition 0 waits until another one runs."""

    directory: Path
    is_sorted: bool
    fails: bool
    straggles: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or "0")
        rows = 0
        for row in self._rows(batches):
            if not rows and self.straggles and context.partitionId() == 0 and batch % _EVERY == 1:
                self._straggle(str(batch), context.attemptNumber())
            rows += row.num_rows
            yield row
        if self.fails and rows and batch % _EVERY == 0 and context.attemptNumber() == 0:
            name = f"{batch}-{context.partitionId()}-{context.taskAttemptId()}"
            if self._await(BEGAN, name, _MEETS_POLLS):
                self._tell(FAILED, name)
            raise RuntimeError("the first attempt fails after its last row")

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the task, in batches that do not all fit into the buffer of this process."""
        filled = [batch for batch in batches if batch.num_rows] if self.is_sorted else batches
        if not self.is_sorted:
            yield from filled
            return
        if filled:
            table = pa.Table.from_batches(filled)
            table = table.take(pc.sort_indices(table, [("event", "ascending")])).combine_chunks()
            yield from table.to_batches(max_chunksize=ROWS_AT_ONCE)

    def _straggle(self, name: str, attempt: int) -> None:
        if attempt:
            self._tell(SPECULATIVE, name)
            self._await(OVERLAPPED, name, _MEETS_POLLS)
        elif self._await(SPECULATIVE, name, _STRAGGLES_POLLS):
            self._tell(OVERLAPPED, name)

    def _tell(self, what: str, name: str) -> None:
        (self.directory / f"{what}-{name}").touch()

    def _await(self, what: str, name: str, polls: int) -> bool:
        file = self.directory / f"{what}-{name}"
        return file.exists() or any(Event().wait(_POLL_S) or file.exists() for _ in range(polls))
