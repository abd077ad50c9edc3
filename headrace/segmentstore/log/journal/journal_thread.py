"""The journal of a volume: one thread that writes one file at a time, with one sync for all queued records.

Records that arrive during a sync form the next commit. This is group commit over all containers, without a timer. The
journal writes the caller's buffers without copying them, except very small ones, which it joins. After a failed write
or sync the content of the disk is unknown. The journal then acknowledges nothing more, and only recovery can find out.

`journal_commits` decides what is written; this module has the threads and the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Final

from headrace.model.errors import HeadraceError, UnavailableError
from headrace.model.store_volume import COPY_FROM_FILES, LogSpace
from headrace.ports.journal_disk import JournalDisk
from headrace.ports.ledger import Done
from headrace.segmentstore.log.journal.file_copies import FileCopy, Portion
from headrace.segmentstore.log.journal.journal_commits import JOURNAL_FILE_BYTES, Call, JournalCommits
from headrace.segmentstore.log.journal.journal_interface import CommitsOfJournal
from headrace.segmentstore.log.journal.pending_records import Deliver, PendingRecord, barrier

_log = logging.getLogger(__name__)

MARK_AFTER_S: Final = 5.0
"""Without new records for this long, a mark is written behind the last commit: one small commit before each rest."""


class Journal(CommitsOfJournal):
    """The journal of one volume, shared by all containers of a process.

    `random_salt` returns unsigned 64-bit numbers. `deliver` runs a callable on the event loop, from any thread.
    `on_failure` is called on the event loop when the journal fails, even if no caller waits. The other settings are
    those of `JournalCommits`. `index` knows which entries the journal holds, `reader` reads them.
    """

    def __init__(
        self,
        disk: JournalDisk,
        random_salt: Callable[[], int],
        deliver: Deliver,
        *,
        file_bytes: int = JOURNAL_FILE_BYTES,
        logs_on_volume: int = 1,
        copy_from_files: int = COPY_FROM_FILES,
        copies: int = 1,
        on_failure: Call | None = None,
        mark_after_s: float = MARK_AFTER_S,
    ) -> None:
        super().__init__(
            JournalCommits(
                disk,
                random_salt,
                file_bytes=file_bytes,
                logs_on_volume=logs_on_volume,
                copy_from_files=copy_from_files,
                copies=copies,
            )
        )
        self._deliver = deliver
        self._on_failure = on_failure
        self._mark_after_s = mark_after_s
        self._lock = Lock()
        self._queue: list[PendingRecord] = []
        self._news: SimpleQueue[None] = SimpleQueue()  # wakes the thread; far cheaper than a condition variable
        self._closing = False
        self._commits_begun = 0
        self._is_committing = False
        self._failure: UnavailableError | None = None
        self._scanning = Lock()  # held during a scan, when the files must not be closed
        self._copy: _CopyThread | None = None
        self._worker = Thread(target=self._run, name="journal", daemon=True)
        self._spare_thread: Thread | None = None

    def start(self) -> None:
        """Load the entries on disk, then accept new ones. Blocks; call it once, before any other method.

        Raises:
            CorruptError: durable entries are missing or damaged, and there is one copy.
            UnavailableError: the journal was closed meanwhile.
        """
        with self._scanning:
            self._check_open()
            self._commits.load(self._check_open)
            self._commits.begin()
            self._prepare_spares()
            self._begin_copy()
            self._worker.start()

    @property
    def damaged_entries(self) -> int:
        """How many damaged entries the scan found. The index knows which they are."""
        return self._commits.damaged_entries

    def submit(self, pending: PendingRecord) -> None:
        """Queue a record; `pending.released` and `pending.done` are called on the event loop. Callable from any thread.

        Raises:
            UnavailableError: the journal has failed or is closed.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise UnavailableError("the journal is closed: connect to the store again once it has restarted")
            self._queue.append(pending)
            if len(self._queue) == 1:
                self._news.put(None)

    def when_durable(self, done: Done) -> None:
        """Call `done` on the event loop when everything queued so far is durable. Raises as `submit`."""
        self.submit(barrier(done))

    @property
    def queued_entries(self) -> int:
        """The number of entries that wait for the current commit to end."""
        return len(self._queue)

    @property
    def commit_under_way(self) -> int | None:
        """The number of the commit that has begun and not ended; None while the thread waits for records."""
        return self._commits_begun if self._is_committing else None

    @property
    def synced_commits(self) -> int:
        return self._commits.synced_commits

    @property
    def copied_bytes(self) -> int:
        return self._commits.copied_bytes

    @property
    def failure(self) -> UnavailableError | None:
        """The error that stopped the journal; None while it accepts entries."""
        return self._failure

    def close(self) -> None:
        """Commit the queued entries, then stop. Blocks until the thread and any running scan have ended."""
        with self._lock:
            self._closing = True
        self._news.put(None)
        with self._scanning:
            pass  # `start` has now either failed or started the thread, which the next lines join
        if self._worker.ident is not None:
            self._worker.join()
        if self._copy is not None:
            self._copy.join()
        if self._spare_thread is not None:
            self._spare_thread.join()
        self._commits.files.close()

    def space(self) -> LogSpace:
        """The space that the journal uses on the volume, and its limit. Callable from any thread."""
        return self._commits.space()

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError("the journal was closed while its files were being read")

    def _run(self) -> None:
        batch: list[PendingRecord] = []
        commits = self._commits
        try:
            while True:
                self._is_committing = False
                has_news = self._wait()
                self._commits_begun += 1
                self._is_committing = True
                if not has_news:
                    commits.mark_end()
                    continue
                with self._lock:
                    batch, self._queue = self._queue, []
                    if self._closing and not batch:
                        return
                commits.commit(batch, self._report_durable)
                if self._copy is not None:
                    self._advance_copy(self._copy)
                if commits.space_changed:
                    commits.space_changed = False
                    self._begin_copy()
                    self._begin_spares()
        except Exception as error:  # noqa: BLE001 - after any error the disk's state is unknown: report it and stop
            self._fail(batch, error)
            if isinstance(error, OSError):
                commits.wipe_end_after(error)
        finally:
            if self._copy is not None:
                self._copy.stop()

    def _wait(self) -> bool:
        """Wait for records. Returns False if there are none for a while, and nothing is behind the last commit."""
        try:
            self._news.get(timeout=self._mark_after_s if self._commits.lacks_mark else None)
        except Empty:
            return False
        return True

    def _report_durable(self, committed: list[PendingRecord]) -> None:
        self._deliver(_Report(committed, None))

    def _begin_spares(self) -> None:
        if self._commits.files.spares.is_low and (self._spare_thread is None or not self._spare_thread.is_alive()):
            self._spare_thread = Thread(target=self._prepare_spares, name="journal-spare", daemon=True)
            self._spare_thread.start()

    def _prepare_spares(self) -> None:
        try:
            self._commits.files.spares.prepare()
        except OSError as error:
            # Not fatal yet: the next rotation needs the file, tries again, and fails the journal if it cannot have it.
            _log.error("event=journal_spare_failed error=%r", error)

    def _begin_copy(self) -> None:
        copy = self._commits.copy_to_begin()
        if copy is not None:
            self._copy = _CopyThread(copy, self._wake)

    def _advance_copy(self, thread: _CopyThread) -> None:
        """Write the portion that the file copy has read, or end the copy."""
        ended = thread.ended
        portion = thread.take_portion()
        if portion is not None:
            self._commits.write_portion(thread.copy, portion)
            thread.portion_written()
        if ended:
            thread.join()
            self._copy = None
            self._commits.end_copy(thread.copy, is_complete=thread.is_complete)

    def _wake(self) -> None:
        self._news.put(None)

    def _fail(self, batch: list[PendingRecord], error: Exception) -> None:
        _log.critical("event=journal_failed error=%r", error)
        failure = UnavailableError(f"the journal failed and accepts no more entries: {error}")
        if isinstance(error, HeadraceError):
            failure.details.update(error.details)
        with self._lock:
            self._failure = failure
            failed, self._queue = batch + self._queue, []
        self._deliver(_Report(failed, failure))
        if self._on_failure is not None:
            self._deliver(self._on_failure)


class _CopyThread:
    """Reads the portions of a file copy, and hands them to the journal's thread one at a time.

    `wake` tells the journal's thread that there is work to do.
    """

    def __init__(self, copy: FileCopy, wake: Call) -> None:
        self.copy = copy
        self.ended = False
        self.is_complete = False
        self._wake = wake
        self._portion: Portion | None = None
        self._written = Event()
        self._stopped = False
        self._worker = Thread(target=self._run, name="journal-copy", daemon=True)
        self._worker.start()

    def take_portion(self) -> Portion | None:
        """The portion that has been read; None if there is none."""
        portion, self._portion = self._portion, None
        return portion

    def portion_written(self) -> None:
        """Report that the portion that was taken is durable."""
        self._written.set()

    def stop(self) -> None:
        """End, because the journal's thread has ended and no portion will be written."""
        self._stopped = True
        self._written.set()

    def join(self) -> None:
        self._worker.join()

    def _run(self) -> None:
        try:
            for portion in self.copy.portions():
                self._portion = portion
                self._wake()
                self._written.wait()
                self._written.clear()
                if self._stopped:
                    return
            self.is_complete = True
        except Exception as error:  # noqa: BLE001 - the file keeps its entries: it is only not freed
            _log.error("event=journal_copy_failed file=%r error=%r", self.copy.log_file.name, error)
        finally:
            self.ended = True
            self._wake()


@dataclass(slots=True)
class _Report:
    """Reports the result of one commit to the callers of its records, in order, on the event loop."""

    records: list[PendingRecord]
    error: Exception | None

    def __call__(self) -> None:
        for pending in self.records:
            if pending.released is not None:
                pending.released()
            pending.done(self.error)
