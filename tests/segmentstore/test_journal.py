"""The journal under torn writes, rot, failing disks and recycled files."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest

from headrace.adapters.disk import DiskJournalDisk
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES
from headrace.model.errors import CorruptError, FencedError, InvalidRequestError, UnavailableError
from headrace.segmentstore.log.journal.journal_format import FILE_HEADER_BYTES, Format2
from headrace.segmentstore.log.journal.journal_scan import RecordScan
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

FILE_BYTES = 64 << 10
WAIT_S = 20


def open_journal(disk, *, seed=0, file_bytes=FILE_BYTES, **settings):
    random = Random(seed)
    journal = Journal(disk, lambda: random.getrandbits(64), lambda call: call(), file_bytes=file_bytes, **settings)
    journal.start()
    return journal


def append_all(ledger, payloads):
    """Append without waiting for each other, then wait for all; the errors reported, in order."""
    outcomes = []
    reached = threading.Semaphore(0)

    def done(error):
        outcomes.append(error)
        reached.release()

    for payload in payloads:
        ledger.append([payload[:3], payload[3:]], done)
    for _ in payloads:
        assert reached.acquire(timeout=WAIT_S)
    return outcomes


def recovered(disk, container=0, epoch=9):
    journal = open_journal(disk, seed=99)
    try:
        return [bytes(entry.payload) for entry in OneCopyLedgers(journal).open(container, epoch).recover()]
    finally:
        journal.close()


def payloads_of(random, count, size_max=2000):
    return [random.randbytes(random.randint(1, size_max)) for _ in range(count)]


def test_entries_come_back_in_order(tmp_path):
    payloads = payloads_of(Random(1), 200)
    disk = DiskJournalDisk(tmp_path)
    journal = open_journal(disk)
    assert append_all(OneCopyLedgers(journal).open(0, 1), payloads) == [None] * 200
    journal.close()
    assert recovered(disk) == payloads
    disk.close()


@pytest.mark.parametrize("part_bytes", [1, 1000, 5000])
def test_parts_of_any_size_are_written_one_after_the_other(tmp_path, part_bytes):
    """Many small ones are joined, large ones are not; there may be more than the system takes at once."""
    parts = [Random(number).randbytes(part_bytes) for number in range(3000 if part_bytes == 1 else 10)]
    disk = DiskJournalDisk(tmp_path)
    journal = open_journal(disk)
    reached = threading.Event()
    OneCopyLedgers(journal).open(0, 1).append(parts, lambda _error: reached.set())
    assert reached.wait(WAIT_S)
    journal.close()
    assert recovered(disk) == [b"".join(parts)]
    disk.close()


def test_containers_share_the_journal_and_not_their_entries():
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    ledgers = OneCopyLedgers(journal)
    first, second = ledgers.open(0, 1), ledgers.open(1, 1)
    append_all(first, [b"aaaa"])
    append_all(second, [b"bbbb", b"cccc"])
    append_all(first, [b"dddd"])
    journal.close()
    assert recovered(disk, 0) == [b"aaaa", b"dddd"]
    assert recovered(disk, 1) == [b"bbbb", b"cccc"]


def test_a_directory_serves_one_process(tmp_path):
    disk = DiskJournalDisk(tmp_path)
    with pytest.raises(UnavailableError, match="in use by another process"):
        DiskJournalDisk(tmp_path)
    disk.close()
    DiskJournalDisk(tmp_path).close()


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_keeps_reported_entries_and_prefix_of_the_rest(seed):
    random = Random(seed)
    disk = MemoryJournalDisk()
    journal = open_journal(disk, seed=seed)
    ledger = OneCopyLedgers(journal).open(0, 1)
    durable = payloads_of(random, random.randint(0, 30))
    append_all(ledger, durable)

    # The next sync never comes back: its writes are torn by the power cut.
    writing, cut = threading.Event(), threading.Event()

    def power_fails(step):
        if step == "sync":
            writing.set()
            cut.wait(WAIT_S)
            raise OSError("power is gone")

    disk.before = power_fails
    lost = payloads_of(random, random.randint(1, 10))
    outcomes = []
    for payload in lost:
        ledger.append([payload], outcomes.append)
    assert writing.wait(WAIT_S)
    survivor = disk.cut_power(seed)
    cut.set()
    journal.close()
    assert all(isinstance(outcome, UnavailableError) for outcome in outcomes)

    entries = recovered(survivor)
    assert entries[: len(durable)] == durable
    assert entries == (durable + lost)[: len(entries)]
    assert recovered(survivor) == entries  # cut once, the end stays where it is


@pytest.mark.parametrize("sync_failed", [False, True])
def test_unsynced_last_commit_is_made_durable_before_it_is_read(sync_failed):
    """A start finds a whole commit that was never synced, tells it, and then power fails."""
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    append_all(OneCopyLedgers(journal).open(0, 1), [b"synced"])
    journal.close()
    journal = open_journal(disk, seed=1)

    def fails(step):
        if step == "sync":
            raise OSError("killed here")

    disk.before = fails
    ledger = OneCopyLedgers(journal).open(0, 2)
    unsynced = [b"never" * 200, b"synced" * 200]
    assert all(isinstance(outcome, UnavailableError) for outcome in append_all(ledger, unsynced))
    journal.close()
    disk.before = lambda step: None
    if sync_failed:
        disk.forget_unsynced()

    told = recovered(disk)
    assert told[:2] == [b"synced", unsynced[0]]
    for seed in range(10):
        assert recovered(disk.cut_power(seed)) == told


def test_starts_that_write_nothing_take_no_space():
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    append_all(OneCopyLedgers(journal).open(0, 1), [b"kept"])
    journal.close()
    for seed in range(10):
        open_journal(disk, seed=seed).close()
        disk = disk.cut_power(seed)
        # What is kept, what is written, the spare file, the one for emergencies, and the journal's identity.
        assert len(disk.names()) <= 5
    assert recovered(disk) == [b"kept"]


def test_rot_before_a_later_commit_is_loud():
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    ledger = OneCopyLedgers(journal).open(0, 1)
    append_all(ledger, [b"first" * 10])
    append_all(ledger, [b"second" * 10])
    append_all(ledger, [b"third" * 10])
    journal.close()
    disk.damage("journal-0000000000000001", FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 5)
    with pytest.raises(CorruptError, match="damaged at 4096"):
        open_journal(disk)


def test_rot_in_a_file_with_a_successor_is_loud_even_at_its_end():
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    append_all(OneCopyLedgers(journal).open(0, 1), [b"only" * 10])
    journal.close()
    assert recovered(disk) == [b"only" * 10]  # this start has begun another file
    disk.damage("journal-0000000000000001", FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 5)
    with pytest.raises(CorruptError, match="damaged at 4096"):
        open_journal(disk)


def test_a_damaged_header_and_a_missing_file_are_loud():
    disk = MemoryJournalDisk()
    for _ in range(3):
        journal = open_journal(disk)
        append_all(OneCopyLedgers(journal).open(0, 1), [b"some" * 10])
        journal.close()
    disk.damage("journal-0000000000000002", 9)
    with pytest.raises(CorruptError, match="damaged header"):
        open_journal(disk)
    disk.remove("journal-0000000000000002")
    with pytest.raises(CorruptError, match="missing"):
        open_journal(disk)


@pytest.mark.parametrize("damaged_at", [-RECORD_HEADER_BYTES + 30, 5], ids=["the header", "the payload"])
def test_rot_after_the_scan_is_loud_when_an_entry_is_read(damaged_at):
    """The scan has seen every checksum; what a recovery reads later, perhaps twice, is checked again."""
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    append_all(OneCopyLedgers(journal).open(0, 1), [b"first" * 10, b"second" * 10])
    journal.close()
    journal = open_journal(disk, seed=1)
    try:
        ledger = OneCopyLedgers(journal).open(0, 2)
        assert len(list(ledger.recover())) == 2
        second = FILE_HEADER_BYTES + 2 * RECORD_HEADER_BYTES + 50
        disk.damage("journal-0000000000000001", second + damaged_at)
        entries = ledger.recover()
        assert bytes(next(entries).payload) == b"first" * 10
        with pytest.raises(CorruptError, match=f"damaged at {second}: entry 1 of container 0"):
            next(entries)
    finally:
        journal.close()


def test_a_torn_end_is_logged_with_its_place(caplog):
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    append_all(OneCopyLedgers(journal).open(0, 1), [b"whole" * 10])
    append_all(OneCopyLedgers(journal).open(1, 1), [b"torn" * 10])
    journal.close()
    end = FILE_HEADER_BYTES + RECORD_HEADER_BYTES + 50
    disk.damage("journal-0000000000000001", end + RECORD_HEADER_BYTES + 5)
    with caplog.at_level("WARNING"):
        assert recovered(disk) == [b"whole" * 10]
        assert recovered(disk) == [b"whole" * 10]  # the end is known now, and is no news
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"event=journal_torn_end_cut file='journal-0000000000000001' position={end} bytes={RECORD_HEADER_BYTES + 40}"
    ]


@pytest.mark.parametrize("left", [12, RECORD_HEADER_BYTES - 1])
def test_a_torn_record_at_the_end_of_a_file_is_cut(left):
    """Its mark is there, and the file ends before its header would."""
    content = bytes(FILE_HEADER_BYTES + 100) + Format2(7).mark.ljust(left, b"x")
    disk = MemoryJournalDisk()
    disk.create("torn", len(content))
    file = disk.open("torn")
    file.write(0, [content])
    scan = RecordScan(file, Format2(7), None, "torn")
    assert list(scan) == []
    assert (scan.end, scan.torn_bytes) == (FILE_HEADER_BYTES, 100 + left)


@pytest.mark.parametrize("step", ["write", "sync"])
def test_after_a_failure_nothing_is_acknowledged(step):
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    ledger = OneCopyLedgers(journal).open(0, 1)
    append_all(ledger, [b"good"])

    def fails_once(now):
        if now == step:
            disk.before = lambda _step: None
            raise OSError("disk says no")

    disk.before = fails_once
    outcomes = append_all(ledger, [b"lost"])
    assert isinstance(outcomes[0], UnavailableError)
    with pytest.raises(UnavailableError, match="disk says no"):
        ledger.append([b"later"], outcomes.append)
    journal.close()


@pytest.mark.parametrize("waits", [True, False])
def test_failure_is_told_once_even_if_no_caller_waits(waits: bool):
    def refuse(step: str) -> None:
        if step == "write":
            raise OSError(28, "no space left")

    disk, told = MemoryJournalDisk(), threading.Semaphore(0)
    # If a caller waits, its append is what fails: the mark would come before it on a slow machine.
    journal = open_journal(disk, on_failure=told.release, mark_after_s=3600.0 if waits else 0.001)
    ledger = OneCopyLedgers(journal).open(0, 1)
    durable = threading.Event()

    def refuse_from_now_on(_: object) -> None:
        """Called by the thread of the journal, which writes the mark later."""
        disk.before = refuse
        durable.set()

    ledger.append([b"durable"], refuse_from_now_on)
    assert durable.wait(WAIT_S)
    if waits:
        assert [type(error) for error in append_all(ledger, [b"refused"])] == [UnavailableError]
    assert told.acquire(timeout=WAIT_S)
    journal.close()
    assert journal.failure is not None
    assert not told.acquire(blocking=False)


def test_journal_accepts_entries_behind_a_mark():
    journal = open_journal(MemoryJournalDisk(), mark_after_s=0.001)
    ledger = OneCopyLedgers(journal).open(0, 1)
    for commits in (2, 4):
        assert append_all(ledger, [b"entry"]) == [None]
        while journal.synced_commits < commits:
            time.sleep(0.001)
    journal.close()
    assert journal.failure is None


def test_closed_journal_neither_starts_nor_accepts():
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    ledger = OneCopyLedgers(journal).open(0, 1)
    journal.close()
    with pytest.raises(UnavailableError, match="the journal is closed"):
        ledger.append([b"late"], lambda _error: None)
    early = Journal(disk, lambda: 7, lambda call: call(), file_bytes=FILE_BYTES)
    early.close()
    with pytest.raises(UnavailableError, match="was closed while its files"):
        early.start()


def test_closed_journal_leaves_no_thread():
    begun, goes_on = threading.Event(), threading.Event()
    disk = MemoryJournalDisk()
    journal = open_journal(disk)

    def create_slowly(step: str) -> None:
        if step == "create":
            begun.set()
            goes_on.wait(WAIT_S)

    disk.before = create_slowly
    ledger = OneCopyLedgers(journal).open(0, 1)
    append_all(ledger, [bytes(FILE_BYTES // 2)] * 2)  # the second one is in the next file, and a spare file is missing
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=journal.close)
    closing.start()
    assert journal._spare_thread is not None
    assert closing.is_alive()
    goes_on.set()
    closing.join(WAIT_S)
    assert not journal._spare_thread.is_alive()
    assert not journal._worker.is_alive()


def test_old_records_of_a_recycled_file_never_come_back():
    random = Random(3)
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    ledger = OneCopyLedgers(journal).open(0, 1)
    kept = []
    for _ in range(60):
        first = ledger.next_entry
        kept = payloads_of(random, 5, 4000)
        append_all(ledger, kept)
        ledger.truncate(first)
    journal.close()
    assert len(disk.names()) <= 6
    assert recovered(disk) == kept


def test_file_is_kept_until_the_truncation_point_is_durable():
    """An old file must not be used again on the word of a truncation point that a crash forgets."""
    disk = MemoryJournalDisk()
    journal = open_journal(disk, copy_from_files=1000)
    ledgers = OneCopyLedgers(journal)
    idle, busy = ledgers.open(0, 1), ledgers.open(1, 1)
    append_all(idle, [b"idle"])
    for _ in range(10):
        first = busy.next_entry
        append_all(busy, [bytes(20_000)] * 3)
        busy.truncate(first)
    assert idle.wants_truncation
    held = [name for name in disk.names() if name.startswith("journal-")]
    assert len(held) >= 10
    idle.truncate(idle.next_entry)
    append_all(busy, [bytes(20_000)] * 4)
    journal.close()  # files are freed behind the reports
    assert held[0] not in disk.names()
    assert len([name for name in disk.names() if name.startswith("journal-")]) <= 5
    assert recovered(disk, 0) == []
    assert len(recovered(disk, 1)) >= 4


def test_entries_that_do_not_fit_are_refused():
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    ledger = OneCopyLedgers(journal).open(0, 1)
    with pytest.raises(InvalidRequestError, match="exceeds"):
        ledger.append([bytes(FILE_BYTES)], lambda _error: None)
    largest = bytes(FILE_BYTES - FILE_HEADER_BYTES - RECORD_HEADER_BYTES)
    assert append_all(ledger, [largest, b"next"]) == [None, None]
    journal.close()
    assert recovered(disk) == [largest, b"next"]


def test_a_newer_owner_fences():
    disk = MemoryJournalDisk()
    journal = open_journal(disk)
    ledgers = OneCopyLedgers(journal)
    old = ledgers.open(0, 2)
    append_all(old, [b"old!"])
    with pytest.raises(FencedError, match="open with epoch 2"):
        ledgers.open(0, 2)
    with pytest.raises(UnavailableError, match="still open in this process"):
        ledgers.open(0, 3)
    with pytest.raises(FencedError):
        old.append([b"late"], lambda _error: None)
    journal.close()
    with pytest.raises(FencedError, match="written with epoch 2"):
        recovered(disk, 0, epoch=1)
    assert recovered(disk, 0, epoch=3) == [b"old!"]


@pytest.mark.parametrize("seed", range(6))
def test_many_lives_on_recycled_files(seed):
    """Containers of unlike pace append and truncate; the next life finds every entry from the truncation point on."""
    random = Random(seed)
    disk = MemoryJournalDisk()
    kept = {container: {} for container in range(3)}
    for life in range(12):
        journal = open_journal(disk, seed=seed * 100 + life, file_bytes=16 << 10)
        ledgers = OneCopyLedgers(journal)
        opened = {container: ledgers.open(container, life) for container in kept}
        for container, ledger in opened.items():
            found = {entry.entry: bytes(entry.payload) for entry in ledger.recover()}
            assert {entry: found[entry] for entry in kept[container]} == kept[container]
            assert list(found.items())[-len(kept[container]) or len(found) :] == list(kept[container].items())
            assert ledger.next_entry > max(kept[container], default=-1)
        for _ in range(random.randint(1, 60)):
            container = random.choices(list(kept), [10, 3, 1])[0]
            ledger = opened[container]
            payloads = payloads_of(random, random.randint(1, 4), 3000)
            first = ledger.next_entry
            assert append_all(ledger, payloads) == [None] * len(payloads)
            kept[container].update(enumerate(payloads, first))
            if random.random() < 0.4:
                before = random.choice([*kept[container], ledger.next_entry])
                ledger.truncate(before)
                kept[container] = {entry: data for entry, data in kept[container].items() if entry >= before}
        journal.close()
    assert journal.active_sequence > 2 * len(disk.names())
