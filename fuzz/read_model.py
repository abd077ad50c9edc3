"""What the replies to reads over the wire must be: bytes and errors of a segment that had the name meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.program_trace import Trace
from fuzz.segment_model import ModelSegment, SegmentModel
from headrace import wire
from headrace.codec import data_frames
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.settlements import Settle

_SHOWN_BYTES: Final = 50
_NEVER_ALLOWED: Final = ("foreign", "lacks", "no run")
"""In messages of errors that only a damaged tier 2 may cause."""


@dataclass(slots=True)
class Incarnation:
    """A segment that had a name, from which moment to which. None: it has it still."""

    model: ModelSegment
    born: int
    died: int | None = None


@dataclass(frozen=True, slots=True)
class AskedRead:
    """A read, and the moment of its request."""

    number: int
    name: str
    offset: int
    moment: int

    def __str__(self) -> str:
        return f"read {self.number} of {self.name} at {self.offset}"


class ReadModel(SegmentModel):
    """Remembers each segment that had a name. A moment is the number of an operation."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._incarnations: dict[str, list[Incarnation]] = {}
        self._moment = 0

    def _accepted(self, container: SegmentContainer, operation: data_frames.Operation) -> list[Settle]:
        settles = super()._accepted(container, operation)
        self._note_incarnations()
        return settles

    async def check_recovered(self, container: SegmentContainer) -> None:
        await super().check_recovered(container)
        self._note_incarnations()

    def _note_incarnations(self) -> None:
        self._moment += 1
        for name, model in self.live.items():
            known = self._incarnations.setdefault(name, [])
            if not known or known[-1].model is not model:
                known.append(Incarnation(model, self._moment))
            known[-1].died = None  # its removal may have been undone
        for name, known in self._incarnations.items():
            for each in known:
                if each.died is None and self.live.get(name) is not each.model:
                    each.died = self._moment

    def asked(self, number: int, name: str, offset: int) -> AskedRead:
        return AskedRead(number, name, offset, self._moment)

    def check_reply(self, read: AskedRead, reply: wire.WireCommand) -> None:
        """Raises WrongStateError: no segment that had the name since the request can have caused this reply."""
        self.happened[f"reply: {type(reply).__name__}"] += 1
        known = self._incarnations.get(read.name, [])
        alive = [each.model for each in known if each.died is None or each.died >= read.moment]
        match reply:
            case wire.SegmentRead():
                self._trace.note(f"{read}: {len(reply.data)} bytes")
                _check_bytes(read, reply, alive)
                self.happened["bytes read"] += len(reply.data)
                self.happened["ends read"] += reply.end_of_segment
            case wire.SegmentIsTruncated():
                if not any(model.start > read.offset for model in alive):
                    starts = [model.start for model in alive]
                    raise WrongStateError(f"{read}: truncated, but the segments start at {starts}")
            case wire.NoSuchSegment():
                if any(each.born <= read.moment and each.died is None for each in known):
                    raise WrongStateError(f"{read}: there is no segment, but it was there all the time")
            case wire.ErrorMessage():
                if any(each in reply.message for each in _NEVER_ALLOWED):
                    raise WrongStateError(f"{read}: {reply.message}")
            case _:
                pass


def _check_bytes(read: AskedRead, reply: wire.SegmentRead, alive: list[ModelSegment]) -> None:
    data = bytes(reply.data)
    end = read.offset + len(data)
    if (reply.segment, reply.offset) != (read.name, read.offset):
        raise WrongStateError(f"{read}: the reply is to a read of {reply.segment} at {reply.offset}")
    if not data and not reply.end_of_segment:
        if not reply.at_tail:
            raise WrongStateError(f"{read}: no bytes, and not at the tail")
        return
    for model in alive:
        is_end = model.is_sealed and end == len(model.data)
        if (
            model.data[read.offset : end] == data
            and end <= model.durable_length
            and (is_end or not reply.end_of_segment)
        ):
            return
    shown = [(bytes(model.data[read.offset : end][:_SHOWN_BYTES]), model.durable_length) for model in alive]
    raise WrongStateError(
        f"{read}: got {data[:_SHOWN_BYTES]!r}, {len(data)} bytes, end of segment {reply.end_of_segment}; "
        f"expected one of {shown}"
    )
