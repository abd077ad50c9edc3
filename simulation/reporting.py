"""Counts over many runs: faults by kind, states reached, events, and what the nightly run must have reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from simulation.runs import Run
from simulation.swarm import MESSAGE_FAULTS, RECORD_FAULTS, SCHEDULED_FAULTS

STATES: Final = (
    "recovery served",
    "recovery blocked",
    "blocked, and rightly so",
    "owner fenced",
    "ledger opened with 2 members",
    "ledger opened with 3 members",
    "member added",
    "member removed",
    "member replaced",
    "member dropped",
    "copy discarded",
    "record written",
    "record unknown",
    "record conflict",
    "record claim lost",
    "journal failed",
    "journal set aside",
    "truncated",
    "log ended",
    "ledger opened from EMPTY",
    "ledger opened from LOST",
    "loss accepted, 0 left",
    "loss accepted, 1 left",
    "nack 1",
    "nack 2",
    "nack 4",
)
"""Transitions of the protocol that a long run must reach."""

FAULTS: Final = (*SCHEDULED_FAULTS, *MESSAGE_FAULTS, *RECORD_FAULTS)


@dataclass(slots=True)
class Report:
    """The sum of many runs."""

    seeds: int = 0
    events: int = 0
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    failures: list[Run] = field(default_factory=list)

    def add(self, run: Run) -> None:
        self.seeds += 1
        self.events += run.events
        self.acknowledged += run.acknowledged
        self.faults += run.faults
        self.states += run.states
        if run.violations:
            self.failures.append(run)

    def too_rare(self, times: int) -> list[str]:
        """The faults and states that were reached less often than `times`."""
        rare = [f"fault {kind}: {self.faults[kind]}" for kind in FAULTS if self.faults[kind] < times]
        return rare + [f"state {state}: {self.states[state]}" for state in STATES if self.states[state] < times]

    def text(self) -> str:
        injected = sum(self.faults.values())
        lines = [
            f"{self.seeds} seeds, {self.events} events, {self.acknowledged} acknowledged entries, {injected} faults",
            "",
            "faults:",
            *_table(self.faults),
            "",
            "states reached:",
            *_table(self.states),
        ]
        for run in self.failures:
            first = run.violations[0]
            lines += ["", f"seed {run.seed}: {first.checker} at {first.time / 1e6:.3f} s: {first.what}"]
        return "\n".join(lines)


def _table(counts: Counter[str]) -> Iterable[str]:
    return (f"{count:10d}  {name}" for name, count in sorted(counts.items()))
