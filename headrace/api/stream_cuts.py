"""The JSON of stream cuts: an object with the offset in bytes by segment id. JSON writes the ids as decimal text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import HeadraceError, InvalidRequestError, TruncatedError, UnavailableError
from headrace.model.stream_cuts import StreamCut


def offsets_json(cut: StreamCut | Mapping[int, int]) -> dict[str, int]:
    """The JSON of a cut's offsets."""
    offsets = cut.offsets if isinstance(cut, StreamCut) else cut
    return {str(segment): offset for segment, offset in offsets.items()}


def optional_offsets_json(cut: StreamCut | Mapping[int, int] | None) -> dict[str, int] | None:
    """The JSON of a cut's offsets. None, which the API reads as the head or the tail, stays None."""
    return None if cut is None else offsets_json(cut)


def cut_from_json(scope: str, stream: str, offsets: Mapping[str, Any]) -> StreamCut:
    """Parses the offsets of a cut of the stream."""
    return StreamCut.of(scope, stream, {int(segment): int(offset) for segment, offset in offsets.items()})


def stream_cut_json(cut: StreamCut) -> dict[str, Any]:
    """The JSON of a cut with its stream, and the text form that Pravega's clients accept."""
    return {
        "scopeName": cut.scope,
        "streamName": cut.stream,
        "cut": offsets_json(cut),
        "text": stream_cut_text(cut),
    }


def cut_check_json(problem: HeadraceError | None) -> dict[str, Any]:
    """The JSON of the check of a cut, with the reason why it is not valid."""
    shown = None if problem is None else {"code": problem.specific_code, "message": problem.message}
    return {"valid": problem is None, "problem": shown}


def cut_problem(answer: Mapping[str, Any]) -> HeadraceError | None:
    """Parses the answer to the check of a cut. An older controller gives no reason."""
    if bool(answer["valid"]):
        return None
    found = answer.get("problem") or {"code": "invalid_request", "message": "the stream cut is not valid"}
    code = str(found["code"])
    kind = {"truncated": TruncatedError, "stream_not_ready": UnavailableError}.get(code, InvalidRequestError)
    return kind(str(found["message"]), code=code)


def stream_cut_from_json(document: Mapping[str, Any]) -> StreamCut:
    """Parses a cut that names its stream."""
    return cut_from_json(document["scopeName"], document["streamName"], document["cut"])
