"""What the segments of a container must be: a model that follows each operation as the container accepts it.

After a restart an operation that was durable must have its effect. A later one may have it, but only together with all
operations before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.program_trace import Trace
from headrace.codec import data_frames
from headrace.codec.container_snapshots import decode_segment
from headrace.model.segment_attributes import NO_VALUE
from headrace.segmentstore.containers import settlements
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import Settle

WRITER: Final = 7


@dataclass(slots=True)
class ModelSegment:
    """One segment as it was accepted, and how much of that is durable. `appends` are ends with event numbers."""

    name: str
    data: bytearray = field(default_factory=bytearray)
    appends: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    is_sealed: bool = False
    is_durable: bool = False
    durable_length: int = 0
    durable_start: int = 0
    seal_is_durable: bool = False
    removal_is_durable: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether everything that was accepted is durable."""
        return (self.durable_length, self.durable_start, self.seal_is_durable) == (
            len(self.data),
            self.start,
            self.is_sealed,
        )

    @property
    def last_event(self) -> int:
        return self.appends[-1][1] if self.appends else NO_VALUE

    def note_durable(self, length: int) -> None:
        self.durable_length = max(self.durable_length, length)


class SegmentModel:
    """All segments. `gone` has those whose removal is accepted and not durable."""

    def __init__(self, trace: Trace) -> None:
        self.live: dict[str, ModelSegment] = {}
        self.gone: dict[str, ModelSegment] = {}
        self.happened: Counter[str] = Counter()
        self.appended = b""
        """The data of the append that is being accepted: the container does not tell it."""
        self._trace = trace

    def follow(self, container: SegmentContainer) -> None:
        """Learn of all operations that this container accepts from now on."""
        metadata = container.metadata
        honest_append, honest_apply = metadata.append, metadata.apply

        def append(segment: Segment, end: int, writer: int, number: int, count: int, now_ms: int) -> None:
            honest_append(segment, end, writer, number, count, now_ms)
            model = self.live[segment.name]
            model.data += self.appended
            model.appends.append((end, number))
            require("the end of an append", segment.name, len(model.data), end)

        def apply(operation: data_frames.Operation, entry: int, ordering: int) -> Settle:
            settles = self._accepted(container, operation)
            settles.append(honest_apply(operation, entry, ordering))
            return settlements.in_turn(settles)

        metadata.append = append  # type: ignore[method-assign, assignment]
        metadata.apply = apply  # type: ignore[method-assign, assignment]

    def _accepted(self, container: SegmentContainer, operation: data_frames.Operation) -> list[Settle]:
        """Change the model. The returned functions note that the operation is durable."""

        def named(number: int) -> ModelSegment:
            return self.live[container.metadata.by_number(number).name]

        if not isinstance(operation, data_frames.StoredOperation):
            self._trace.note(f"accepted {_text(operation)}")
            self.happened[type(operation).__name__.removesuffix("Operation").lower()] += 1
        match operation:
            case data_frames.CreateOperation():
                model = self.live[operation.name] = ModelSegment(operation.name)
                return [partial(setattr, model, "is_durable", True)]
            case data_frames.SealOperation():
                model = named(operation.number)
                model.is_sealed = True
                return [partial(setattr, model, "seal_is_durable", True)]
            case data_frames.TruncateOperation():
                model = named(operation.number)
                model.start = max(model.start, operation.offset)
                return [partial(_note_start, model, operation.offset)]
            case data_frames.DeleteOperation():
                return [self._removed(named(operation.number))]
            case data_frames.MergeOperation():
                return self._merged(operation, named)
            case data_frames.MergeBatchOperation():
                return [settle for merge in operation.merges for settle in self._merged(merge, named)]
            case _:
                return []

    def _removed(self, model: ModelSegment) -> Settle:
        self.gone[model.name] = self.live.pop(model.name)

        def settle() -> None:
            model.removal_is_durable = True
            if self.gone.get(model.name) is model:
                del self.gone[model.name]

        return settle

    def _merged(self, merge: data_frames.MergeOperation, named: Callable[[int], ModelSegment]) -> list[Settle]:
        target, source = named(merge.target), named(merge.source)
        require("the offset of a merge", target.name, len(target.data), merge.offset)
        require("the length of a merged segment", source.name, len(source.data), merge.length)
        target.data += source.data
        return [partial(target.note_durable, len(target.data)), self._removed(source)]

    async def check_recovered(self, container: SegmentContainer) -> None:
        """Check the segments of a container that was just opened, and take them as what is accepted now."""
        for model in [*self.gone.values(), *self.live.values()]:
            if model.name in self.gone or not model.is_settled:
                await container.find(model.name)  # an eviction before the operation may be durable
        known, removed = self.live, self.gone
        self.live, self.gone = {}, {}
        self._trace.note(f"opened epoch {container.epoch} with {sorted(container.metadata.segments)}")
        for name, segment in container.metadata.segments.items():
            expected = known.get(name) or removed.get(name)
            if expected is None or expected.removal_is_durable:
                raise WrongStateError(f"{name} is there again, with {segment.accepted.length} bytes")
            _check_segment(expected, segment)
            self.live[name] = expected
        for name, model in removed.items():
            if model.is_durable and self.live.get(name) is not model:
                model.note_durable(len(model.data))  # the log has its removal, and everything before
        for name, model in known.items():
            if name not in self.live and model.is_durable:
                if not container.metadata.may_be_evicted(name):
                    raise WrongStateError(f"{name} is lost, with {model.durable_length} durable bytes")
                self.live[name] = model


def _check_segment(model: ModelSegment, segment: Segment) -> None:
    """Check a recovered segment, and cut its model back to it."""
    accepted = segment.accepted
    length, start = accepted.length, accepted.start_offset
    if not model.durable_length <= length <= len(model.data):
        raise WrongStateError(
            f"{model.name}: recovered {length} bytes; {model.durable_length} were durable, {len(model.data)} accepted"
        )
    if not model.durable_start <= start <= model.start:
        raise WrongStateError(
            f"{model.name}: recovered the start {start}; {model.durable_start} was durable, {model.start} accepted"
        )
    if not model.seal_is_durable <= accepted.sealed <= model.is_sealed:
        raise WrongStateError(f"{model.name}: recovered with the seal {accepted.sealed}, expected {model.is_sealed}")
    del model.data[length:]
    model.appends = [each for each in model.appends if each[0] <= length]
    require("the last event number", model.name, model.last_event, segment.attribute(WRITER))
    model.start = model.durable_start = start
    model.is_sealed = model.seal_is_durable = accepted.sealed
    model.durable_length, model.is_durable = length, True


def require(what: str, name: str, expected: object, found: object) -> None:
    """Raises WrongStateError."""
    if found != expected:
        raise WrongStateError(f"{what} {name}: expected {expected!r}, found {found!r}")


def _text(operation: data_frames.Operation) -> str:
    if isinstance(operation, data_frames.ActivateOperation):
        return f"ActivateOperation({decode_segment(operation.state).name})"
    return str(operation)[:160]


def _note_start(model: ModelSegment, offset: int) -> None:
    model.durable_start = max(model.durable_start, offset)
