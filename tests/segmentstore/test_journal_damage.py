"""Damage of durable records: an error with one copy; with several copies it is known what is missing, and what is not.

A replica never says that it never had an entry when it may have had it.
"""

from __future__ import annotations

import threading
from random import Random

import pytest

from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.codec.log_record_header import RECORD_HEADER_BYTES
from headrace.model.errors import CorruptError
from headrace.segmentstore.log.journal_format import FILE_HEADER_BYTES
from headrace.segmentstore.log.journal_index import LedgerState
from headrace.segmentstore.log.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

FILE_BYTES = 64 << 10
FIRST_FILE = "journal-0000000000000001"
PAYLOAD = b"p" * 20
RECORD_BYTES = RECORD_HEADER_BYTES + len(PAYLOAD)
WAIT_S = 20
CONTAINERS = (0, 1)


def start(disk: MemoryJournalDisk, seed: int = 1, copies: int = 3) -> Journal:
    random = Random(seed)
    journal = Journal(disk, lambda: random.getrandbits(64), lambda call: call(), file_bytes=FILE_BYTES, copies=copies)
    journal.start()
    return journal


def written(rounds: int, *, extra: int = 0) -> MemoryJournalDisk:
    """A journal with one entry of each container in each round, each a commit; then `extra` entries of container 1."""
    disk = MemoryJournalDisk()
    journal = start(disk, seed=0)
    ledgers = OneCopyLedgers(journal)
    opened = [ledgers.open(container, 4) for container in CONTAINERS]
    for ledger in opened * rounds + [opened[1]] * extra:
        reached = threading.Event()
        ledger.append([PAYLOAD], lambda _error, reached=reached: reached.set())
        assert reached.wait(WAIT_S)
    journal.close()
    return disk


def damage(disk: MemoryJournalDisk, record: int, offset: int = 0, length: int = 1) -> None:
    """Damage a record, counted from the first of the file."""
    disk.damage(FIRST_FILE, FILE_HEADER_BYTES + record * RECORD_BYTES + offset, length)


def states(journal: Journal) -> list[tuple[LedgerState, ...]]:
    return [tuple(journal.index.ledgers(container)) for container in CONTAINERS]


@pytest.mark.parametrize("offset", [5, 30, RECORD_HEADER_BYTES + 3], ids=["salt", "header", "payload"])
@pytest.mark.parametrize("has_successor", [False, True])
def test_damage_is_an_error_if_there_is_one_copy(offset, has_successor):
    disk = written(3)
    if has_successor:
        start(disk, seed=2).close()
    damage(disk, 2, offset)
    with pytest.raises(CorruptError, match=f"damaged at {FILE_HEADER_BYTES + 2 * RECORD_BYTES}"):
        start(disk, copies=1)


@pytest.mark.parametrize("has_successor", [False, True])
def test_an_entry_with_a_damaged_payload_is_a_gap_that_is_known(has_successor, caplog):
    disk = written(3)
    if has_successor:
        start(disk, seed=2).close()
    damage(disk, 2, RECORD_HEADER_BYTES + 3)  # entry 1 of container 0
    journal = start(disk)
    assert journal.is_damaged
    assert states(journal) == [(LedgerState(4, 0, 1, 3),), (LedgerState(4, 0, 3, 3),)]
    assert not any(journal.index.may_lack_entries(container) for container in CONTAINERS)
    assert [stored.header.entry for stored in journal.reader.ledger(0, 4, 0, 3)] == [0, 2]
    place = FILE_HEADER_BYTES + 2 * RECORD_BYTES
    assert f"event=journal_damaged file={FIRST_FILE!r} position={place} end={place + RECORD_BYTES}" in caplog.text
    journal.close()


def test_a_damaged_payload_of_the_newest_entry_is_not_forgotten():
    """The header says that the replica had this entry."""
    disk = written(2)
    start(disk, seed=2).close()
    damage(disk, 3, RECORD_HEADER_BYTES)  # entry 1 of container 1
    journal = start(disk)
    assert states(journal)[1] == (LedgerState(4, 0, 1, 2),)
    journal.close()


def test_lost_headers_leave_gaps_that_later_entries_prove():
    disk = written(6)
    damage(disk, 4, 0, 4 * RECORD_BYTES)  # entries 2 and 3 of both
    journal = start(disk)
    assert states(journal) == [(LedgerState(4, 0, 2, 6),)] * 2
    assert not any(journal.index.may_lack_entries(container) for container in CONTAINERS)
    journal.close()


def test_entries_at_the_end_may_be_lost_with_their_headers():
    """No record after the damage says how many entries container 0 had; nor does one say so of other containers."""
    disk = written(3, extra=2)
    damage(disk, 4, 0, RECORD_BYTES)  # entry 2 of container 0
    journal = start(disk)
    assert states(journal) == [(LedgerState(4, 0, 2, 2),), (LedgerState(4, 0, 5, 5),)]
    assert [journal.index.may_lack_entries(container) for container in (0, 1, 77)] == [True, False, True]
    journal.close()


def test_a_torn_end_is_cut_and_no_damage():
    disk = written(2)
    damage(disk, 3, 30)
    journal = start(disk)
    assert not journal.is_damaged
    assert states(journal) == [(LedgerState(4, 0, 2, 2),), (LedgerState(4, 0, 1, 1),)]
    journal.close()


def test_a_damaged_journal_goes_on_and_is_found_the_same_again():
    disk = written(4)
    damage(disk, 2, RECORD_HEADER_BYTES + 3)
    for seed in range(2, 6):
        journal = start(disk, seed)
        reached = threading.Event()
        ledger = OneCopyLedgers(journal).open(1, seed + 4)
        ledger.append([PAYLOAD], lambda _error, reached=reached: reached.set())
        assert reached.wait(WAIT_S)
        assert states(journal)[0] == (LedgerState(4, 0, 1, 4),)
        journal.close()
        disk = disk.cut_power(seed)
    assert journal.index.next_entry(1) == 8


@pytest.mark.parametrize("seed", range(60))
def test_no_damage_makes_a_replica_deny_an_entry(seed):
    """Any bytes of the file are damaged. An entry is held as it was, or reported as missing, or may be lacking."""
    random = Random(seed)
    disk = written(random.randint(1, 12), extra=random.randint(0, 4))
    ends = {}
    journal = start(disk, seed=90)
    for container in CONTAINERS:
        ends[container] = journal.index.next_entry(container)
    journal.close()
    used = FILE_HEADER_BYTES + sum(ends.values()) * RECORD_BYTES
    for _ in range(random.randint(1, 3)):
        disk.damage(FIRST_FILE, random.randrange(FILE_HEADER_BYTES, used), 1)
    journal = start(disk, seed=91)
    assert journal.is_damaged
    for container, end in ends.items():
        held = {stored.header.entry: stored.payload for stored in journal.reader.ledger(container, 4, 0, end)}
        assert all(payload == PAYLOAD for payload in held.values())
        had_before = max((state.had_before for state in journal.index.ledgers(container)), default=0)
        assert had_before == end or journal.index.may_lack_entries(container)
        assert had_before <= end
    journal.close()
