"""The report of a rehearsal: its phases with their seconds, and what each has checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Phase:
    """A phase with what it has seen. `seconds` None: it runs."""

    name: str
    seen: list[str] = field(default_factory=list)
    seconds: float | None = None
    failure: str | None = None


class Report:
    """Collects the phases."""

    def __init__(self, revision: str, began: str) -> None:
        self._revision, self._began = revision, began
        self.phases: list[Phase] = []

    @property
    def has_failed(self) -> bool:
        return any(phase.failure is not None for phase in self.phases)

    @contextmanager
    def phase(self, name: str, *, is_needed: bool = True) -> Iterator[Phase]:
        """Time a phase. An error that leaves it is its failure, and ends the run if later phases need this one."""
        print(f"rehearsal: {name}", flush=True)
        phase = Phase(name)
        self.phases.append(phase)
        started_s = time.monotonic()
        try:
            yield phase
        except BaseException as error:
            phase.failure = str(error) or type(error).__name__
            if is_needed or not isinstance(error, Exception):
                raise
        finally:
            phase.seconds = time.monotonic() - started_s
            outcome = "passed" if phase.failure is None else f"FAILED: {phase.failure.splitlines()[0]}"
            print(f"rehearsal: {name}: {outcome} after {phase.seconds:.0f} s", flush=True)

    def text(self) -> str:
        """The report in Markdown."""
        outcome = "failed" if self.has_failed else "passed"
        total = sum(phase.seconds or 0 for phase in self.phases)
        lines = [
            "# A rehearsed deployment",
            "",
            f"Revision {self._revision}, began {self._began} UTC, {outcome} after {total:.0f} s.",
            "",
            "| Phase | Seconds | Result |",
            "|---|--:|---|",
            *(
                f"| {phase.name} | {phase.seconds or 0:.0f} | {'failed' if phase.failure is not None else 'passed'} |"
                for phase in self.phases
            ),
        ]
        for phase in self.phases:
            if phase.seen or phase.failure is not None:
                lines += ["", f"## {phase.name[:1].upper()}{phase.name[1:]}", "", *(f"- {each}" for each in phase.seen)]
            if phase.failure is not None:
                lines += ["", "```text", phase.failure, "```"]
        return "\n".join(lines) + "\n"
