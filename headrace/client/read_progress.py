"""How far a reader has come, and which segments it may read next: pure bookkeeping.

A successor is read only when all its predecessors are read to their ends, so that events of a routing key come in the
order written. Segments that were replaced together, by sharing successors, are left together: until then they stay in
the position with their end offsets, so that the position is at every moment a stream cut that covers the key space
exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ReadProgress:
    """The position of one reader. Offsets in bytes by segment id."""

    def __init__(self, offsets: Mapping[int, int]) -> None:
        self._offsets = dict(offsets)
        self._open = set(offsets)
        self._replaced: dict[int, Mapping[int, Sequence[int]]] = {}

    @property
    def offsets(self) -> dict[int, int]:
        """What a reader that starts here would have to know."""
        return dict(self._offsets)

    @property
    def has_ended(self) -> bool:
        """Nothing is open and nothing will be opened any more."""
        return not self._open

    @property
    def open_segments(self) -> int:
        return len(self._open)

    def advance(self, segment_id: int, offset: int) -> None:
        """Everything before `offset` was handed out."""
        self._offsets[segment_id] = offset

    def finish(self, segment_id: int, successors: Mapping[int, Sequence[int]]) -> list[int]:
        """The segment was read to its end; the segments that may be read from now on, from their first byte.

        `successors` are those of the segment, each with all its predecessors; none if the reading ends here.
        """
        self._open.discard(segment_id)
        if not successors:
            return []
        self._replaced[segment_id] = successors
        group = self._replaced_together(segment_id)
        if group is None:
            return []
        opened = sorted({successor for one in group for successor in self._replaced[one]})
        for one in group:
            del self._replaced[one]
            del self._offsets[one]
        for successor in opened:
            self._offsets[successor] = 0
            self._open.add(successor)
        return opened

    def _replaced_together(self, segment_id: int) -> set[int] | None:
        """The segments that share successors with this one, directly or not; None while one is still to be read."""
        group, waiting = {segment_id}, [segment_id]
        while waiting:
            for predecessors in self._replaced[waiting.pop()].values():
                for one in predecessors:
                    if one not in self._replaced:
                        return None
                    if one not in group:
                        group.add(one)
                        waiting.append(one)
        return group
