"""The journal of a volume: one thread that writes one file at a time, with one sync for all queued entries.

Entries that arrive during a sync form the next commit. This is group commit over all containers, without a timer. The
journal writes the caller's buffers without copying them, except very small ones, which it joins. After a failed write
or sync the content of the disk is unknown. The journal then acknowledges nothing more, and only recovery can find out.

Files are freed oldest first. When most of the log is not needed, the needed part of the oldest file is copied into the
newest (`file_copies`). A container that lags then does not keep the files of all the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from headrace.model import log_space
from headrace.model.errors import HeadraceError, InvalidRequestError, UnavailableError
from headrace.model.log_space import COPY_FROM_FILES, LogSpace
from headrace.ports.journal_disk import JournalDisk
from headrace.segmentstore.log import journal_format
from headrace.segmentstore.log.file_copies import FileCopy, PendingEntry
from headrace.segmentstore.log.journal_files import JournalFiles, LogFile, Stretch, needed_bytes
from headrace.segmentstore.log.journal_format import (
    ENTRY_BYTES_MAX,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RecordHeader,
)
from headrace.segmentstore.log.journal_scan import WINDOW_BYTES, RecordScan
from headrace.segmentstore.log.recovered_entries import RecoveredEntries
from headrace.segmentstore.log.rereading import Found, Rereading

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)

JOINED_PART_BYTES_MAX: Final = 4096
"""Parts that are smaller than this on average are joined. A checksum and a vector entry for each part would cost
several times more, and the thread would hold the interpreter for that time."""

JOURNAL_FILE_BYTES: Final = 64 << 20

Call = Callable[[], None]


class Journal:
    """The journal of one volume, shared by all containers of a process.

    `random_salt` returns unsigned 64-bit numbers. `deliver` runs a callable on the event loop, from any thread.
    `logs_on_volume` is the number of journals that share the volume. A journal with fewer than `copy_from_files` files
    copies nothing. `on_failure` is called on the event loop when the journal fails, even if no caller waits.
    """

    def __init__(
        self,
        disk: JournalDisk,
        random_salt: Callable[[], int],
        deliver: Callable[[Call], object],
        *,
        file_bytes: int = JOURNAL_FILE_BYTES,
        logs_on_volume: int = 1,
        copy_from_files: int = COPY_FROM_FILES,
        on_failure: Call | None = None,
    ) -> None:
        if file_bytes < FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 1:
            raise InvalidRequestError(f"a journal file of {file_bytes} bytes holds no record: make it larger")
        self.entry_bytes_max = min(ENTRY_BYTES_MAX, file_bytes - FILE_HEADER_BYTES - RECORD_HEADER_BYTES)
        self._disk = disk
        self._file_bytes = file_bytes
        self._logs_on_volume = logs_on_volume
        self._copy_from_files = copy_from_files
        self._files = JournalFiles(disk, file_bytes, random_salt)
        self._deliver = deliver
        self._on_failure = on_failure
        self._lock = Lock()
        self._queue: list[PendingEntry] = []
        self._news: SimpleQueue[None] = SimpleQueue()  # wakes the thread; far cheaper than a condition variable
        self._truncated_before: dict[int, int] = {}  # only truncation points that are durable
        self._closing = False
        self._failure: UnavailableError | None = None
        self._recovered: dict[int, RecoveredEntries] = {}
        self._readable: WeakValueDictionary[int, RecoveredEntries] = WeakValueDictionary()  # while a ledger uses them
        self._readings_lock = Lock()  # guards which entries are being read, and so which files may be freed
        self._rereading: Rereading | None = None
        self._scanning = Lock()  # held during a scan, when the files must not be closed
        self._copy: FileCopy | None = None
        self._copy_thread: Thread | None = None
        self._last_commit: tuple[LogFile, int] | None = None  # its file, and the position where it begins
        self._thread = Thread(target=self._run, name="journal", daemon=True)
        self._spare_thread: Thread | None = None
        self.synced_commits = 0
        self.oldest_sequence = 0
        self.active_sequence = 0
        self.oldest_needed_bytes: dict[int, int] = {}
        self.copied_bytes = 0

    def start(self) -> None:
        """Load the entries on disk, then accept new ones. Blocks; call it once, before any other method.

        Raises:
            CorruptError: durable entries are missing or damaged.
            UnavailableError: the journal was closed meanwhile.
        """
        with self._scanning:
            self._check_open()
            self._load()
            self._settle_last_commit()
            self._files.free_empty()
            for container, entries in self._recovered.items():
                self._truncated_before[container] = entries.truncated_before
                self._readable[container] = entries
            # Free files before `begin`, because the volume may have no room for a new one.
            self._files.recycle_oldest(self._truncated_before, self._is_read)
            self._files.begin()
            self._prepare_spares()
            self._recycle()
            self._thread.start()

    @property
    def recovered(self) -> dict[int, RecoveredEntries]:
        """The entries that `start` found, by container, truncated ones included. A caller removes those it takes."""
        return self._recovered

    def submit(self, pending: PendingEntry) -> None:
        """Queue an entry; `pending.done` is called on the event loop. Callable from any thread.

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

    @property
    def queued_entries(self) -> int:
        """The number of entries that wait for the current commit to end."""
        return len(self._queue)

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
        if self._thread.ident is not None:
            self._thread.join()
        for helper in (self._copy_thread, self._spare_thread):
            if helper is not None:
                helper.join()
        self._files.close()

    def space(self) -> LogSpace:
        """The space that the journal uses on the volume, and its limit. Callable from any thread."""
        found, volume_bytes = self._disk.space(), self._files.volume_bytes
        room_bytes = log_space.room_bytes(found.total_bytes, found.free_bytes, volume_bytes, self._logs_on_volume)
        return LogSpace(self._files.log_bytes, volume_bytes, room_bytes, self._file_bytes)

    def read_again(self, containers: Collection[int]) -> Found:
        """Find the entries of containers whose ledgers are closed. Blocks for one pass over all files.

        Raises:
            CorruptError: records that were durable are damaged.
            UnavailableError: a file cannot be read, or the journal is being closed.
        """
        with self._scanning:
            self._check_open()
            with self._readings_lock:
                self._rereading = rereading = Rereading(list(self._files.used), containers, self._check_open)
            try:
                rereading.scan()
                with self._readings_lock:  # a file copy that ends later updates the entries through `_readable`
                    found = rereading.found()
                    self._readable.update(
                        {each: entries for each, entries in found.items() if isinstance(entries, RecoveredEntries)}
                    )
            finally:
                with self._readings_lock:
                    self._rereading = None
        return found

    def _check_open(self) -> None:
        if self._closing:
            raise UnavailableError("the journal was closed while its files were being read")

    def _load(self) -> None:
        loaded = self._files.load()
        for index, (log_file, header) in enumerate(loaded):
            end = loaded[index + 1][1].previous_end if index + 1 < len(loaded) else None
            scan = RecordScan(log_file.file, header.salt, end, log_file.name)
            for record in scan:
                self._check_open()
                container, entry = record.header.container, record.header.entry
                if container not in self._recovered:
                    self._recovered[container] = RecoveredEntries(container)
                self._recovered[container].add(log_file, record)
                log_file.note(container, entry, record.position - RECORD_HEADER_BYTES, scan.end)
            log_file.end = scan.end
            if scan.torn_bytes:
                _log.warning(
                    "event=journal_torn_end_cut file=%r position=%d bytes=%d", log_file.name, scan.end, scan.torn_bytes
                )
            self._last_commit = (log_file, scan.commit_start)

    def _settle_last_commit(self) -> None:
        """Make the last commit durable before any caller learns of its entries.

        If the previous process was killed before its sync, these bytes may be in the page cache only. After a failed
        sync the kernel may even count them as written, so a sync alone is not enough: write them again.
        """
        if self._last_commit is None:
            return
        log_file, start = self._last_commit
        for position in range(start, log_file.end, WINDOW_BYTES):
            self._check_open()
            length = min(WINDOW_BYTES, log_file.end - position)
            log_file.file.write(position, [log_file.file.read(position, length)])
        log_file.file.sync()

    def _run(self) -> None:
        batch: list[PendingEntry] = []
        try:
            while True:
                self._news.get()
                with self._lock:
                    batch, self._queue = self._queue, []
                    if self._closing and not batch:
                        return
                self._commit(batch)
                if self._copy is not None:
                    self._advance_copy(self._copy)
        except Exception as error:  # noqa: BLE001 - after any error the disk's state is unknown: report it and stop
            self._fail(batch, error)
        finally:
            if self._copy is not None:
                self._copy.stop()

    def _commit(self, batch: list[PendingEntry]) -> None:
        """Write and sync the batch, once for each file that it needs. Entries that are durable leave `batch`."""
        truncated = False
        while batch:
            active = self._files.active
            parts: list[Buffer] = []
            count, end = self._collect(batch, active, parts)
            if not count:
                self._rotate()
                continue
            position = active.end
            active.file.write(position, parts)
            active.file.sync()
            active.end = end
            self.synced_commits += 1
            committed = batch[:count]
            del batch[:count]
            if committed[0].copy is None:
                self._deliver(_Report(committed, None))
            for pending in committed:
                start, position = position, position + RECORD_HEADER_BYTES + pending.length
                active.note(pending.container, pending.entry, start, position)
                if pending.copy is not None:
                    pending.copy.note_copy(active, pending, position - pending.length)
                elif pending.truncated_before > self._truncated_before.get(pending.container, 0):
                    self._truncated_before[pending.container] = pending.truncated_before
                    truncated = True
        if truncated:
            self._recycle()

    def _collect(self, batch: list[PendingEntry], active: LogFile, parts: list[Buffer]) -> tuple[int, int]:
        """Add the records of as many entries as fit into the file to `parts`; return their count and their end."""
        position = active.end
        for index, pending in enumerate(batch):
            after = position + RECORD_HEADER_BYTES + pending.length
            if after > active.file.size_bytes:
                return index, position
            header = RecordHeader(
                pending.container,
                pending.epoch,
                pending.entry,
                pending.truncated_before,
                active.end,
                pending.length,
                pending.copy is not None,
            )
            payload = pending.parts
            if pending.length < JOINED_PART_BYTES_MAX * len(payload):
                payload = (b"".join(payload),)
            parts.append(journal_format.encode_record_header(active.salt, header, payload))
            parts.extend(payload)
            position = after
        return len(batch), position

    def _rotate(self) -> None:
        if self._spare_thread is not None:
            self._spare_thread.join()
        self._files.activate_next()
        self._spare_thread = Thread(target=self._prepare_spares, name="journal-spare", daemon=True)
        self._spare_thread.start()
        self._recycle()

    def _prepare_spares(self) -> None:
        try:
            self._files.prepare_spares()
        except OSError as error:
            # Not fatal yet: the next rotation needs the file, tries again, and fails the journal if it cannot have it.
            _log.error("event=journal_spare_failed error=%r", error)

    def _recycle(self) -> None:
        with self._readings_lock:
            self._files.recycle_oldest(self._truncated_before, self._is_read)
        oldest = self._files.used[0]
        self.oldest_sequence = oldest.sequence
        self.active_sequence = self._files.active.sequence
        needed = oldest.needed(self._truncated_before)
        self.oldest_needed_bytes = {container: needed_bytes([each]) for container, each in needed.items()}
        if self._copy is None and not (oldest.copied or oldest.damaged) and self._copying_pays(needed):
            self._copy = copy = FileCopy(oldest, needed, self._truncated_before)
            self._copy_thread = Thread(target=copy.run, args=(self._wake,), name="journal-copy", daemon=True)
            self._copy_thread.start()

    def _is_read(self, log_file: LogFile) -> bool:
        """Whether a file must stay although its entries are not needed: a copy or a reader uses it, or will."""
        if self._copy is not None and self._copy.log_file is log_file:
            return True
        if self._rereading is not None and self._rereading.needs(log_file):
            return True
        return log_file.copied and any(entries.is_read for entries in list(self._readable.values()))

    def _copying_pays(self, oldest: Mapping[int, list[Stretch]]) -> bool:
        """Whether copying the needed part of the oldest file frees enough, and the copies fit."""
        used = self._files.used
        if len(used) < self._copy_from_files or not self._files.room_for_copies(needed_bytes(oldest.values())):
            return False
        needed = sum(needed_bytes(each.needed(self._truncated_before).values()) for each in used)
        return log_space.copying_pays(self._files.log_bytes, needed, len(used), self._copy_from_files)

    def _wake(self) -> None:
        self._news.put(None)

    def _advance_copy(self, copy: FileCopy) -> None:
        """Write the portion that the file copy has read, or end the copy.

        The portion gets its own commit, after the clients' commit, so that entries truncated by that commit are not
        copied. Otherwise the file with their truncation point could be freed before the file with the copies, and
        recovery would take the copies for needed entries.
        """
        ended = copy.ended
        portion = copy.take_portion(self._truncated_before)
        if portion is not None:
            self.copied_bytes += sum(each.length for each in portion)
            self._commit(portion)
            copy.portion_written()
        if not ended:
            return
        self._copy = None
        if copy.is_complete:
            with self._readings_lock:
                for container, entries in list(self._readable.items()):
                    entries.replace(copy.log_file, copy.runs_of(container))
                if self._rereading is not None:
                    self._rereading.note_copied(copy)
                copy.log_file.copied = True
        else:
            copy.log_file.damaged = True
        self._recycle()

    def _fail(self, batch: list[PendingEntry], error: Exception) -> None:
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


@dataclass(frozen=True, slots=True)
class _Report:
    """Reports the result of one commit to the callers of its entries, in order, on the event loop."""

    entries: list[PendingEntry]
    error: Exception | None

    def __call__(self) -> None:
        for pending in self.entries:
            pending.done(self.error)
