"""What a journal knows of each container is what a plain list of its records says."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, cast
from weakref import WeakSet

import pytest

from headrace.codec.log_record_header import RecordKind
from headrace.model.container_logs import LedgerChain, LedgerStart
from headrace.model.errors import CorruptError
from headrace.replication.replica_log import NO_WITNESS, Witness
from headrace.segmentstore.log.journal.entry_runs import LedgerState
from headrace.segmentstore.log.journal.journal_format import Format2, RecordHeader
from headrace.segmentstore.log.journal.journal_index import JournalIndex, KnownLog

CONTAINERS = (0, 1)
EPOCHS = range(1, 5)


class File:
    """Enough of a log file for what remembers where entries are."""

    def __init__(self, number: int = 0) -> None:
        self.name = f"journal-{number}"
        self.layout = Format2(0)
        self.pins: WeakSet[Any] = WeakSet()


@dataclass
class Log:
    """The records of one container since it was dropped, as (epoch, entry, file, position), oldest first."""

    epoch: int = 0
    next_entry: int = 0
    truncated_before: int = 0
    writer_epoch: int = 0
    witness: Witness = NO_WITNESS
    records: list[tuple[int, int, Any, int]] = field(default_factory=list)
    had: dict[int, tuple[int, int]] = field(default_factory=dict)

    def truncate(self, before: int) -> None:
        self.truncated_before = before
        self.next_entry = max(self.next_entry, before)
        self.records = [record for record in self.records if record[1] >= before]
        self.had = {epoch: (first, end) for epoch, (first, end) in self.had.items() if end > before}

    def entries(self, epoch: int) -> dict[int, tuple[Any, int]]:
        """The newest record of each entry that is needed."""
        return {entry: (file, at) for of, entry, file, at in self.records if of == epoch}

    def held(self) -> list[LedgerState]:
        found = []
        for epoch, (first, end) in sorted(self.had.items()):
            start = gapless = max(first, self.truncated_before)
            while gapless in self.entries(epoch):
                gapless += 1
            found.append(LedgerState(epoch, start, gapless, max(end, start)))
        return found

    def chain(self) -> list[tuple[int, int]] | None:
        """Epoch and entry of all that is needed, in order; None if something is missing or is there twice."""
        entries: list[tuple[int, int]] = []
        for epoch, (_, end) in sorted(self.had.items()):
            own = sorted(self.entries(epoch))
            first = own[0] if own else end
            if first != self.truncated_before + len(entries) or own != list(range(first, end)):
                return None
            entries += [(epoch, entry) for entry in own]
        return entries if self.truncated_before + len(entries) == self.next_entry else None


@dataclass
class Model:
    """A journal's records, and the index that was told of each of them."""

    index: JournalIndex = field(default_factory=JournalIndex)
    promises: dict[int, int] = field(default_factory=dict)
    logs: dict[int, Log] = field(default_factory=dict)
    files: list[Any] = field(default_factory=lambda: [File()])
    position: int = 0

    def add(self, header: RecordHeader, *, is_damaged: bool = False) -> None:
        self.position += 100
        container, before = header.container, self.logs.get(header.container, Log()).truncated_before
        ends_need = header.kind is RecordKind.DROP or header.truncated_before > before
        if is_damaged:
            self.index.add_damaged(header)
        else:
            assert self.index.add(self.files[-1], header, self.position) == ends_need
        if header.kind is RecordKind.DROP:
            self.logs.pop(container, None)
            return
        if header.kind is RecordKind.PROMISE:
            self.promises[container] = max(self.promises.get(container, 0), header.writer_epoch)
            if container not in self.logs and not header.truncated_before:
                return
        log = self.logs.setdefault(container, Log())
        log.writer_epoch = max(log.writer_epoch, header.writer_epoch)
        if header.kind is RecordKind.ENTRY:
            self._note(log, header, is_damaged=is_damaged)
        if ends_need:
            log.epoch = max(log.epoch, header.epoch)
            log.truncate(header.truncated_before)

    def _note(self, log: Log, header: RecordHeader, *, is_damaged: bool) -> None:
        epoch, entry = header.epoch, header.entry
        first, end = log.had.get(epoch, (entry, entry))
        log.had[epoch] = min(first, entry), max(end, entry + 1)
        if not is_damaged:
            log.records.append((epoch, entry, self.files[-1], self.position))
        log.epoch, log.next_entry = max(log.epoch, epoch), max(log.next_entry, entry + 1)
        if header.writer_epoch == epoch:
            log.witness = max(log.witness, Witness(epoch, header.acknowledged_before))

    def keep_ledgers(self, container: int, chain: LedgerChain) -> None:
        log = self.logs.get(container, Log())
        had = dict(log.had)
        for epoch, (first, end) in had.items():
            low, high = chain.bounds(epoch) or (end, end)
            low, high = max(low, first), end if high is None else min(high, end)
            log.had[epoch] = low, high
            if low >= high:
                del log.had[epoch]
        log.records = [
            (epoch, entry, *place)
            for epoch, entry, *place in log.records
            if epoch in log.had and log.had[epoch][0] <= entry < log.had[epoch][1]
        ]
        assert self.index.keep_ledgers(container, chain) == (log.had != had)

    def forget_file(self, log_file: Any) -> None:
        self.index.forget_file(log_file)
        for log in self.logs.values():
            log.records = [record for record in log.records if record[2] is not log_file]

    def check(self) -> None:
        index = self.index
        assert index.promises == self.promises
        points = {container: log.truncated_before for container, log in self.logs.items() if log.truncated_before}
        assert index.truncated_before == points
        assert index.epochs() == {container: log.epoch for container, log in self.logs.items()}
        for container in CONTAINERS:
            log = self.logs.get(container, Log())
            assert (container in index) == (container in self.logs)
            assert index.next_entry(container) == log.next_entry
            assert index.ledgers(container) == log.held()
            self.check_places(container, log)
            self.check_chain(container, log)
        known = {container: KnownLog(promise, 0, NO_WITNESS, []) for container, promise in self.promises.items()}
        for container, log in self.logs.items():
            promise = max(self.promises.get(container, 0), log.writer_epoch)
            known[container] = KnownLog(promise, log.truncated_before, log.witness, log.held())
        assert index.known() == known

    def check_places(self, container: int, log: Log) -> None:
        for epoch in EPOCHS:
            newest = log.entries(epoch)
            parts, pin = self.index.ledger(container, epoch, log.truncated_before, log.next_entry)
            assert {entry: (part.log_file, at) for part in parts for entry, at, _ in part.places()} == newest
            assert all(pin in part.log_file.pins for part in parts)
            for of, entry, file, at in log.records:
                header = RecordHeader(RecordKind.ENTRY, container, of, of, entry, 0, 0, 0, 10, 0)
                assert self.index.is_at(header, file, at) == (log.entries(of)[entry] == (file, at))

    def check_chain(self, container: int, log: Log) -> None:
        expected = log.chain()
        if expected is None:
            with pytest.raises(CorruptError):
                self.index.chain(container)
            return
        for first in range(log.next_entry + 2):
            parts, pin = self.index.chain(container, first)
            assert [(part.epoch, entry) for part in parts for entry, _, _ in part.places()] == [
                (epoch, entry) for epoch, entry in expected if entry >= first
            ]
            assert all(pin in part.log_file.pins for part in parts)


KINDS = ("entry",) * 6 + ("damaged", "copy", "truncation", "promise", "drop", "file", "chain")


def _step(model: Model, random: Random) -> None:
    container, kind = random.choice(CONTAINERS), random.choice(KINDS)
    log = model.logs.get(container, Log())
    before = random.choice((0, 0, random.randint(0, log.next_entry + 1)))
    acknowledged, epoch, writer = random.randint(0, 9), random.choice(EPOCHS), random.choice(EPOCHS)
    if kind in ("entry", "damaged"):
        entry = max(log.next_entry + random.choice((0, 0, 0, 0, -1, -2, 1)), log.truncated_before, before)
        epoch = random.choice((max(log.epoch, 1), max(log.epoch, 1), epoch))
        writer = random.choice((epoch, writer))
        fields = (container, epoch, writer, entry, before, acknowledged, 0, 10, 0)
        model.add(RecordHeader(RecordKind.ENTRY, *fields), is_damaged=kind == "damaged")
    elif kind == "copy" and log.records:
        epoch, entry, *_ = random.choice(log.records)
        model.add(RecordHeader(RecordKind.ENTRY, container, epoch, epoch, entry, before // 2, 0, 0, 10, 0, True))
    elif kind == "truncation":
        model.add(RecordHeader(RecordKind.TRUNCATION, container, epoch, writer, 0, before, 0, 0, 0, 0))
    elif kind == "promise":
        limits = random.choice(((0, 0), (before, 0), (0, acknowledged), (before, acknowledged)))
        model.add(RecordHeader(RecordKind.PROMISE, container, 0, writer, 0, *limits, 0, 0, 0))
    elif kind == "drop" and random.random() < 0.5:
        model.add(RecordHeader(RecordKind.DROP, container, epoch, epoch, 0, 0, 0, 0, 0, 0))
    elif kind == "file":
        model.files.append(File(len(model.files)))
        if random.random() < 0.5:
            model.forget_file(model.files.pop(0))
    elif kind == "chain":
        epochs = sorted(random.sample(EPOCHS, random.randint(1, len(EPOCHS))))
        firsts = sorted(random.randint(0, log.next_entry + 1) for _ in epochs)
        starts = [LedgerStart(epoch, first) for epoch, first in zip(epochs, firsts, strict=True)]
        model.keep_ledgers(container, LedgerChain(starts))


@pytest.mark.parametrize("seed", range(10))
def test_the_index_says_what_the_records_say(seed: int):
    random = Random(seed)
    for _ in range(40):
        model = Model()
        for _ in range(random.randint(1, 30)):
            _step(model, random)
            model.check()


def test_a_journal_that_was_set_aside_is_forgotten():
    model = Model()
    model.add(RecordHeader(RecordKind.ENTRY, 0, 3, 3, 5, 5, 2, 0, 10, 0))
    model.add(RecordHeader(RecordKind.PROMISE, 1, 0, 4, 0, 0, 0, 0, 0, 0))
    model.index.clear()
    assert model.index.known() == {}
    assert model.index.epochs() == {}
    assert model.index.truncated_before == {}


def test_a_truncated_entry_is_not_needed_with_its_neighbours():
    """Its record is in one piece with theirs: it must not be copied with them."""
    index, file = JournalIndex(), cast(Any, File())
    headers = [RecordHeader(RecordKind.ENTRY, 0, 3, 3, entry, 0, 0, 0, 10, 0) for entry in range(3)]
    for header in headers:
        index.add(file, header, 100 * header.entry)
    index.add(file, RecordHeader(RecordKind.TRUNCATION, 0, 3, 3, 0, 1, 0, 0, 0, 0), 400)
    assert [index.is_at(header, file, 100 * header.entry) for header in headers] == [False, True, True]
