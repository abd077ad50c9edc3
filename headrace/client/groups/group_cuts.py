"""The stream cuts at the positions of a reader group.

A segment that was read to its end leaves the state of the group at once. If it is to be merged with another one that is
still being read, its part of the key space is in no position. Here such segments are found again, at their ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from headrace.client.administration.admin import AsyncAdmin
from headrace.model.errors import FrozenError
from headrace.model.group_state import Positions
from headrace.model.segments import KeyRange, covers_key_space_once, segment_epoch
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut


async def stream_cuts(admin: AsyncAdmin, positions: Positions) -> tuple[StreamCut, ...]:
    """Returns the cuts at the positions of a group, one for each stream that is not read to its end, by name.

    Raises:
        NotFoundError: one of the streams was deleted.
        TruncatedError: events after the positions have been truncated.
    """
    by_stream: dict[tuple[str, str], dict[int, int]] = {}
    for segment, offset in positions.items():
        by_stream.setdefault((segment.scope, segment.stream), {})[segment.segment_id] = offset
    return tuple([await complete_cut(admin, *name, offsets) for name, offsets in sorted(by_stream.items())])


async def complete_cut(admin: AsyncAdmin, scope: str, stream: str, offsets: Mapping[int, int]) -> StreamCut:
    """Returns the cut at these offsets by segment id, with the ends of the segments that were read next to them."""
    found = dict(offsets)
    epochs: dict[int, dict[int, KeyRange]] = {}

    async def range_of(identifier: int) -> KeyRange | None:
        epoch = segment_epoch(identifier)
        if epoch not in epochs:
            segments = await admin.segments(scope, stream, epoch=epoch)
            epochs[epoch] = {one.segment_id: one.key_range for one in segments}
        return epochs[epoch].get(identifier)

    known = {identifier: await range_of(identifier) for identifier in sorted(offsets)}
    ranges = {identifier: key_range for identifier, key_range in known.items() if key_range is not None}
    waiting, seen = deque(sorted(offsets)), set(offsets)
    while waiting and not covers_key_space_once(list(ranges.values())):
        try:
            following = await admin.successors(scope, stream, waiting.popleft(), as_recorded=True)
        except FrozenError:
            continue  # an active segment, which has no successors
        for successor in following.segments:
            if successor.segment_id in seen:
                continue
            seen.add(successor.segment_id)
            waiting.append(successor.segment_id)
            for identifier in successor.predecessors:
                if identifier in seen:
                    continue
                key_range = await range_of(identifier)
                if key_range is not None and not any(map(key_range.overlaps, ranges.values())):
                    seen.add(identifier)
                    found[identifier], ranges[identifier] = END_OF_SEGMENT, key_range
    return StreamCut.of(scope, stream, found)
