"""The tasks of `fuzz spark-sink` that fail on purpose: their first rows are on their way to the sink before."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the tasks ask Spark which attempt they are")
from pyspark import TaskContext

from fuzz.sink_files import BEGAN, FAILED
from fuzz.sink_tasks import ROWS_AT_ONCE, TaskPlan

ROWS = 3 * ROWS_AT_ONCE + 1


def in_batches(numbers: range) -> list[pa.RecordBatch]:
    events = pa.array([b"%08d" % number for number in reversed(numbers)], pa.binary())
    return [
        pa.RecordBatch.from_arrays([events[first : first + ROWS_AT_ONCE]], ["event"])
        for first in range(0, len(events), ROWS_AT_ONCE)
    ]


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_task_fails_after_several_arrow_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sorted: bool
) -> None:
    """All rows in one Arrow batch would be in the buffer of the task's process when it fails."""
    context = SimpleNamespace(
        getLocalProperty=lambda name: "3", partitionId=lambda: 1, attemptNumber=lambda: 0, taskAttemptId=lambda: 7
    )
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    (tmp_path / f"{BEGAN}-3-1-7").touch()
    written: list[pa.RecordBatch] = []
    task = TaskPlan(tmp_path, is_sorted=is_sorted, fails=True, straggles=False)
    with pytest.raises(RuntimeError, match="the first attempt fails after its last row"):
        deque(map(written.append, task(in_batches(range(ROWS)))), maxlen=0)
    assert [batch.num_rows for batch in written] == [ROWS_AT_ONCE] * 3 + [1]
    events = pa.Table.from_batches(written).column("event").to_pylist()
    assert (events == sorted(events)) == is_sorted
    assert (tmp_path / f"{FAILED}-3-1-7").exists()
