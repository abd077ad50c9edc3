"""The journal of a simulated store: `JournalCommits` as it is, driven by events instead of threads.

A commit takes the queued records when it begins, and writes, syncs and reports them at one moment when it ends. If the
process is killed in between, a part of its steps is done, and nothing is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c

from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.store_volume import LogSpace
from headrace.ports.ledger import Done
from headrace.segmentstore.log.journal.file_copies import FileCopy, Portion
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_interface import CommitsOfJournal
from headrace.segmentstore.log.journal.pending_records import PendingRecord, barrier
from simulation.draws import Draws
from simulation.scheduler import MS
from simulation.world.loop import SimulatedLoop, SimulatedProcess
from simulation.world.volume import ProcessEndedError, VolumeDisk

_LOOK_AT_STALL_EVERY: Final = 100 * MS
"""A commit that has met a stalled disk ends soon after the stall."""

_STEPS_OF_A_COMMIT: Final = 5
"""A kill meets one of so many first steps of a commit; most commits have two, a write and a sync."""


class SimulatedJournal(CommitsOfJournal):
    """`log.journal_interface.EntryJournal`, with the settings of `Journal`."""

    def __init__(
        self,
        loop: SimulatedLoop,
        process: SimulatedProcess,
        disk: VolumeDisk,
        draws: Draws,
        *,
        file_bytes: int,
        copy_from_files: int,
        copies: int = 1,
        on_failure: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._process = process
        self._disk = disk
        self._draws = draws
        super().__init__(
            JournalCommits(
                disk,
                lambda: draws.number("salt", process.number),
                file_bytes=file_bytes,
                copy_from_files=copy_from_files,
                copies=copies,
            )
        )
        self.failure: UnavailableError | None = None
        self._on_failure = on_failure
        self._queue: list[PendingRecord] = []
        self._batch: list[PendingRecord] | None = None  # of the commit that runs
        self._begun = 0
        self._started = False
        self._closing = False
        self._copy: FileCopy | None = None
        self._portions: Iterator[Portion] = iter(())
        self._portion: Portion | None = None
        self._copy_ended: bool | None = None  # whether it is complete
        self._preparing = False

    def start(self) -> None:
        """As `Journal.start`; in a thread."""
        self._commits.load(self._check_open)
        self._commits.begin()
        self._started = True
        if self._queue:
            self._wake()
        self._prepare_spares()
        self._begin_copy()

    def space(self) -> LogSpace:
        return self._commits.space()

    @property
    def commit_under_way(self) -> int | None:
        """As `Journal.commit_under_way`."""
        return None if self._batch is None else self._begun

    def submit(self, pending: PendingRecord) -> None:
        """As `Journal.submit`."""
        if self.failure is not None:
            raise self.failure
        if self._closing:
            raise UnavailableError("the journal is closed: connect to the store again once it has restarted")
        self._queue.append(pending)
        self._wake()

    def when_durable(self, done: Done) -> None:
        """As `Journal.when_durable`. In a thread, which may wait for it, everything becomes durable now."""
        if not self._loop.in_thread:
            self.submit(barrier(done))
            return
        self._drain()
        done(self.failure)

    def close(self) -> None:
        """As `Journal.close`; in a thread."""
        self._closing = True
        self._drain()
        self._commits.files.close()

    def kill(self) -> None:
        """Do some steps of the commit that runs: the process was killed meanwhile."""
        batch, self._batch = self._batch, None
        if batch is None or self.failure is not None:
            return
        self._disk.steps_left = self._draws.below(_STEPS_OF_A_COMMIT, "steps before a kill", self._process.number)
        try:
            self._commits.commit(batch, lambda _: None)
        except (ProcessEndedError, OSError):
            return

    # Commits

    def _wake(self) -> None:
        """What came before the start waits for it, as in `Journal`."""
        if self._started and self._batch is None and self.failure is None:
            self._batch, self._queue = self._queue, []
            self._begun += 1
            delay = self._disk.volume.commit_time(self._loop.scheduler.now)
            self._process.after(delay, "commit", self._end_commit)

    def _end_commit(self) -> None:
        batch = self._batch
        if batch is None:
            return  # it was ended by a thread that waited
        if self._disk.volume.stalled_until > self._loop.scheduler.now:
            self._process.after(_LOOK_AT_STALL_EVERY, "commit", self._end_commit)
            return
        self._commit(batch)
        self._batch = None
        if self.failure is None and self._queue:
            self._wake()

    def _drain(self) -> None:
        batch, self._batch = self._batch or [], None
        batch, self._queue = batch + self._queue, []
        if self.failure is None:
            self._commit(batch)

    def _commit(self, batch: list[PendingRecord]) -> None:
        commits = self._commits
        self._check_memory(batch)
        try:
            commits.commit(batch, self._report_durable)
            self._advance_copy()
        except Exception as error:  # noqa: BLE001 - after any error the disk's state is unknown
            self._fail(batch, error)
            return
        if commits.space_changed:
            commits.space_changed = False
            self._begin_copy()
            if commits.files.spares.is_low and not self._preparing:
                self._preparing = True
                self._process.after(self._disk.volume.commit_time(self._loop.scheduler.now), "spare", self._spare)

    def _check_memory(self, batch: list[PendingRecord]) -> None:
        """I1: fail the run if the memory of an entry has changed since its checksum was made."""
        for pending in batch:
            checksum = 0
            for part in pending.parts:
                checksum = crc32c(part, checksum)
            if pending.payload_checksum not in (None, checksum):
                self._loop.violations.append(f"I1: entry {pending.entry} has changed in memory before it was written")

    def _report_durable(self, committed: list[PendingRecord]) -> None:
        self._report(list(committed), None)

    def _report(self, records: list[PendingRecord], error: Exception | None) -> None:
        def run() -> None:
            for pending in records:
                if pending.released is not None:
                    pending.released()
                pending.done(error)

        self._process.call_soon(run)

    def _fail(self, batch: list[PendingRecord], error: Exception) -> None:
        self.failure = UnavailableError(f"the journal failed and accepts no more entries: {error}")
        if isinstance(error, HeadraceError):
            self.failure.details.update(error.details)
        failed, self._queue = batch + self._queue, []
        self._report(failed, self.failure)
        self._process.call_soon(self._on_failure)

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError("the journal was closed while its files were being read")

    # Spare files and copies, which have threads of their own

    def _spare(self) -> None:
        self._preparing = False
        if self.failure is None and not self._closing:
            self._prepare_spares()

    def _prepare_spares(self) -> None:
        try:
            self._commits.files.spares.prepare()
        except OSError:
            return  # the next rotation tries again

    def _begin_copy(self) -> None:
        copy = self._commits.copy_to_begin()
        if copy is not None:
            self._copy, self._portions = copy, copy.portions()
            self._read_later()

    def _read_later(self) -> None:
        delay = self._disk.volume.commit_time(self._loop.scheduler.now)
        self._process.after(delay, "copy", self._read_portion)

    def _read_portion(self) -> None:
        if self._copy is None or self.failure is not None or self._closing:
            return
        try:
            self._portion = next(self._portions, None)
            if self._portion is None:
                self._copy_ended = True
        except (HeadraceError, OSError):
            self._copy_ended = False
        self._wake()

    def _advance_copy(self) -> None:
        copy, portion, self._portion = self._copy, self._portion, None
        if copy is None:
            return
        if portion is not None:
            self._commits.write_portion(copy, portion)
            self._read_later()
        elif self._copy_ended is not None:
            ended, self._copy_ended, self._copy = self._copy_ended, None, None
            self._commits.end_copy(copy, is_complete=ended)
