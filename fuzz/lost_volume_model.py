"""What a container must have after its volume is lost: what tier 2 had, and nothing that was never there.

Each segment must be a beginning of one that was accepted and durable under its name. A removal of which tier 2 did not
know yet may be undone, and so may a merge, but only as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from fuzz.checker import WrongStateError
from fuzz.program_trace import Trace
from fuzz.segment_model import WRITER, ModelSegment, SegmentModel
from headrace.codec import data_frames
from headrace.model.errors import ThrottledError, UnavailableError
from headrace.model.segment_attributes import NO_VALUE
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import Settle
from headrace.segmentstore.owned_container import OwnedContainer
from headrace.segmentstore.tables.table import read_segment

_ATTEMPTS_MAX: Final = 1_000
_RETRY_S: Final = 0.001
_SHOWN_BYTES: Final = 50

_Result = TypeVar("_Result")


class StoredLength(NamedTuple):
    """A segment of the model, and how much of it tier 2 has."""

    model: ModelSegment
    length: int


@dataclass(frozen=True, slots=True)
class _Merge:
    """A merge that was accepted, and where its bytes are in the target."""

    source: ModelSegment
    target: ModelSegment
    offset: int

    @property
    def end(self) -> int:
        return self.offset + len(self.source.data)

    @property
    def has_effect(self) -> bool:
        """Whether it has bytes, and no failure of the container has undone it."""
        return self.end > self.offset and self.target.data[self.offset : self.end] == self.source.data


class _Restored(NamedTuple):
    """A segment that was restored, and that of the model of which it is a beginning."""

    segment: Segment
    model: ModelSegment


class LostVolumeModel(SegmentModel):
    """Remembers all segments and merges since the last loss, also those that are removed."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._incarnations: dict[str, list[ModelSegment]] = {}
        self._merges: list[_Merge] = []

    def _accepted(self, container: SegmentContainer, operation: data_frames.Operation) -> list[Settle]:
        settles = super()._accepted(container, operation)
        if isinstance(operation, data_frames.CreateOperation):
            self._incarnations.setdefault(operation.name, []).append(self.live[operation.name])
        return settles

    def _merged(self, merge: data_frames.MergeOperation, named: Callable[[int], ModelSegment]) -> list[Settle]:
        self._merges.append(_Merge(named(merge.source), named(merge.target), merge.offset))
        return super()._merged(merge, named)

    def stored_lengths(self, container: SegmentContainer) -> dict[str, StoredLength]:
        """What tier 2 has of the segments that exist now. It has all of an evicted one."""
        metadata, lengths = container.metadata, {}
        for name, model in self.live.items():
            segment = metadata.segments.get(name)
            if segment is not None:
                lengths[name] = StoredLength(model, segment.tiered.length)
            elif metadata.may_be_evicted(name) and model.is_settled:
                lengths[name] = StoredLength(model, len(model.data))
        return {name: each for name, each in lengths.items() if each.length}

    async def check_restored(self, owned: OwnedContainer, stored: Mapping[str, StoredLength]) -> None:
        """Check a container that was just opened without a log, and take its segments as what is accepted now.

        Raises:
            WrongStateError: it lacks bytes that were `stored`, or has something that was not accepted.
        """
        container = owned.container
        for name in self._incarnations:
            await _answered(lambda name=name: container.find(name))  # type: ignore[misc]
        found: dict[str, _Restored] = {}
        for name, segment in sorted(container.metadata.segments.items()):
            accepted = segment.accepted
            self._trace.note(f"restored {name} from {accepted.start_offset} to {accepted.length}")
            found[name] = _Restored(segment, await self._origin(owned, segment))
        for name, (model, length) in stored.items():
            if self.live.get(name) is model:
                _check_stored(found.get(name), model, length)
        for merge in self._merges:
            if merge.has_effect:
                _check_merge(merge, found.get(merge.target.name), found.get(merge.source.name))
        self._count(found)
        self.live, self.gone = {name: _cut(each) for name, each in found.items()}, {}
        self._incarnations = {name: [model] for name, model in self.live.items()}
        self._merges = []

    async def _origin(self, owned: OwnedContainer, segment: Segment) -> ModelSegment:
        """Of which segment this one is a beginning: if possible of the present one."""
        name, accepted = segment.name, segment.accepted
        start, end = accepted.start_offset, accepted.length
        data = b""
        if start < end:
            data = await _answered(lambda: read_segment(segment, owned.reader, start, end - start))
        known = self._incarnations.get(name, [])
        origins = [
            model
            for model in known
            if end <= model.durable_length
            and model.data[start:end] == data
            and start <= model.start
            and accepted.sealed <= model.is_sealed
        ]
        event = segment.attribute(WRITER)
        fitting = [model for model in origins if event <= _last_event(model, end)]
        if not fitting:
            shown = [(model.durable_length, bytes(model.data[start:end][:_SHOWN_BYTES])) for model in known]
            raise WrongStateError(
                f"{name}: restored {data[:_SHOWN_BYTES]!r} from {start} to {end}, sealed {accepted.sealed}, "
                f"event {event}; {len(origins)} segments of the name begin so, {shown} are known"
            )
        return next((model for model in fitting if model is self.live.get(name)), fitting[-1])

    def _count(self, found: Mapping[str, _Restored]) -> None:
        self.happened["lost volumes"] += 1
        self.happened["restored"] += len(found)
        removed = (each for name, each in found.items() if each.model is not self.live.get(name))
        self.happened["restored after their removal"] += sum(each.model.removal_is_durable for each in removed)


def _check_stored(found: _Restored | None, model: ModelSegment, length: int) -> None:
    if found is None or found.model is not model or found.segment.accepted.length < length:
        shown = "nothing" if found is None else f"{found.segment.accepted.length} bytes"
        is_former = found is not None and found.model is not model
        raise WrongStateError(
            f"{model.name}: tier 2 had {length} of {len(model.data)} bytes, restored {shown}"
            f"{' of a removed segment' if is_former else ''}"
        )


def _check_merge(merge: _Merge, target: _Restored | None, source: _Restored | None) -> None:
    """Check that a merge is restored as a whole or not at all, and its bytes are not in two places."""
    if target is None or target.model is not merge.target:
        return
    accepted = target.segment.accepted
    if accepted.start_offset <= merge.offset < accepted.length < merge.end:
        raise WrongStateError(
            f"{merge.target.name}: restored {accepted.length} bytes, with a part of the merge of {merge.source.name} "
            f"from {merge.offset} to {merge.end}"
        )
    has_bytes = accepted.length > max(merge.offset, accepted.start_offset)
    if not has_bytes or source is None or source.model is not merge.source:
        return
    if source.segment.accepted.length and not source.segment.accepted.may_lack_bytes:
        raise WrongStateError(
            f"{merge.source.name} is there with {source.segment.accepted.length} bytes, and in {merge.target.name} "
            f"from {merge.offset} on, too"
        )


def _last_event(model: ModelSegment, end: int) -> int:
    """The number of the last event that ends at `end` or before."""
    return max((number for each, number in model.appends if each <= end), default=NO_VALUE)


def _cut(restored: _Restored) -> ModelSegment:
    """The model of a segment that was restored: all of it is durable."""
    accepted, event = restored.segment.accepted, restored.segment.attribute(WRITER)
    return ModelSegment(
        restored.model.name,
        restored.model.data[: accepted.length],
        [] if event == NO_VALUE else [(accepted.length, event)],
        accepted.start_offset,
        accepted.sealed,
        is_durable=True,
        durable_length=accepted.length,
        durable_start=accepted.start_offset,
        seal_is_durable=accepted.sealed,
    )


async def _answered(ask: Callable[[], Awaitable[_Result]]) -> _Result:
    """Ask until the container or tier 2 answers."""
    for _ in range(_ATTEMPTS_MAX):
        try:
            return await ask()
        except (ThrottledError, UnavailableError):
            await asyncio.sleep(_RETRY_S)
    raise WrongStateError(f"a restored container does not answer within {_ATTEMPTS_MAX} attempts")
