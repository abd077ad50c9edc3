"""Subscribers of a stream: the position of each, and the highest position that all of them have reached.

Positions are valid cuts of one stream. So at any point of the key space readers read the older of two segments first.
The older segments of two cuts form a valid cut again, and so do the newer ones.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.model.epochs import overlapping
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.names import check_known_name
from headrace.model.segments import StreamSegment
from headrace.model.stream_cuts import CutOrder, PlacedCut, StreamCut, compare_cuts


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A reader group whose unread events are kept: it no longer needs events before the cut `position`.

    `generation` is that of the group's configuration. `updated_ms` is in milliseconds since the Unix epoch.
    """

    name: str
    generation: int
    position: PlacedCut
    updated_ms: int


def check_subscriber_name(name: str) -> str:
    """Returns the name of a reader group, or `scope/group`; raises InvalidRequestError for anything else."""
    scope, slash, group = name.rpartition("/")
    if slash:
        check_known_name("scope", scope)
    check_known_name("reader group", group)
    return name


def moved(subscriber: Subscriber, generation: int, position: PlacedCut, now_ms: int) -> Subscriber:
    """The subscriber at its next position.

    Raises:
        IllegalStateError: code "generation_mismatch": the group has another generation.
        InvalidRequestError: code "stream_cut_not_valid": the cut is before the position in some key range.
    """
    check_generation(subscriber, generation)
    if compare_cuts(position, subscriber.position) is not CutOrder.EQUAL_OR_AFTER:
        raise cut_not_valid(
            f"subscriber {subscriber.name} has published a later cut: send a cut that is before it in no key range",
            {"position": {str(segment): offset for segment, offset in subscriber.position.cut.positions}},
        )
    return Subscriber(subscriber.name, generation, position, now_ms)


def registered_again(before: Subscriber, after: Subscriber, *, from_start: bool) -> Subscriber:
    """The subscriber when its group registers again; raises as `check_not_newer` does.

    The same generation changes nothing. A later generation replaces the subscriber. It has its own position with
    `from_start`, else the position of the earlier generation.
    """
    check_not_newer(before, after.generation)
    if after.generation == before.generation:
        return before
    return after if from_start else replace(after, position=before.position)


def check_not_newer(subscriber: Subscriber, generation: int) -> None:
    """Raises IllegalStateError, code "generation_mismatch", if the subscriber is in a later generation."""
    if generation < subscriber.generation:
        check_generation(subscriber, generation)


def check_generation(subscriber: Subscriber, generation: int) -> None:
    """Raises IllegalStateError, code "generation_mismatch", unless `generation` is the subscriber's."""
    check_group_generation(subscriber.name, subscriber.generation, generation)


def check_group_generation(name: str, current: int, generation: int) -> None:
    """Raises IllegalStateError, code "generation_mismatch", unless `generation` is the current one."""
    if generation != current:
        raise IllegalStateError(
            f"subscriber {name} is in generation {current}, not {generation}: "
            "read the configuration of the reader group again",
            details={"generation": current},
            code="generation_mismatch",
        )


def cut_not_valid(reason: str, details: Mapping[str, object]) -> InvalidRequestError:
    return InvalidRequestError(
        f"the stream cut cannot be published: {reason}", details=details, code="stream_cut_not_valid"
    )


def lower_bound(cuts: Sequence[PlacedCut]) -> PlacedCut:
    """The latest cut that is after none of `cuts` in any key range. `cuts` has at least one item."""
    return _extreme(cuts, newest=False)


def upper_bound(cuts: Sequence[PlacedCut]) -> PlacedCut:
    """The earliest cut that is before none of `cuts` in any key range. `cuts` has at least one item."""
    return _extreme(cuts, newest=True)


def _extreme(cuts: Sequence[PlacedCut], *, newest: bool) -> PlacedCut:
    pick = max if newest else min
    offsets: dict[int, int] = {}
    segments: dict[int, StreamSegment] = {}
    for placed in cuts:
        own = placed.cut.offsets  # once: each call makes a new dictionary
        for segment in placed.segments:
            offset = own[segment.segment_id]
            offsets[segment.segment_id] = pick(offset, offsets.get(segment.segment_id, offset))
            segments[segment.segment_id] = segment
    chosen: list[StreamSegment] = []
    for segment in sorted(segments.values(), key=lambda segment: segment.epoch, reverse=newest):
        if not overlapping(chosen, segment.key_range):
            insort(chosen, segment, key=lambda segment: segment.key_range)
    first = cuts[0].cut
    positions = {segment.segment_id: offsets[segment.segment_id] for segment in chosen}
    return PlacedCut(StreamCut.of(first.scope, first.stream, positions), tuple(chosen))
