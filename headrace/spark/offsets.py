"""Offsets of streaming queries as text: a stream cut, or for several streams a JSON object with the cut of each."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.codec.stream_cut_text import parse_stream_cut_text, stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut
from headrace.spark.options import ReadOptions
from headrace.spark.stream_access import Positions

STREAM_CUT = "stream_cut"
"""The key of our offsets in a checkpoint."""


def offset_text(options: ReadOptions, positions: Mapping[str, Positions]) -> str:
    """The same positions always give the same text."""
    texts = {name: stream_cut_text(StreamCut.of(options.scope, name, cut)) for name, cut in sorted(positions.items())}
    if texts.keys() == set(options.streams) and len(texts) == 1:
        return texts[options.streams[0]]
    return json.dumps(texts)


def offset_positions(options: ReadOptions, text: str, *, others_pass: bool = False) -> dict[str, Positions]:
    """The positions by stream. With `others_pass` those of streams that are not read are left out.

    Raises:
        InvalidRequestError: the text is not an offset, or, unless `others_pass`, one of another scope, or of one stream
            that is not read.
    """
    several = text.startswith("{")
    found: dict[str, Positions] = {}
    for cut in map(parse_stream_cut_text, json.loads(text).values() if several else [text]):
        if others_pass and not options.reads(cut.scope, cut.stream):
            continue
        is_read = several or not options.streams or cut.stream in options.streams
        if cut.scope != options.scope or not is_read:
            raise InvalidRequestError(
                f"the stream cut is one of {cut.scope}/{cut.stream}, not of {options.named()}",
                code="invalid_stream_cut",
            )
        found[cut.stream] = cut.offsets
    return found


def option_for_stream(value: str | None, stream: str) -> str | None:
    """What a checked start or end means for one of several streams; None: it says nothing about it."""
    if value is None or not value.startswith("{"):
        return value
    text = json.loads(value).get(stream)
    return None if text is None else str(text)
