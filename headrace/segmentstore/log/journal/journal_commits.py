"""What a journal writes: commits, new files, copies of old entries, and which files it uses again.

This module has no threads and no clock. One caller at a time drives it: the journal's thread (`journal_thread`), or a
simulation. After an exception the state of the disk is unknown, and only `wipe_end_after` may be called.

Files are freed oldest first. When most of the log is not needed, the needed part of the oldest file is copied into the
newest (`file_copies`). A container that lags then does not keep the files of all the others. A promise is kept as long
as the journal exists: it is written again before its file is freed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from headrace.codec.log_record_header import ENTRY_BYTES_MAX, RECORD_HEADER_BYTES, RecordKind
from headrace.model import store_volume
from headrace.model.container_logs import LedgerChain
from headrace.model.errors import InvalidRequestError
from headrace.model.store_volume import COPY_FROM_FILES, LogSpace
from headrace.ports.journal_disk import JournalDisk
from headrace.segmentstore.log.journal.entry_runs import NotedRecord
from headrace.segmentstore.log.journal.file_copies import FileCopy, Portion
from headrace.segmentstore.log.journal.journal_files import JournalFiles, LogFile, Stretch, needed_bytes
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, LostRecordsError
from headrace.segmentstore.log.journal.journal_index import JournalIndex
from headrace.segmentstore.log.journal.journal_scan import UNREADABLE, WINDOW_BYTES, Record, RecordScan, write_again
from headrace.segmentstore.log.journal.pending_records import PendingRecord, ignore, promise_record

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)

JOINED_PART_BYTES_MAX: Final = 4096
"""Parts that are smaller than this on average are joined. A checksum and a vector entry for each part would cost
several times more, and the thread would hold the interpreter for that time."""

JOURNAL_FILE_BYTES: Final = 64 << 20

_ENTRY: Final = RecordKind.ENTRY

Call = Callable[[], None]


class JournalCommits:
    """The writing part of one journal.

    `random_salt` returns unsigned 64-bit numbers. `logs_on_volume` is the number of journals that share the volume. A
    journal with fewer than `copy_from_files` files copies nothing. `copies` is the number of replicas that hold its
    entries: with more than one, damage is noted in the index instead of stopping the start.
    """

    def __init__(
        self,
        disk: JournalDisk,
        random_salt: Callable[[], int],
        *,
        file_bytes: int = JOURNAL_FILE_BYTES,
        logs_on_volume: int = 1,
        copy_from_files: int = COPY_FROM_FILES,
        copies: int = 1,
    ) -> None:
        if file_bytes < FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 1:
            raise InvalidRequestError(f"a journal file of {file_bytes} bytes holds no record: make it larger")
        self.entry_bytes_max = min(ENTRY_BYTES_MAX, file_bytes - FILE_HEADER_BYTES - RECORD_HEADER_BYTES)
        self.index = JournalIndex()
        self.files = JournalFiles(disk, file_bytes, random_salt, logs_on_volume)
        self._disk = disk
        self._file_bytes = file_bytes
        self._logs_on_volume = logs_on_volume
        self._copy_from_files = copy_from_files
        self._tolerates_damage = copies > 1
        self._promise_files: dict[int, LogFile] = {}
        self._last_commit: tuple[LogFile, int] | None = None  # its file, and the position where it begins
        self._copying: FileCopy | None = None
        self._writes = False  # before that the last file may have a torn end
        self._behind: tuple[RecordKind, int, int, int] | None = None  # the last record: see `mark_end`
        self.space_changed = False
        """Whether files were freed or begun, or entries truncated. The caller resets it when it has considered a file
        copy (`copy_to_begin`) and new spare files (`files.spares.prepare`)."""
        self.damaged_entries = 0
        self.synced_commits = 0
        self.oldest_sequence = 0
        self.active_sequence = 0
        self.oldest_needed_bytes: dict[int, int] = {}
        self.copied_bytes = 0

    # The start

    def load(self, check_open: Call) -> None:
        """Scan the files on disk, and make their last commit durable. Blocks.

        `check_open` is called often, and raises an error to end the scan.

        Raises:
            CorruptError: durable records are missing or damaged, or newer software wrote a record. With several
                copies, damage that can be named is noted instead, and a journal with other damage goes into quarantine.
            OSError: the disk cannot be read or written.
        """
        try:
            self._load(check_open)
        except LostRecordsError as error:
            if not self._tolerates_damage:
                raise
            _log.critical("event=journal_set_aside replica=%s error=%r", self.files.replica_id.hex(), error)
            self.files.quarantine()
            self.index.clear()
            self._promise_files.clear()
            self._last_commit, self.damaged_entries = None, 0
            self._load(check_open)

    def _load(self, check_open: Call) -> None:
        loaded = self.files.load()
        for index, (log_file, _) in enumerate(loaded):
            end = loaded[index + 1][1].previous_end if index + 1 < len(loaded) else None
            self._scan(log_file, end, check_open)
        self._settle_last_commit(check_open)
        self.files.free_empty()
        # Free files before `begin`, because the volume may have no room for a new one.
        self._free_files()

    def begin(self) -> None:
        """Begin to write, after `load`.

        Raises:
            OSError: the volume has no room.
        """
        try:
            self.files.begin()
        except OSError:
            if not self._free_without_room():
                raise
            self.files.begin()
        self._writes = True
        self.recycle()

    def _free_without_room(self) -> bool:
        """Free files which only promises keep, on a full volume: the end of the last file has room for promises."""
        if not self.index.promises or not self.files.continue_last(RECORD_HEADER_BYTES):
            return False
        self._writes = True
        self._free_files()
        return len(self.files.spares) > 0

    def _scan(self, log_file: LogFile, end: int | None, check_open: Call) -> None:
        scan = RecordScan(log_file.file, log_file.layout, end, log_file.name, tolerates_damage=self._tolerates_damage)
        for record in scan:
            check_open()
            if record.is_damaged:
                self._note_damaged(log_file, record)
            else:
                self._note(log_file, record.header, record.position)
        log_file.end = scan.end
        if scan.torn_bytes:
            _log.warning(
                "event=journal_torn_end_cut file=%r position=%d bytes=%d", log_file.name, scan.end, scan.torn_bytes
            )
        self._last_commit = (log_file, scan.commit_start)

    def _note_damaged(self, log_file: LogFile, record: Record) -> None:
        """Note a damaged entry. Its file stays until the entry is truncated: only this file says that it was here."""
        header, end = record.header, record.position + record.header.length
        log_file.damaged = True
        self.damaged_entries += 1
        self.index.add_damaged(header)
        log_file.note(header.container, header.entry, record.position - log_file.layout.header_bytes, end)
        _log.error(
            "event=journal_entry_damaged file=%r position=%d container=%d epoch=%d entry=%d",
            log_file.name,
            record.position,
            header.container,
            header.epoch,
            header.entry,
        )

    def _settle_last_commit(self, check_open: Call) -> None:
        """Make the last commit durable before any caller learns of its entries.

        If the previous process was killed before its sync, these bytes may be in the page cache only. After a failed
        sync the kernel may even count them as written, so a sync alone is not enough: write them again.
        """
        if self._last_commit is None:
            return
        log_file, start = self._last_commit
        for position in range(start, log_file.end, WINDOW_BYTES):
            check_open()
            length = min(WINDOW_BYTES, log_file.end - position)
            write_again(log_file.file, position, length)
        log_file.file.sync()

    # Commits

    def commit(self, batch: list[PendingRecord], committed: Callable[[list[PendingRecord]], None]) -> None:
        """Write and sync the batch, once for each file that it needs.

        Records that are durable leave `batch`; `committed` is called with them.
        """
        truncated = False
        while batch:
            active = self.files.active
            parts: list[Buffer] = []
            count, end = self._collect(batch, active, parts)
            if not count:
                self._rotate()
                continue
            position = active.end
            if parts:
                active.file.write_durably(position, parts)
                active.end = end
                self.synced_commits += 1
            done = batch[:count]
            last = next((each for each in reversed(done) if each.kind is not None), None)
            if last is not None and last.kind is not None:
                self._behind = (last.kind, last.container, last.epoch, last.writer_epoch)
            with self.index.lock:
                for pending in done:
                    if pending.kind is not None:
                        truncated |= self._note(active, pending, position + RECORD_HEADER_BYTES)
                        position += RECORD_HEADER_BYTES + pending.length
                    elif pending.chain is not None:
                        truncated |= self._keep_ledgers(pending.container, pending.chain)
            del batch[:count]
            committed(done)
        if truncated:
            self.recycle()

    @property
    def lacks_mark(self) -> bool:
        """Whether nothing is behind the last commit, so that damage of it would pass for a torn write."""
        return self._behind is not None

    def mark_end(self) -> None:
        """Write a record behind the last commit, which tells nothing new: it proves that this commit was durable.

        Of an entry's container it repeats the truncation point; other records it repeats. It begins no new file: that
        proves the same, and a full volume has no room for one.
        """
        behind, self._behind = self._behind, None
        active = self.files.active
        room = active.file.size_bytes - self._room_for_promises(active) - active.end
        if behind is None or room < RECORD_HEADER_BYTES:
            return
        kind, container, epoch, writer_epoch = behind
        kind = RecordKind.TRUNCATION if kind is _ENTRY else kind
        truncated_before = self.index.truncated_before.get(container, 0)
        mark = PendingRecord(kind, container, epoch, writer_epoch, 0, truncated_before, 0, (), 0, ignore)
        self.commit([mark], _ignore_all)
        self._behind = None

    def _collect(self, batch: list[PendingRecord], active: LogFile, parts: list[Buffer]) -> tuple[int, int]:
        """Add the records that fit into the file to `parts`; return their count and their end."""
        start = position = active.end
        size_bytes, encode = active.file.size_bytes, self.files.format.encode
        limit = size_bytes - self._room_for_promises(active)
        for index, pending in enumerate(batch):
            kind, payload, length = pending.kind, pending.parts, pending.length
            if kind is None:
                continue
            after = position + RECORD_HEADER_BYTES + length
            if kind is RecordKind.PROMISE and self._promise_files.get(pending.container, active) is not active:
                limit += RECORD_HEADER_BYTES  # it was reserved for this one
            if after > limit and (position > FILE_HEADER_BYTES or after > size_bytes):
                return index, position
            if length < JOINED_PART_BYTES_MAX * len(payload):
                payload = (b"".join(payload),)
            checksum = pending.payload_checksum
            if checksum is None:
                checksum = 0
                for part in payload:
                    checksum = crc32c(part, checksum)
            header = encode(
                kind,
                pending.container,
                pending.epoch,
                pending.writer_epoch,
                pending.entry,
                pending.truncated_before,
                pending.acknowledged_before,
                start,
                length,
                checksum,
                pending.copied,
                pending.codec,
            )
            parts.append(header)
            parts.extend(payload)
            position = after
        return len(batch), position

    def _room_for_promises(self, active: LogFile) -> int:
        """The bytes of the active file that are kept for promises of older files.

        Otherwise a full volume could have a file which only promises keep, and no room to write them again. An entry
        that fills a whole file does not leave it.
        """
        return RECORD_HEADER_BYTES * sum(log_file is not active for log_file in self._promise_files.values())

    def _note(self, log_file: LogFile, record: NotedRecord, position: int) -> bool:
        """Note a durable record; return whether it may have made a file free."""
        ends_need = self.index.add(log_file, record, position)
        kind, container = record.kind, record.container
        if kind is _ENTRY:
            log_file.note(container, record.entry, position - log_file.layout.header_bytes, position + record.length)
        elif kind is RecordKind.PROMISE:
            if self.index.promises[container] == record.writer_epoch:
                self._promise_files[container] = log_file
        elif kind is RecordKind.DROP:
            for each in self.files.used:
                each.stretches.pop(container, None)
        return ends_need

    def _keep_ledgers(self, container: int, chain: LedgerChain) -> bool:
        """Forget the entries outside of a chain; return whether that may have made a file free.

        This is not durable, and need not be: they are forgotten again when an owner opens the log after a restart.
        """
        if not self.index.keep_ledgers(container, chain):
            return False
        pieces = self.index.pieces(container)
        for log_file in self.files.used:
            if not log_file.damaged:  # the index does not have the places of damaged entries
                log_file.replace(container, [piece for piece in pieces if piece.log_file is log_file])
        return True

    def _rotate(self) -> None:
        self._free_files()  # a reading that ended may have kept the only files that can be used again
        self.files.activate_next()
        self.recycle()

    def wipe_end_after(self, error: OSError) -> None:
        """After a commit that a bad block has stopped, leave nothing of it behind the last one that is durable.

        Otherwise the next scan could not tell the block from a record that the disk has lost. No caller has got an
        acknowledgement for what is wiped. Of a disk that fails in another way nothing more is asked.
        """
        if error.errno not in UNREADABLE or not self.files.used:
            return
        name, end = self.files.active.name, self.files.active.end
        try:
            self.files.wipe_end()
        except OSError as problem:
            _log.error("event=journal_end_left file=%r position=%d error=%r", name, end, problem)
        else:
            _log.warning("event=journal_end_wiped file=%r position=%d", name, end)

    # Space

    def recycle(self) -> None:
        """Free the oldest files that are not needed."""
        self._free_files()
        self.space_changed = True
        oldest = self.files.used[0]
        self.oldest_sequence = oldest.sequence
        self.active_sequence = self.files.active.sequence
        needed = oldest.needed(self.index.truncated_before)
        self.oldest_needed_bytes = {container: needed_bytes([each]) for container, each in needed.items()}

    def _free_files(self) -> None:
        used = self.files.used
        while len(used) > 1 and not used[0].needed(self.index.truncated_before) and self._move_promises(used[0]):
            with self.index.lock:  # a reading that begins now must not find the file any more
                if used[0].pins:
                    return
                self.index.forget_file(used[0])
            self.files.free_oldest()

    def _move_promises(self, log_file: LogFile) -> bool:
        """Write the promises in a file again; return False if the active file has no room for them.

        They carry the truncation points, too, which no newer file may have.
        """
        index = self.index
        promises = [
            promise_record(container, index.promises[container], ignore, index.truncated_before.get(container, 0))
            for container, held_in in self._promise_files.items()
            if held_in is log_file
        ]
        if not promises:
            return True
        active = self.files.active
        fits = active.end + len(promises) * RECORD_HEADER_BYTES <= active.file.size_bytes
        if not fits or not self._writes:
            return False
        self.commit(promises, _ignore_all)
        return True

    def space(self) -> LogSpace:
        """The space that the journal uses on the volume, and its limit. Callable from any thread."""
        disk_space, volume_bytes = self._disk.space(), self.files.volume_bytes
        room_bytes = store_volume.room_bytes(
            disk_space.total_bytes, disk_space.free_bytes, volume_bytes, self._logs_on_volume
        )
        return LogSpace(self.files.log_bytes, volume_bytes, room_bytes, self._file_bytes)

    # Copies of old entries

    def copy_to_begin(self) -> FileCopy | None:
        """The file copy that pays now; None if there is none, or if one is running.

        The caller reads its portions, in any thread, passes each to `write_portion`, and then calls `end_copy`.
        """
        if self._copying is not None:
            return None
        oldest = self.files.used[0]
        if oldest.copied or oldest.damaged:
            return None
        needed = oldest.needed(self.index.truncated_before)
        if not self._copying_pays(needed):
            return None
        self._copying = FileCopy(oldest, needed, self.index)
        return self._copying

    def _copying_pays(self, oldest: Mapping[int, list[Stretch]]) -> bool:
        """Whether copying the needed part of the oldest file frees enough, and the copies fit."""
        used = self.files.used
        if len(used) < self._copy_from_files or not self.files.room_for_copies(needed_bytes(oldest.values())):
            return False
        needed = sum(needed_bytes(each.needed(self.index.truncated_before).values()) for each in used)
        return store_volume.copying_pays(self.files.log_bytes, needed, len(used), self._copy_from_files)

    def write_portion(self, copy: FileCopy, portion: Portion) -> None:
        """Write a portion that `copy` has read, in a commit of its own.

        It must come after the commit of clients, so that entries truncated by that commit are not copied. Otherwise the
        file with their truncation point could be freed before the file with the copies, and recovery would take the
        copies for needed entries.
        """
        needed = copy.still_needed(portion, self.index.truncated_before)
        self.copied_bytes += sum(each.length for each in needed)
        self.commit(needed, _ignore_all)

    def end_copy(self, copy: FileCopy, *, is_complete: bool) -> None:
        """End a file copy. A file that could not be read to its end keeps its entries, and is not freed."""
        self._copying = None
        copy.log_file.copied = is_complete
        copy.log_file.damaged = not is_complete
        copy.unpin()
        self.recycle()


def _ignore_all(_committed: Iterable[PendingRecord]) -> None:
    """No caller waits for copies."""
