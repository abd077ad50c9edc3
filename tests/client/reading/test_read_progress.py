"""The order in which segments follow each other, on random histories of scaling."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.reading.read_progress import ReadProgress

Ranges = dict[int, tuple[int, int]]
CELLS = 12


class History:
    """Random scales of a key space of CELLS cells; segments are numbered in the order of their creation."""

    def __init__(self, data: st.DataObject) -> None:
        self.ranges: Ranges = {0: (0, 6), 1: (6, CELLS)}
        self.successors: dict[int, list[int]] = {}
        self.predecessors: dict[int, list[int]] = {0: [], 1: []}
        active = [0, 1]
        for _ in range(data.draw(st.integers(0, 6))):
            first = data.draw(st.integers(0, len(active) - 1))
            last = data.draw(st.integers(first, len(active) - 1))
            replaced = active[first : last + 1]
            low, high = self.ranges[replaced[0]][0], self.ranges[replaced[-1]][1]
            inner = data.draw(st.sets(st.integers(low + 1, high - 1), max_size=3)) if high - low > 1 else set()
            bounds = [low, *sorted(inner), high]
            created = []
            for new_low, new_high in pairwise(bounds):
                identifier = len(self.ranges)
                self.ranges[identifier] = (new_low, new_high)
                before = [former for former in replaced if self._overlap(former, identifier)]
                self.predecessors[identifier] = before
                for former in before:
                    self.successors.setdefault(former, []).append(identifier)
                created.append(identifier)
            active[first : last + 1] = created
        self.active = active

    def _overlap(self, identifier: int, other: int) -> bool:
        return self.ranges[identifier][0] < self.ranges[other][1] and self.ranges[other][0] < self.ranges[identifier][1]

    def following(self, identifier: int) -> dict[int, list[int]]:
        return {successor: self.predecessors[successor] for successor in self.successors.get(identifier, [])}


@given(st.data())
def test_every_segment_is_read_once_after_its_predecessors(data: st.DataObject) -> None:
    history = History(data)
    progress = ReadProgress({0: 0, 1: 0})
    reading, finished = [0, 1], []
    while reading:
        _check_covers(progress, history)
        identifier = reading.pop(data.draw(st.integers(0, len(reading) - 1)))
        progress.advance(identifier, 100)
        opened = progress.finish(identifier, history.following(identifier))
        finished.append(identifier)
        for successor in opened:
            assert set(history.predecessors[successor]) <= set(finished)
        reading += opened
    assert sorted(finished) == sorted(history.ranges)
    assert progress.has_ended
    assert sorted(progress.offsets) == sorted(history.active)


@given(st.data())
def test_a_reader_may_go_on_from_any_position(data: st.DataObject) -> None:
    history = History(data)
    progress = ReadProgress({0: 0, 1: 0})
    delivered = []
    reading = {0, 1}
    while reading:
        if data.draw(st.booleans()):  # a new reader that knows only the position
            offsets = progress.offsets
            progress = ReadProgress(offsets)
            reading = set(offsets)
        identifier = data.draw(st.sampled_from(sorted(reading)))
        if progress.offsets[identifier] == 0:
            delivered.append(identifier)
            progress.advance(identifier, 100)
        reading.remove(identifier)
        reading |= set(progress.finish(identifier, history.following(identifier)))
    assert sorted(delivered) == sorted(history.ranges)


def _check_covers(progress: ReadProgress, history: History) -> None:
    cells = sorted(cell for identifier in progress.offsets for cell in range(*history.ranges[identifier]))
    assert cells == list(range(CELLS))
