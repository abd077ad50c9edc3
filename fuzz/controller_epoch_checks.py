"""What must hold of the epochs of streams at rest: no lost key range, and successors that agree with each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fuzz.controller_checks import require
from fuzz.controller_model import SCOPE, STREAMS
from fuzz.controller_run import ControllerRun
from headrace.metadata.cold_mark import COLD_MARKS_FIRST, segment_of_cold_mark
from headrace.model.epochs import Epoch
from headrace.model.names import segment_name
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream
from headrace.model.truncation import segments_left


class EpochChecks:
    """Every method raises WrongStateError."""

    def __init__(self, run: ControllerRun) -> None:
        self._plane = run.plane

    def check_all(self) -> None:
        for name in STREAMS:
            stored = self._plane.records.find(SCOPE, name)
            if stored is not None:
                self._check_stream(stored.stream)

    def _check_stream(self, stream: Stream) -> None:
        _, truncation = self._plane.records.get_with_truncation(SCOPE, stream.name)
        epochs = list(self._plane.records.history.epochs(stream, range(stream.epoch.number + 1)))
        require(epochs[-1] == stream.epoch, f"{stream.name}: {stream.epoch} is not its last epoch, {epochs[-1]}")
        for epoch in epochs:
            ranges = [segment.key_range for segment in epoch.segments]
            require(_are_whole(ranges), f"{stream.name}: epoch {epoch.number} has the key ranges {ranges}")
        for before, after in pairwise(epochs):
            _check_follows(stream, before, after)
            for each in segments_left(after.replaced, truncation):
                self._check_replaced(stream, each)
        self._check_active(stream)

    def _check_replaced(self, stream: Stream, segment: StreamSegment) -> None:
        """Readers come from it to segments that cover its key range, and know that it is before them."""
        name = segment_name(SCOPE, stream.name, segment.segment_id)
        info = self._plane.bare_segment_stores.segment_info(name)
        require(info.is_sealed, f"{name} was replaced, and is not sealed")
        following = self._plane.segments.successors(SCOPE, stream.name, segment.segment_id).segments
        reached = [segment.key_range for segment in following]
        is_covered = bool(reached) and _are_adjacent(reached)
        is_covered = is_covered and reached[0].low <= segment.key_range.low
        require(is_covered and segment.key_range.high <= reached[-1].high, f"{name} leads to {reached}")
        for successor in following:
            require(segment.segment_id in successor.predecessors, f"{name} is not before {successor}")
            earlier = self._plane.segments.predecessors(SCOPE, stream.name, successor.segment_id)
            identifiers = [each.segment_id for each in earlier]
            where = f"{successor.segment_id} of {stream.name} follows {identifiers}"
            require(segment.segment_id in identifiers, where)

    def _check_active(self, stream: Stream) -> None:
        is_sealed = stream.state is StreamState.SEALED
        for segment in stream.epoch.segments:
            name = segment_name(SCOPE, stream.name, segment.segment_id)
            info = self._plane.bare_segment_stores.segment_info(name)
            require(info.is_sealed is is_sealed, f"{name} is sealed: {info.is_sealed}, in a stream {stream.state}")
        least, count = stream.configuration.scaling.min_segments, len(stream.epoch.segments)
        require(count >= least, f"{stream.name} has {count} segments, fewer than {least}")
        for partition, sort in self._plane.everything():
            if partition == f"streams/{SCOPE}/{stream.name}" and sort.startswith(COLD_MARKS_FIRST):
                is_active = segment_of_cold_mark(sort) in stream.epoch.by_id
                require(is_active, f"{partition} {sort} is left of a segment that was replaced")


def _check_follows(stream: Stream, before: Epoch, after: Epoch) -> None:
    """The new epoch keeps a segment as it was, or replaces it. New segments have its number, and no former one."""
    where = f"{stream.name}: {after} follows {before}"
    require(after.number == before.number + 1, where)
    kept = [segment for segment in after.segments if segment.segment_id in before.by_id]
    require(all(before.by_id[segment.segment_id] == segment for segment in kept), where)
    replaced = [segment for segment in before.segments if segment.segment_id not in after.by_id]
    require(list(after.replaced) == replaced, where)
    require(all(segment.epoch == after.number for segment in after.segments if segment not in kept), where)


def _are_whole(ranges: Sequence[KeyRange]) -> bool:
    return bool(ranges) and ranges[0].low == 0 and ranges[-1].high == 1 and _are_adjacent(ranges)


def _are_adjacent(ranges: Sequence[KeyRange]) -> bool:
    return all(before.high == after.low for before, after in pairwise(ranges))
