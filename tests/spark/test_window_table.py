"""Open windows: each event is in one written window of its keys or in quarantine, wherever the process is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from job_files_in_memory import FilesInMemory, Killed

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.errors import CorruptError, InvalidRequestError
from headrace.spark.jobs.batch_table import BatchTable, TableVersion, read_version
from headrace.spark.jobs.window_table import BatchSums, Closing, WindowProgress, WindowTable

ROOT = "s3://bucket/windows"
SIZE = 10
Row = tuple[int, str, int]
"""The start of a window, a key and a count."""

BATCHES: list[list[tuple[int, str]]] = [
    [(3, "a"), (4, "b"), (12, "a")],
    [(8, "a"), (13, "b")],
    [],
    [(21, "a"), (5, "b"), (25, "a")],  # 5 is late if the first window is closed
    [(31, "b"), (33, "a"), (22, "b")],
    [(58, "a"), (11, "a")],
]
WATERMARKS = [None, 10, 14, 20, 33, 50]
"""What the stream's watermark is after each batch, if it is asked for the first time."""


class Target:
    """Commits each epoch of a writer once, as the sink does."""

    def __init__(self) -> None:
        self.epochs: dict[tuple[str, int], list[Row]] = {}

    @property
    def windows(self) -> list[Row]:
        return [row for rows in self.epochs.values() for row in rows]


class Rows:
    """`WindowRows` on files in memory."""

    def __init__(self, files: FilesInMemory, target: Target) -> None:
        self.files = files
        self.target = target

    def write(self, path: str, rows: Sequence[Row]) -> None:
        self.files.delete(path)
        self.files.create(f"{path}/part-0", json.dumps(rows))

    def read(self, directories: Sequence[str]) -> list[Row]:
        texts = (self.files.texts[f"{directory}/part-0"] for directory in directories)
        return [(start, key, count) for text in texts for start, key, count in json.loads(text)]

    def has_windows(self, closing: Closing) -> bool:
        return bool(self._windows(closing))

    def write_windows(self, closing: Closing) -> int:
        rows, epoch = self._windows(closing), (closing.writer, closing.number)
        self.files._step()
        is_new = epoch not in self.target.epochs
        if is_new:
            self.target.epochs[epoch] = rows
        else:
            assert self.target.epochs[epoch] == rows, "a repeated closing has the same windows"
        self.files._step()
        return len(rows) if is_new else 0

    def merge_sums(self, directories: Sequence[str], into: str, closed_ms: int | None) -> None:
        self.write(into, self._added(self.read(directories), closed_ms, None))

    def merge_quarantine(self, directories: Sequence[str], into: str) -> None:
        self.write(into, self.read(directories))

    def _windows(self, closing: Closing) -> list[Row]:
        return self._added(self.read(closing.paths), closing.after_ms, closing.until_ms)

    def _added(self, rows: Sequence[Row], after: int | None, until: int | None) -> list[Row]:
        counts: Counter[tuple[int, str]] = Counter()
        for start, key, count in rows:
            if (after is None or start + SIZE > after) and (until is None or start + SIZE <= until):
                counts[start, key] += count
        return [(start, key, count) for (start, key), count in sorted(counts.items())]


class Job:
    """A process that adds the batches and closes windows."""

    def __init__(self, files: FilesInMemory, target: Target, run: str) -> None:
        self.rows = Rows(files, target)
        table = BatchTable(files, ROOT, run_id=run, clock=ManualClock(), removed_kept_ms=0)
        self.windows = WindowTable(table, self.rows, {"size": SIZE}, f"writer of {run}", merged_at_once=2)
        self.table = table

    def batch(self, number: int, watermark: int | None) -> None:
        self.windows.finish()
        self.windows.add_batch("q", number, f"end of {number}", lambda path: self._write(path, BATCHES[number]))
        self.windows.close_until(None if watermark is None else watermark - watermark % SIZE)
        self.windows.tidy()

    def _write(self, path: Callable[[str], str], events: list[tuple[int, str]]) -> BatchSums:
        closed = self.windows.progress.closed_ms
        rows = [(time - time % SIZE, key, 1) for time, key in events]
        late = [row for row in rows if closed is not None and row[0] + SIZE <= closed]
        good = [row for row in rows if row not in late]
        self.rows.write(path("sums"), good)
        if late:
            self.rows.write(path("quarantine"), late)
        newest = max((time for time, _ in events), default=None)
        return BatchSums({"sums": len(good), "quarantine": len(late)}, newest)

    def quarantine(self) -> list[Row]:
        return self.rows.read(self.table.paths("quarantine"))


def run_all(files: FilesInMemory, target: Target, *, ahead: int) -> tuple[Job, bool]:
    """A process until the end or its kill, and one more from the state that it leaves. Whether it was killed.

    The second one finds a watermark that is `ahead` of what the first one would have found.
    """
    done, was_killed = 0, False
    try:
        job = Job(files, target, "first")
        for number, watermark in enumerate(WATERMARKS):
            job.batch(number, watermark)
            done = number + 1
    except Killed:
        files.calls_left, was_killed = None, True
        job = Job(files, target, "second")
        for number in range(done, len(BATCHES)):  # Spark repeats the batch whose commit it did not record
            job.batch(number, WATERMARKS[min(number + ahead, len(WATERMARKS) - 1)])
    files.calls_left = None
    job.windows.close_until(1000)
    return job, was_killed


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_kill_at_any_step_repeats_and_loses_nothing(ahead: int):
    expected = Counter((time - time % SIZE, key) for events in BATCHES for time, key in events)
    killed_at, was_killed = 0, True
    while was_killed:
        files, target = FilesInMemory(), Target()
        files.calls_left = killed_at
        job, was_killed = run_all(files, target, ahead=ahead)
        windows = [(start, key) for start, key, _ in target.windows]
        assert len(set(windows)) == len(windows), f"killed at step {killed_at}: a window was written twice"
        found: Counter[tuple[int, str]] = Counter()
        for start, key, count in (*target.windows, *job.quarantine()):
            found[start, key] += count
        assert found == expected, f"killed at step {killed_at}"
        assert job.quarantine(), "at least one event is late"
        killed_at += 1
    assert killed_at > 60


def test_windows_close_when_the_watermark_has_passed():
    files, target = FilesInMemory(), Target()
    job = Job(files, target, "only")
    for number, windows in enumerate([[], [(0, "a", 2), (0, "b", 1)], [], [(10, "a", 1), (10, "b", 1)]]):
        before = len(target.windows)
        job.batch(number, WATERMARKS[number])
        assert target.windows[before:] == windows
    assert job.quarantine() == [(0, "b", 1)]
    assert job.windows.progress.position == "end of 3"
    assert job.windows.progress.newest_ms == 25
    assert job.windows.close_until(20) == 0


def test_a_window_without_a_closing_takes_older_events():
    """The watermark passed its end, but nothing of it was written: then no event of it is late."""
    files, target = FilesInMemory(), Target()
    job = Job(files, target, "only")
    job.windows.close_until(40)
    job.batch(0, None)
    job.windows.close_until(20)
    assert target.windows == [(0, "a", 1), (0, "b", 1), (10, "a", 1)]
    assert job.quarantine() == []


def test_closed_windows_leave_the_table():
    files, target = FilesInMemory(), Target()
    job = Job(files, target, "only")
    for number, watermark in enumerate(WATERMARKS):
        job.batch(number, watermark)
    for number in range(len(BATCHES), 2 * len(BATCHES)):
        job.windows.add_batch("q", number, "later", lambda path: job._write(path, [(70, "a")]))
        job.windows.tidy()
    rows = job.rows.read(job.table.paths("sums"))
    assert {start for start, _, _ in rows} == {50, 70}
    assert len(job.table.version.of_kind("sums")) < 4


def test_other_windows_are_refused():
    files, target = FilesInMemory(), Target()
    Job(files, target, "first").batch(0, None)
    table = BatchTable(files, ROOT, run_id="second", clock=ManualClock())
    with pytest.raises(InvalidRequestError, match="begun with size = 10, not 20: use a new checkpoint"):
        WindowTable(table, Rows(files, target), {"size": 20}, "w")
    assert WindowProgress.from_json(read_version(files, ROOT).state).writer == "writer of first"


def test_a_table_without_progress_is_refused():
    with pytest.raises(CorruptError, match="no progress that can be read"):
        WindowProgress.from_json(TableVersion.from_json(TableVersion(number=3).to_json()).state)
