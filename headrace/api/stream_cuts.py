"""The JSON of stream cuts: an object with the offset in bytes by segment id. JSON writes the ids as decimal text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import field

from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.documents import Document, about
from headrace.model.errors import HeadraceError, InvalidRequestError, TruncatedError, UnavailableError
from headrace.model.limits import SEGMENTS_PER_STREAM_MAX
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut

OFFSET_MAX = SEGMENT_ID_MAX = (1 << 63) - 1
_DIGITS_MAX = 19
_INVALID_CUT = "invalid_stream_cut"

CutOffsets = dict[int, int]
"""Offset in bytes by segment id."""

RequestedOffsets = dict[str, int]
"""The same in requests, with ids as text that was not checked. The offset -1 is the end of a sealed segment."""


def decimal(text: str, what: str, most: int) -> int:
    """The number in `text`, which must be decimal digits from 0 to `most`; raises InvalidRequestError otherwise.

    This is stricter than Python's `int`, which accepts signs, blanks, underscores and the digits of other scripts.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) <= most):
        raise InvalidRequestError(f"{text[:100]!a} is not a valid {what}: expected decimal digits, at most {most}")
    return int(text)


def offsets_json(cut: StreamCut | Mapping[int, int]) -> RequestedOffsets:
    """The JSON of a cut's offsets."""
    offsets = cut.offsets if isinstance(cut, StreamCut) else cut
    return {str(segment): offset for segment, offset in offsets.items()}


def optional_offsets_json(cut: StreamCut | Mapping[int, int] | None) -> RequestedOffsets | None:
    """The JSON of a cut's offsets. None, which the API reads as the head or the tail, stays None."""
    return None if cut is None else offsets_json(cut)


def requested_offsets(field: str, cut: RequestedOffsets | None) -> Mapping[int, int] | None:
    """The offsets of a cut in a request.

    Raises:
        InvalidRequestError: code "invalid_stream_cut".
    """
    if cut is None:
        return None
    if len(cut) > SEGMENTS_PER_STREAM_MAX:
        raise InvalidRequestError(f"{field!r} names more than {SEGMENTS_PER_STREAM_MAX} segments", code=_INVALID_CUT)
    parsed = {decimal(key, "segment id", SEGMENT_ID_MAX): offset for key, offset in cut.items()}
    if len(parsed) != len(cut) or not all(END_OF_SEGMENT <= offset <= OFFSET_MAX for offset in parsed.values()):
        raise InvalidRequestError(
            f"{field!r} names a segment twice or has an offset outside -1..{OFFSET_MAX}", code=_INVALID_CUT
        )
    return parsed


class StreamCutView(Document, frozen=True):
    """A cut with its stream, and the text form that Pravega's clients accept."""

    scope: str = field(name="scopeName")
    stream: str = field(name="streamName")
    offsets: CutOffsets = field(name="cut")
    text: Annotated[str, about("Pravega's text form of the same cut")]

    @classmethod
    def of(cls, cut: StreamCut) -> StreamCutView:
        return cls(cut.scope, cut.stream, dict(cut.offsets), stream_cut_text(cut))

    @property
    def cut(self) -> StreamCut:
        return StreamCut.of(self.scope, self.stream, self.offsets)


class CutRequest(Document, frozen=True):
    cut: Annotated[RequestedOffsets, about("Offset in bytes by segment id")]

    def offsets(self) -> Mapping[int, int]:
        """Raises InvalidRequestError (code "invalid_stream_cut") for a value that cannot be a cut."""
        return requested_offsets("cut", self.cut) or {}


class BetweenRequest(Document, frozen=True):
    start: Annotated[RequestedOffsets | None, about("null: the head")] = field(default=None, name="from")
    end: Annotated[RequestedOffsets | None, about("null: the tail")] = field(default=None, name="to")


class CutProblem(Document, frozen=True):
    code: Annotated[str, about("Of the error that a request with the cut would get")]
    message: str


class CutCheck(Document, frozen=True):
    valid: Annotated[bool, about("A cut of this stream, behind its head and written already")]


class ExplainedCutCheck(CutCheck, frozen=True):
    problem: Annotated[CutProblem | None, about("Why it is not valid")]

    @classmethod
    def of(cls, problem: HeadraceError | None) -> ExplainedCutCheck:
        return cls(problem is None, None if problem is None else CutProblem(problem.specific_code, problem.message))

    def error(self) -> HeadraceError | None:
        """The error that a request with the cut would get; None for a valid cut."""
        if self.valid:
            return None
        problem = self.problem or CutProblem("invalid_request", "the stream cut is not valid")
        kinds = {"truncated": TruncatedError, "stream_not_ready": UnavailableError}
        return kinds.get(problem.code, InvalidRequestError)(problem.message, code=problem.code)


class CutDistance(Document, frozen=True):
    bytes: int
