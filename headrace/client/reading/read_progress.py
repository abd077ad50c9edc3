"""The position of a reader, and the segments that it may read next. No I/O.

A successor is read only after all its predecessors have been read to their ends, so that the events of a routing key
arrive in the order in which they were written. Segments that share successors leave the position together. Until then
they stay in it with their end offsets. The position is therefore always a stream cut that covers the key space exactly
once.
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
        """The position as a stream cut: another reader can start from it."""
        return dict(self._offsets)

    @property
    def has_ended(self) -> bool:
        """Whether all segments have been read, and none will follow."""
        return not self._open

    @property
    def open_segments(self) -> int:
        return len(self._open)

    def is_behind(self, segment_id: int, offset: int) -> bool:
        """Whether events before `offset` of a segment were not returned to the caller yet."""
        return self._offsets.get(segment_id, offset) < offset

    def advance(self, segment_id: int, offset: int) -> None:
        """Records that all events before `offset` were returned to the caller."""
        self._offsets[segment_id] = offset

    def advance_from(self, segment_id: int, start: int, offset: int) -> bool:
        """As `advance` if the first event that was not returned is at `start`. Otherwise it returns False.

        It calls nothing, so that no other thread and no interrupt can come between the check and the change.
        """
        if self._offsets[segment_id] != start:
            return False
        self._offsets[segment_id] = offset
        return True

    def finish(self, segment_id: int, successors: Mapping[int, Sequence[int]]) -> list[int]:
        """Records that a segment was read to its end. Returns the segments to read next, from their first byte.

        `successors` are those of the segment, each with all its predecessors. It is empty if reading ends here.
        """
        self._open.discard(segment_id)
        if not successors:
            return []
        self._replaced[segment_id] = successors
        group = self._replaced_together(segment_id)
        if group is None:
            return []
        opened = sorted({successor for each in group for successor in self._replaced[each]})
        for each in group:
            del self._replaced[each]
            del self._offsets[each]
        for successor in opened:
            self._offsets[successor] = 0
            self._open.add(successor)
        return opened

    def _replaced_together(self, segment_id: int) -> set[int] | None:
        """Returns all segments that share successors, directly or indirectly; None while one of them is unread."""
        group, waiting = {segment_id}, [segment_id]
        while waiting:
            for predecessors in self._replaced[waiting.pop()].values():
                for predecessor in predecessors:
                    if predecessor not in self._replaced:
                        return None
                    if predecessor not in group:
                        group.add(predecessor)
                        waiting.append(predecessor)
        return group
