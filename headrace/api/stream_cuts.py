"""Stream cuts: the offset in bytes by segment id. Ids are keys of JSON objects here, and so decimal text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.stream_cuts import StreamCut


def offsets_json(cut: StreamCut | Mapping[int, int]) -> dict[str, int]:
    """The offsets of a cut."""
    offsets = cut.offsets if isinstance(cut, StreamCut) else cut
    return {str(segment): offset for segment, offset in offsets.items()}


def optional_offsets_json(cut: StreamCut | Mapping[int, int] | None) -> dict[str, int] | None:
    """The offsets of a cut; None, where the API lets it stand for the head or the tail."""
    return None if cut is None else offsets_json(cut)


def cut_from_json(scope: str, stream: str, offsets: Mapping[str, Any]) -> StreamCut:
    """The cut of a stream that has these offsets."""
    return StreamCut.of(scope, stream, {int(segment): int(offset) for segment, offset in offsets.items()})


def stream_cut_json(cut: StreamCut) -> dict[str, Any]:
    """A cut with its stream, and the text that Pravega's clients take."""
    return {
        "scopeName": cut.scope,
        "streamName": cut.stream,
        "cut": offsets_json(cut),
        "text": stream_cut_text(cut),
    }


def stream_cut_from_json(document: Mapping[str, Any]) -> StreamCut:
    """A cut with its stream."""
    return cut_from_json(document["scopeName"], document["streamName"], document["cut"])
