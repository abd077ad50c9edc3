"""Parts of the simulator: draws, the disk, the journal over it, and the shrinking of tapes."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordHeader, RecordKind
from headrace.codec.replica_messages import HeldRun
from simulation.disk import DiskError, SimulatedDisk
from simulation.draws import Draws
from simulation.journal import SimulatedJournal
from simulation.mutations import MUTATIONS, applied
from simulation.runs import run_seed
from simulation.shrinking import as_test, seed_tape, shrink

FILE_BYTES = 8 << 10


def header(entry: int, payload: bytes, container: int = 0) -> RecordHeader:
    return RecordHeader(RecordKind.ENTRY, container, 1, 1, entry, 0, 0, len(payload), crc32c(payload))


def start(disk: SimulatedDisk) -> SimulatedJournal:
    return SimulatedJournal(disk, FILE_BYTES, lambda _replica, _headers: None)


def queue(journal: SimulatedJournal, entry: int, container: int = 0, size: int = 10) -> None:
    payload = b"payload %d" % entry * size
    journal.queue(header(entry, payload, container), (payload,))


def journal_with(disk: SimulatedDisk, *entries: int, container: int = 0) -> SimulatedJournal:
    """A journal with one commit for each entry."""
    journal = start(disk)
    for entry in entries:
        queue(journal, entry, container)
        journal.begin_commit()
        journal.end_commit()
    return journal


def new_disk(seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(0, 64, Draws(seed))


def test_left_out_decisions_change_no_others():
    with_fault, without = Draws(5), Draws(5)
    with_fault.number("fault", 1)
    assert [with_fault.number("delay", 1) for _ in range(5)] == [without.number("delay", 1) for _ in range(5)]


def test_draws_depend_on_seed_kind_and_actor():
    drawn = {Draws(seed).number(kind, actor) for seed in (1, 2) for kind in ("a", "b") for actor in (1, 2)}
    assert len(drawn) == 8


@given(st.integers(0, 1 << 40), st.integers(1, 1000))
def test_drawn_numbers_are_below_their_limit(seed: int, limit: int):
    assert 0 <= Draws(seed).below(limit, "kind") < limit


@given(st.integers(0, 500))
def test_synced_commits_survive_a_power_failure(seed: int):
    disk = new_disk(seed)
    journal = journal_with(disk, 0, 1, 2)
    queue(journal, 3)
    journal.begin_commit()
    journal.end_process()
    disk.cut_power()
    (run,) = start(disk).recovered()[0].runs
    assert run in (HeldRun(1, 0, 3, 3), HeldRun(1, 0, 4, 4))


def test_a_process_ends_at_any_step_of_a_commit():
    found = set()
    for seed in range(50):
        disk = new_disk(seed)
        journal = journal_with(disk, 0)
        queue(journal, 1)
        journal.begin_commit()
        journal.end_process()
        disk.cut_power()
        found.add(start(disk).recovered()[0].runs)
    assert found == {(HeldRun(1, 0, 1, 1),), (HeldRun(1, 0, 2, 2),)}


@pytest.mark.parametrize("fault", ["fail_next_write", "fail_next_sync"])
def test_a_failed_commit_is_told(fault):
    disk = new_disk()
    journal = start(disk)
    queue(journal, 0)
    journal.begin_commit()
    setattr(disk, fault, True)
    with pytest.raises(DiskError):
        journal.end_commit()


def test_a_part_of_an_unreadable_block_is_not_written():
    disk = new_disk()
    disk.create("journal", 4096)
    file = disk.open("journal")
    disk.make_unreadable("journal", 600)
    for position, length in ((512, 10), (500, 20), (600, 424)):
        with pytest.raises(OSError, match="Input/output error"):
            file.write(position, [b"x" * length])
    file.write(512, [b"y" * 512])
    file.write(600, [b"x"])
    assert file.read(599, 3) == b"yxy"


def test_what_the_disk_did_not_sync_is_not_counted_as_durable():
    disk, synced = new_disk(), []
    with applied(next(mutation for mutation in MUTATIONS if mutation.name == "18")):
        journal = SimulatedJournal(disk, FILE_BYTES, lambda _replica, headers: synced.append(len(headers)))
        for entry in range(3):
            queue(journal, entry, size=60)
            journal.begin_commit()
            disk.fail_next_sync = entry == 1
            assert journal.end_commit() == {0: entry + 1}
    assert synced == [1]


def test_damaged_payload_is_reported_as_held_before():
    disk = new_disk()
    journal = journal_with(disk, 0, 1, 2, 3)
    place = journal.entries()[0, 1, 1]
    assert place.position < journal.durable_ends()[place.file]
    disk.rot(place.file, place.position + RECORD_HEADER_BYTES)
    with pytest.raises(DiskError):
        journal.read(0, 1, 0, 3, 1000)
    assert start(disk).recovered()[0].runs == (HeldRun(1, 0, 1, 4),)


def test_damaged_header_makes_the_journal_another_replica():
    """Which entry it named is not known: the journal could say that it never had it."""
    disk = new_disk()
    journal = journal_with(disk, 0, 1, 2)
    place = journal.entries()[0, 1, 1]
    disk.rot(place.file, place.position + 20)
    again = start(disk)
    assert again.is_quarantined
    assert again.replica != journal.replica
    assert again.recovered() == {}


def test_tape_shrinks_to_what_a_failure_needs():
    mutated = next(mutation for mutation in MUTATIONS if mutation.name == "1")
    with applied(mutated):
        seed = next(
            seed for seed in range(50) if any(violation.checker == "I4" for violation in run_seed(seed).violations)
        )
        tape = shrink(seed, "I4")
        assert any(violation.checker == "I4" for violation in run_seed(seed, tape).violations)
    assert len(tape) < len(seed_tape(seed)) / 4
    text = as_test(seed, "I4", tape)
    compile(text, "test", "exec")
    assert f"run_seed({seed}, TAPE)" in text
