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
                before = [one for one in replaced if self._overlap(one, identifier)]
                self.predecessors[identifier] = before
                for one in before:
                    self.successors.setdefault(one, []).append(identifier)
                created.append(identifier)
            active[first : last + 1] = created
        self.active = active

    def _overlap(self, one: int, other: int) -> bool:
        return self.ranges[one][0] < self.ranges[other][1] and self.ranges[other][0] < self.ranges[one][1]

    def following(self, identifier: int) -> dict[int, list[int]]:
        return {one: self.predecessors[one] for one in self.successors.get(identifier, [])}


@given(st.data())
def test_every_segment_is_read_once_after_its_predecessors(data: st.DataObject) -> None:
    history = History(data)
    progress = ReadProgress({0: 0, 1: 0})
    reading, finished = [0, 1], []
    while reading:
        _check_covers(progress, history)
        one = reading.pop(data.draw(st.integers(0, len(reading) - 1)))
        progress.advance(one, 100)
        opened = progress.finish(one, history.following(one))
        finished.append(one)
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
        one = data.draw(st.sampled_from(sorted(reading)))
        if progress.offsets[one] == 0:
            delivered.append(one)
            progress.advance(one, 100)
        reading.remove(one)
        reading |= set(progress.finish(one, history.following(one)))
    assert sorted(delivered) == sorted(history.ranges)


def _check_covers(progress: ReadProgress, history: History) -> None:
    cells = sorted(cell for one in progress.offsets for cell in range(*history.ranges[one]))
    assert cells == list(range(CELLS))
