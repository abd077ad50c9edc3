"""What a journal knows about each container after a start: the interface between the journal and ReplicaLog."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.codec.replica_messages import HeldRun


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The durable state of one container's log at a replica.

    `confirmed` is the entry behind the last one known to be acknowledged. A journal that has lost records which it
    cannot name does not give this state: its store makes a new journal, which is another replica.
    """

    promise: int = 0
    truncated: int = 0
    confirmed: int = 0
    runs: tuple[HeldRun, ...] = ()


@dataclass(slots=True)
class RunSpans:
    """The entries of one ledger as a scan finds them, with gaps where records are damaged."""

    spans: list[list[int]] = field(default_factory=list)
    had_end: int = 0

    def add(self, entry: int) -> None:
        """Enter an entry that is intact. A later copy of an entry replaces the earlier one."""
        self.had_end = max(self.had_end, entry + 1)
        if self.spans and self.spans[-1][0] <= entry <= self.spans[-1][1]:
            return
        if self.spans and entry == self.spans[-1][1] + 1:
            self.spans[-1][1] = entry
            return
        self.spans = _merged([*self.spans, [entry, entry]])

    def note_damaged(self, entry: int) -> None:
        """Enter an entry whose header is intact and whose payload is not."""
        self.had_end = max(self.had_end, entry + 1)

    def run(self, epoch: int, truncated: int) -> HeldRun | None:
        """What is held from the truncation point on; None if nothing is."""
        spans = [span for span in self.spans if span[1] >= truncated]
        if spans:
            start, last = spans[0]
            return HeldRun(epoch, start, last + 1, max(self.had_end, last + 1))
        if self.had_end > truncated:
            return HeldRun(epoch, truncated, truncated, self.had_end)
        return None


def _merged(spans: list[list[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, last in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([start, last])
    return merged
