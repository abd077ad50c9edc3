"""The index of a ledger's entries finds the newest record of each, as a plain list of all records does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.log_record_header import RecordKind
from headrace.segmentstore.log.journal.entry_runs import EntryRun, LedgerState, ledger_state
from headrace.segmentstore.log.journal.journal_files import LogFile
from headrace.segmentstore.log.journal.journal_format import RecordHeader

EPOCH, FIRST = 3, 4


@dataclass
class Model:
    """All records in their order, as (file, entry, position); the length of a record depends on its entry."""

    run: EntryRun = field(default_factory=lambda: EntryRun(EPOCH, FIRST))
    records: list[tuple[object, int, int]] = field(default_factory=list)
    files: list[Any] = field(default_factory=lambda: [object()])
    first: int = FIRST
    end: int = FIRST
    position: int = 0

    def add(self, entry: int, *, copied: bool = False) -> None:
        self.position += 7
        header = RecordHeader(RecordKind.ENTRY, 0, EPOCH, EPOCH, entry, 0, 0, 0, 10 + entry, 0, copied)
        self.run.add(cast(LogFile, self.files[-1]), header, self.position)
        self.records.append((self.files[-1], entry, self.position))
        self.first, self.end = min(self.first, entry), max(self.end, entry + 1)

    def begin_file(self, copies: set[int]) -> None:
        """Copies come first in a file; they are of entries in older files."""
        self.files.append(object())
        for entry in sorted(copies & {entry for _, entry, _ in self.records}):
            self.add(entry, copied=True)

    def forget_file(self, index: int) -> None:
        log_file = self.files[index % len(self.files)]
        self.records = [record for record in self.records if record[0] is not log_file]
        self.run.keep([piece for piece in self.run.pieces if piece.log_file is not log_file])

    def clip(self, first: int, length: int | None) -> None:
        end = None if length is None else first + length
        self.first = max(self.first, first)
        self.end = max(self.first, self.end if end is None else min(self.end, end))
        self.records = [record for record in self.records if self.first <= record[1] < self.end]
        self.run.clip(first, end)

    def check(self) -> None:
        newest = {entry: (log_file, position) for log_file, entry, position in self.records}
        for entry in range(self.end + 2):
            assert self.run.position(entry) == newest.get(entry)
        for first, end in [(0, self.end + 2), (FIRST + 2, self.end - 1), (FIRST + 5, FIRST + 6)]:
            parts, missing = self.run.find(first, end)
            places = [(part.log_file, *place) for part in parts for place in part.places()]
            expected = [(*newest[entry], entry) for entry in range(first, end) if entry in newest]
            assert places == [(log_file, entry, at, 10 + entry) for log_file, at, entry in expected]
            assert [length for part in parts for length in part.lengths()] == [10 + entry for _, _, entry in expected]
            gaps = [entry for start, after in missing for entry in range(start, after)]
            assert gaps == [entry for entry in range(first, end) if entry not in newest]
        for truncated_before in (0, FIRST + 3, self.end + 2):
            first = max(self.first, truncated_before)
            after = max(self.end, first)
            gapless = next((entry for entry in range(first, after) if entry not in newest), after)
            assert ledger_state(self.run, truncated_before) == LedgerState(EPOCH, first, gapless, after)
        self.run.check(0)


entries = st.integers(FIRST - 2, FIRST + 12)
steps = st.one_of(
    st.tuples(st.just("add"), st.none()),
    st.tuples(st.just("add"), entries),
    st.tuples(st.just("begin_file"), st.sets(entries)),
    st.tuples(st.just("forget_file"), st.integers(0, 9)),
    st.tuples(st.just("clip"), st.tuples(entries, st.none() | st.integers(0, 12))),
)


@given(st.lists(steps, max_size=25))
def test_run_finds_the_newest_record_of_each_entry(program: list[tuple[str, Any]]):
    model = Model()
    for step, argument in program:
        if step == "add":
            model.add(model.end if argument is None else argument)
        elif step == "clip":
            model.clip(*argument)
        else:
            getattr(model, step)(argument)
        model.check()
