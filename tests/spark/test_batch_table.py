"""Batch tables: a batch counts once, however often it is repeated and wherever the process is killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from job_files_in_memory import FilesInMemory, Killed

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError, UnavailableError
from headrace.spark.jobs import batch_table
from headrace.spark.jobs.batch_table import (
    BatchRows,
    BatchTable,
    StoredPart,
    TableVersion,
    parts_to_merge,
    read_version,
)

ROOT = "s3://bucket/table"
KEPT_MS = 1000


class Job:
    """A process that writes batches of numbers, and merges them to sums."""

    def __init__(self, files: FilesInMemory, run_id: str, clock: ManualClock | None = None) -> None:
        self.files = files
        self.added = 0
        self.table = BatchTable(files, ROOT, run_id=run_id, clock=clock or ManualClock(), removed_kept_ms=KEPT_MS)

    def batch(self, number: int, query: str = "q") -> bool:
        written = self.table.add_batch(query, number, lambda path: self._write(path, number))
        self.added = number + 1
        self.table.merge("sums", self._merge, at_once=3)
        self.table.clean(["sums"])
        return written is not None

    def _write(self, path: Callable[[str], str], number: int) -> BatchRows:
        self.files.replace_rows(path("sums"), [10**number, 10**number])
        return BatchRows({"sums": 2})

    def _merge(self, directories: Sequence[str], into: str) -> None:
        self.files.replace_rows(into, [sum(sum(self.files.rows(directory)) for directory in directories)])

    def total(self) -> int:
        return sum(sum(self.files.rows(path)) for path in self.table.paths("sums"))


def expected(batches: int) -> int:
    return sum(2 * 10**number for number in range(batches))


class PausedFiles(FilesInMemory):
    """Files whose `pause_at`-th listing or change from now on waits until `meanwhile` has run."""

    def __init__(self) -> None:
        super().__init__()
        self.pause_at: int | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def names(self, directory: str) -> list[str]:
        self._pause()
        return super().names(directory)

    def _step(self) -> None:
        self._pause()
        super()._step()

    def _pause(self) -> None:
        if self.pause_at is not None:
            self.pause_at -= 1
            if self.pause_at < 0:
                self.pause_at = None
                self.meanwhile()


def test_a_kill_between_any_two_steps_changes_no_sum():
    batches, killed_at = 9, 0
    while True:
        files = FilesInMemory()
        files.calls_left = killed_at
        done = 0
        try:
            first = Job(files, "first", ManualClock())
            for number in range(batches):
                first.batch(number)
                done = number + 1
            break
        except Killed:
            files.calls_left = None
        clock = ManualClock()
        clock.advance(2 * KEPT_MS)
        second = Job(files, "second", clock)
        for number in range(done, batches):  # Spark repeats the batch whose commit it did not record.
            second.batch(number)
        assert second.total() == expected(batches), f"killed at step {killed_at}"
        clock.advance(2 * KEPT_MS)
        second.table.clean(["sums"])
        kept = {f"sums/{name}" for name in files.names(f"{ROOT}/sums")}
        assert kept == {part.directory for part in second.table.version.of_kind("sums")}
        killed_at += 1
    assert killed_at > 60


def test_a_repeated_batch_is_not_written():
    files = FilesInMemory()
    assert Job(files, "first").batch(0)
    before = dict(files.texts)
    assert not Job(files, "second").batch(0)
    assert files.texts == before


def test_another_query_has_its_own_batches():
    table = Job(FilesInMemory(), "first").table
    table.add_batch("one", 4, lambda _path: BatchRows({}))
    assert table.version.has_batch("one", 3)
    assert not table.version.has_batch("other", 0)


def test_of_two_writers_one_is_refused():
    files = FilesInMemory()
    first, second = Job(files, "one"), Job(files, "other")
    first.batch(0)
    with pytest.raises(ConflictError):
        second.batch(0)
    assert Job(files, "third").total() == expected(1)


def test_a_writer_that_others_left_behind_is_refused():
    """The version that would collide with its own was deleted as an old one."""
    files, clock = FilesInMemory(), ManualClock()
    stale = Job(files, "stale", clock)
    stale.batch(0, "a")
    other = Job(files, "other", clock)
    for number in range(10):
        clock.advance(KEPT_MS)
        other.batch(number, "b")
    assert f"{ROOT}/_versions/{stale.table.version.number + 1:010}.json" not in files.texts
    before = dict(files.texts)
    with pytest.raises(ConflictError):
        stale.table.clean(["sums"])
    with pytest.raises(ConflictError):
        stale.table.record({"state": 1})
    assert files.texts == before
    with pytest.raises(ConflictError):
        stale.batch(1, "a")
    assert other.batch(10, "b")
    assert other.total() == expected(1) + expected(11)


def test_a_pause_at_any_step_loses_no_batch_of_either_run():
    """However long a run pauses: meanwhile another one adds batches, merges them and deletes what is old."""
    pause_at, refused = 0, 0
    while True:
        files, clock, others = PausedFiles(), ManualClock(), list[Job]()
        paused = Job(files, "paused", clock)
        for number in range(3):
            paused.batch(number, "a")

        def meanwhile(files: PausedFiles = files, clock: ManualClock = clock, others: list[Job] = others) -> None:
            others.append(Job(files, "other", clock))
            for number in range(8):
                clock.advance(KEPT_MS)
                others[0].batch(number, "b")

        files.pause_at, files.meanwhile = pause_at, meanwhile
        try:
            for number in range(3, 7):
                paused.batch(number, "a")
        except ConflictError:
            refused += 1
        if files.pause_at is not None:
            break
        current = read_version(files, ROOT)
        assert current.batches["b"] == 7
        assert current.batches["a"] + 1 >= paused.added, f"paused at step {pause_at}: a batch that was added is lost"
        (other,) = others
        assert other.batch(8, "b")
        assert other.total() == expected(9) + expected(current.batches["a"] + 1), f"paused at step {pause_at}"
        pause_at += 1
    assert pause_at > 40
    assert refused > 40


def test_an_older_checkpoint_is_refused():
    """A batch of it may end at another place in the stream, so to skip it could lose events."""
    files = FilesInMemory()
    for number in range(4):
        Job(files, f"run {number}").batch(number)
    before = dict(files.texts)
    with pytest.raises(IllegalStateError, match="committed batch 3, and now runs batch 1") as raised:
        Job(files, "restored").batch(1)
    assert raised.value.specific_code == "later_batch_committed"
    assert files.texts == before


def test_an_attempt_never_writes_where_another_one_wrote():
    """The file of the version may be there although its creation reported an error."""
    files = FilesInMemory()
    job = Job(files, "first")
    files.fails_after_create = True
    with pytest.raises(UnavailableError):
        job.batch(0)
    files.fails_after_create, files.calls_left = False, 2
    with pytest.raises(Killed):
        job.batch(0)
    files.calls_left = None
    assert Job(files, "second").total() == expected(1)


def test_two_tables_of_an_application_do_not_share_directories(monkeypatch: pytest.MonkeyPatch):
    files = FilesInMemory()
    monkeypatch.setattr(batch_table, "HadoopFiles", lambda _spark: files)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(applicationId="app"))
    first, second = (batch_table.open_table(spark, ROOT) for _ in range(2))

    def write(rows: list[int]) -> Callable[[Callable[[str], str]], BatchRows]:
        def write_rows(path: Callable[[str], str]) -> BatchRows:
            files.replace_rows(path("sums"), rows)
            return BatchRows({"sums": len(rows)})

        return write_rows

    first.add_batch("q", 0, write([1, 2]))
    with pytest.raises(ConflictError):
        second.add_batch("p", 0, write([3]))
    (path,) = first.paths("sums")
    assert files.rows(path) == [1, 2]


def test_merged_directories_stay_for_readers_of_before():
    files, clock = FilesInMemory(), ManualClock()
    job = Job(files, "first", clock)
    for number in range(2):
        job.batch(number)
    before = job.table.paths("sums")
    job.batch(2)
    assert len(job.table.paths("sums")) == 1
    assert all(files.exists(path) for path in before)
    clock.advance(KEPT_MS)
    job.table.clean(["sums"])
    assert not any(files.exists(path) for path in before)


def test_few_versions_are_kept_and_the_newest_counts():
    files = FilesInMemory()
    job = Job(files, "first")
    for number in range(20):
        job.batch(number)
    assert len(files.names(f"{ROOT}/_versions")) <= 4
    assert read_version(files, ROOT).batches == {"q": 19}
    assert read_version(files, ROOT).of_kind("sums") == job.table.version.of_kind("sums")


@pytest.mark.parametrize("size_bytes", [1, 700, 40_000])
def test_many_small_batches_make_few_parts_and_few_rewrites(size_bytes: int):
    parts: list[StoredPart] = []
    written, most = 0, 0
    for number in range(5_000):
        parts.append(StoredPart(f"{number}", 1, size_bytes))
        while chosen := parts_to_merge(parts, bytes_max=10_000_000):
            merged = StoredPart(f"m{number}", 1, sum(part.size_bytes for part in chosen))
            written += merged.size_bytes
            parts = [part for part in parts if part not in chosen] + [merged]
        most = max(most, sum(part.size_bytes < 10_000_000 for part in parts))
    assert most <= 15 * 6
    assert written <= 6 * 5_000 * size_bytes


def test_a_version_survives_its_json():
    part, removed = StoredPart("sums/version=0000000001-a", 3, 99), StoredPart("sums/version=0000000002-a", 1, 7)
    version = TableVersion().with_batch("q", 0, {"sums": part}, {"a": "bigint"}).with_batch("q", 5, {"sums": removed})
    version = version.with_merge("sums", [removed], StoredPart("sums/version=0000000003-a", 1, 7), 42)
    assert TableVersion.from_json(version.to_json()) == version
    assert version.known_directories() == {part.directory, removed.directory, "sums/version=0000000003-a"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "number": 1}'])
def test_a_damaged_version_is_refused(text: str):
    with pytest.raises(CorruptError):
        TableVersion.from_json(text)
