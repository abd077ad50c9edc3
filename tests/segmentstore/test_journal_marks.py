"""The last commit before a rest: a mark behind it proves that it was durable, so that its damage is not cut as torn."""

from __future__ import annotations

import threading
from random import Random

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk, MemoryJournalFile
from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordKind
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal.entry_runs import LedgerState
from headrace.segmentstore.log.journal.journal_commits import JournalCommits
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.journal.pending_records import PendingRecord, drop_record, ignore, promise_record

FILE_BYTES = 64 << 10
FIRST_FILE = "journal-0000000000000001"
PAYLOAD = b"p" * 20
WAIT_S = 20


def loaded(disk: MemoryJournalDisk, seed: int, copies: int = 3) -> JournalCommits:
    random = Random(seed)
    commits = JournalCommits(disk, lambda: random.getrandbits(64), file_bytes=FILE_BYTES, copies=copies)
    commits.load(lambda: None)
    commits.begin()
    return commits


def entry(number: int, payload: bytes = PAYLOAD) -> PendingRecord:
    return PendingRecord(RecordKind.ENTRY, 0, 4, 4, number, 0, 0, (payload,), len(payload), ignore)


def write(commits: JournalCommits, *records: PendingRecord) -> None:
    commits.commit(list(records), lambda _done: None)


def marked(*, is_marked: bool) -> MemoryJournalDisk:
    disk = MemoryJournalDisk()
    commits = loaded(disk, 0)
    write(commits, entry(0))
    if is_marked:
        commits.mark_end()
    commits.files.close()
    return disk


def test_damage_before_a_mark_is_known():
    disk = marked(is_marked=True)
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 3, 1)
    commits = loaded(disk, 1)
    assert commits.index.ledgers(0) == [LedgerState(4, 0, 0, 1)]
    assert commits.damaged_entries == 1


def test_damage_before_a_mark_is_refused_with_one_copy():
    disk = marked(is_marked=True)
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + 5, 1)
    with pytest.raises(CorruptError, match="not a torn write"):
        loaded(disk, 1, copies=1)


def test_torn_mark_costs_nothing():
    disk = marked(is_marked=True)
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + RECORD_HEADER_BYTES + len(PAYLOAD) + 9, 1)
    commits = loaded(disk, 1, copies=1)
    assert commits.index.ledgers(0) == [LedgerState(4, 0, 1, 1)]


@pytest.mark.parametrize(
    "last", [entry(1), promise_record(0, 7, ignore, 1), promise_record(9, 7, ignore), drop_record(0, 4, ignore)]
)
def test_mark_tells_nothing_new(last: PendingRecord):
    disk = MemoryJournalDisk()
    commits = loaded(disk, 0)
    write(commits, entry(0), last)
    known = commits.index.known()
    assert commits.lacks_mark
    commits.mark_end()
    assert commits.synced_commits == 2
    assert commits.index.known() == known
    assert not commits.lacks_mark
    commits.mark_end()
    assert commits.synced_commits == 2, "one mark is enough"
    commits.files.close()
    assert loaded(disk, 1).index.known() == known


def test_mark_begins_no_file():
    disk = MemoryJournalDisk()
    commits = loaded(disk, 0)
    write(commits, entry(0, bytes(FILE_BYTES - FILE_HEADER_BYTES - 2 * RECORD_HEADER_BYTES + 1)))
    files = len(commits.files.used)
    commits.mark_end()
    assert len(commits.files.used) == files
    assert commits.synced_commits == 1


def test_journal_marks_its_end_when_it_rests(monkeypatch):
    """The second commit is the mark, and no third one follows."""
    commits = threading.Semaphore(0)
    write_durably = MemoryJournalFile.write_durably

    def counted(self: MemoryJournalFile, position: int, parts: list[bytes]) -> None:
        write_durably(self, position, parts)
        commits.release()

    journal = Journal(
        MemoryJournalDisk(), lambda: 1, lambda call: call(), file_bytes=FILE_BYTES, copies=3, mark_after_s=0.0
    )
    journal.start()
    monkeypatch.setattr(MemoryJournalFile, "write_durably", counted)
    journal.submit(entry(0))
    assert commits.acquire(timeout=WAIT_S)
    assert commits.acquire(timeout=WAIT_S)
    journal.close()
    assert journal.synced_commits == 2
