"""One opening of a replicated log: what it reads, refuses and counts."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest
from compiled_code import is_compiled_file
from scripted_log_owner import CONTAINER, END, EPOCH, FORMER, LOG, OWN, B, C, ScriptedOwner

from headrace.codec.log_record_header import RECORD_HEADER_BYTES
from headrace.codec.replica_messages import HeldRun
from headrace.model.container_logs import ContainerLog, LedgerChain, LedgerStart, LogState
from headrace.model.errors import CorruptError, FencedError, InvalidRequestError, UnavailableError
from headrace.segmentstore.log.journal import entry_runs
from headrace.segmentstore.log.journal.entry_runs import HeldBytes
from headrace.segmentstore.log.journal.journal_interface import FILES_HELD_BY_IDLE_CONTAINER_MAX, EntryJournal
from headrace.segmentstore.log.journal.journal_reader import StoredEntry
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedger, _held_bytes

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20
COUNTED = MEGABYTE + RECORD_HEADER_BYTES
"""What an entry of a megabyte counts. From so much on, each entry has a mark of its own."""


async def opened(owner: ScriptedOwner, truncated_before: int = 0) -> ReplicatedLedger:
    """The ledger of a recovered log, whose entries have a megabyte each."""
    writer = await owner.recovered()
    writer.truncated_before = max(writer.truncated_before, truncated_before)
    held = HeldBytes()
    for entry in range(truncated_before, END):
        held.count(entry, COUNTED)
    return ReplicatedLedger(owner.owned, owner.shared, held)


def append(ledger: ReplicatedLedger, length: int = MEGABYTE) -> int:
    return ledger.append([bytes(length)], lambda _error: None)


def stored(numbers: Iterable[int]) -> list[StoredEntry]:
    """Entries as the journal returns them."""
    return [
        cast(
            "StoredEntry",
            SimpleNamespace(header=SimpleNamespace(entry=number), content=lambda number=number: b"%d" % number),
        )
        for number in numbers
    ]


async def test_entry_counts_with_its_header():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    assert append(ledger, 5) == END
    assert ledger.held_bytes == END * COUNTED + 5 + RECORD_HEADER_BYTES
    assert ledger.next_entry == END + 1


@pytest.mark.skipif(is_compiled_file(entry_runs.__file__), reason="its runs are no tuples, which compiled code demands")
def test_entries_of_all_ledgers_are_held():
    def ledger(container: int, epoch: int, low: int, high: int) -> tuple[list[SimpleNamespace], None]:
        assert container == CONTAINER
        lengths = [1000 * epoch + entry for entry in range(low, high)]
        layout = SimpleNamespace(layout=SimpleNamespace(header_bytes=7))
        return [SimpleNamespace(first_entry=low, lengths=lambda: lengths, log_file=layout)], None

    journal = cast("EntryJournal", SimpleNamespace(index=SimpleNamespace(ledger=ledger)))
    chain = LedgerChain((LedgerStart(2, 0), LedgerStart(4, 5), LedgerStart(5, 8)))
    held = _held_bytes(journal, CONTAINER, chain, 3, 9)
    assert held.total == 2003 + 2004 + 4005 + 4006 + 4007 + 5008 + 6 * 7


async def test_appended_bytes_speed_up_catching_up():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    counted: list[int] = []
    owner.shared.catch_ups.appended = counted.append  # type: ignore[method-assign]
    ledger.append([b"abc", b"de"], lambda _error: None)
    assert counted == [5]


async def test_largest_entry_fits_and_one_more_byte_does_not():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    assert append(ledger, ledger.entry_bytes_max) == END
    with pytest.raises(InvalidRequestError, match=f"{MEGABYTE + 1} bytes exceeds {MEGABYTE}"):
        append(ledger, ledger.entry_bytes_max + 1)
    assert ledger.next_entry == END + 1


async def test_closed_ledger_takes_no_entry():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    ledger.close()
    with pytest.raises(FencedError, match="was closed"):
        append(ledger)
    assert owner.owned.next_entry == END


async def test_failed_log_says_why():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    error = FencedError("another owner")
    owner.owned.end(error)
    for call in (lambda: append(ledger), lambda: ledger.truncate(END)):
        with pytest.raises(FencedError) as raised:
            call()
        assert raised.value is error
    ledger.truncate(0)  # changes nothing, so that it needs no log


async def test_truncation_frees_entries_and_reaches_the_writer():
    owner = ScriptedOwner()
    ledger = await opened(owner, truncated_before=2)
    ledger.truncate(5)
    writer = owner.owned.writer
    assert writer is not None
    assert (writer.truncated_before, ledger.held_bytes) == (5, (END - 5) * COUNTED)
    ledger.truncate(5)
    ledger.truncate(3)
    assert (writer.truncated_before, ledger.held_bytes) == (5, (END - 5) * COUNTED)
    owner.owned.end(UnavailableError("the store stops"))
    ledger.truncate(5)
    with pytest.raises(UnavailableError):
        ledger.truncate(6)


async def test_truncation_that_the_log_has_already_changes_nothing():
    owner = ScriptedOwner()
    ledger = await opened(owner, truncated_before=4)
    owner.owned.end(UnavailableError("the store stops"))
    ledger.truncate(4)
    assert ledger.held_bytes == (END - 4) * COUNTED


async def test_only_acknowledged_entries_can_lack_copies():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    assert ledger.unreplicated_bytes == 0
    for _ in range(4):
        append(ledger)
    assert ledger.unreplicated_bytes == 0, "none is acknowledged"
    for replica in (OWN, B):
        owner.ack(replica, END + 2)
    owner.ack(C, END)
    assert ledger.unreplicated_bytes == 2 * COUNTED
    for replica in (OWN, B):
        owner.ack(replica, END + 3)
    assert ledger.unreplicated_bytes == 3 * COUNTED
    owner.ack(C, END + 3)
    assert ledger.unreplicated_bytes == 0


async def test_member_that_reported_nothing_lacks_everything():
    owner = ScriptedOwner()
    ledger = await opened(owner, truncated_before=4)
    writer = owner.owned.writer
    assert writer is not None
    del writer.positions[C]
    assert ledger.unreplicated_bytes == (END - 4) * COUNTED


async def test_log_that_waits_for_a_quorum_says_how_full_it_is():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    writer = owner.owned.writer
    assert writer is not None
    append(ledger)
    assert ledger.unacknowledged_fill == writer.unacknowledged_fill > 0
    assert ledger.lag_fill == 0


async def test_idle_log_that_holds_files_back_wants_a_truncation():
    owner = ScriptedOwner()
    ledger = await opened(owner)
    owner.journal.active_sequence = owner.journal.oldest_sequence + FILES_HELD_BY_IDLE_CONTAINER_MAX
    assert not ledger.wants_truncation
    owner.journal.oldest_needed_bytes = {CONTAINER: 1}
    assert ledger.wants_truncation


async def test_ledger_knows_its_chain():
    continued = ContainerLog(
        3, LogState.OPEN, (OWN, B, C), (LedgerStart(FORMER, 0),), continued_at=LedgerStart(FORMER, 0)
    )
    ledger = await opened(ScriptedOwner(continued))
    assert ledger.continued_at == LedgerStart(FORMER, 0)
    assert (await opened(ScriptedOwner(LOG))).continued_at is None
    assert ledger.knows(FORMER, END - 1)
    assert not ledger.knows(FORMER, END)
    assert ledger.knows(EPOCH, END)


class Reads:
    """What the journal was asked for; it has `held` entries of each ledger."""

    def __init__(self, owner: ScriptedOwner, held: Iterable[int]) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self._held = list(held)
        owner.journal.ledger = self._ledger

    def _ledger(self, container: int, epoch: int, first: int, end: int) -> list[StoredEntry]:
        assert container == CONTAINER
        self.asked.append((epoch, first, end))
        return stored(number for number in self._held if first <= number < end)


def recovered(ledger: ReplicatedLedger, first: int = 0) -> list[tuple[int, bytes]]:
    return [(entry.entry, bytes(entry.payload)) for entry in ledger.recover(first)]


TWO = ContainerLog(3, LogState.OPEN, (OWN, B, C), (LedgerStart(2, 0), LedgerStart(FORMER, 6)))


async def opened_with_two_ledgers(truncated_before: int = 0) -> tuple[ScriptedOwner, ReplicatedLedger]:
    owner = ScriptedOwner(TWO)
    owner.runs = dict.fromkeys((OWN, B, C), (HeldRun(2, 0, 6, 6), HeldRun(FORMER, 6, END, END)))
    return owner, await opened(owner, truncated_before)


async def test_ledgers_are_read_one_after_the_other():
    owner, ledger = await opened_with_two_ledgers()
    reads = Reads(owner, range(END))
    assert recovered(ledger) == [(number, b"%d" % number) for number in range(END)]
    assert reads.asked == [(2, 0, 6), (FORMER, 6, END)]
    assert [number for number, _ in recovered(ledger, 8)] == [8, 9]
    assert reads.asked[2:] == [(FORMER, 8, END)]


async def test_truncated_entries_are_not_read():
    owner, ledger = await opened_with_two_ledgers(truncated_before=4)
    reads = Reads(owner, range(END))
    assert [number for number, _ in recovered(ledger, 1)] == list(range(4, END))
    assert reads.asked[0] == (2, 4, 6)


async def test_new_entries_are_not_part_of_what_was_recovered():
    owner, ledger = await opened_with_two_ledgers()
    append(ledger)
    reads = Reads(owner, range(END + 1))
    assert len(recovered(ledger)) == END
    assert reads.asked[-1] == (FORMER, 6, END)


@pytest.mark.parametrize(
    ("held", "missing"), [([0, 1, 2, 4, 5, *range(6, END)], 3), (range(5), 5), (range(END - 1), END - 1), ([], 0)]
)
async def test_hole_in_the_own_journal_is_reported(held: Iterable[int], missing: int):
    """It held everything when the log was recovered."""
    owner, ledger = await opened_with_two_ledgers()
    Reads(owner, held)
    found: list[int] = []
    with pytest.raises(CorruptError, match=rf"lacks entry {missing} of container 3.* up to {END - 1}"):
        found.extend(entry.entry for entry in ledger.recover())
    assert found == list(range(missing))
