"""Where a streaming query is, as its checkpoint tells: the end of the last batch that it has finished.

Spark writes `offsets/<n>` before batch n, and `commits/<n>` after it. The first line of both is a version, the second
one of an offset file is metadata, and each further line is the offset of one source as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.codec.stream_cut_text import parse_stream_cut_text, stream_cut_text
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError, NotFoundError
from headrace.model.stream_cuts import StreamCut
from headrace.spark.manifests import manifest_head, manifest_name
from headrace.spark.options import ReadOptions
from headrace.spark.plan_files import plan_files
from headrace.spark.stream_access import Positions

# Offsets of streaming queries as text: a stream cut, or for several streams a JSON object with the cut of each.

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
    by_stream: dict[str, Positions] = {}
    for cut in map(parse_stream_cut_text, json.loads(text).values() if several else [text]):
        if others_pass and not options.reads(cut.scope, cut.stream):
            continue
        is_read = several or not options.streams or cut.stream in options.streams
        if cut.scope != options.scope or not is_read:
            raise InvalidRequestError(
                f"the stream cut is one of {cut.scope}/{cut.stream}, not of {options.named()}",
                code="invalid_stream_cut",
            )
        by_stream[cut.stream] = cut.offsets
    return by_stream


def option_for_stream(value: str | None, stream: str) -> str | None:
    """What a checked start or end means for one of several streams; None: it says nothing about it."""
    if value is None or not value.startswith("{"):
        return value
    text = json.loads(value).get(stream)
    return None if text is None else str(text)


_FILE_SOURCE: Final = "logOffset"
_LINES_BEFORE_OFFSETS: Final = 2


def finished_positions(options: ReadOptions, checkpoint: str, plans: str | None) -> dict[str, Positions]:
    """The positions by stream after the last finished batch, of the streams that the options name.

    `plans` is the directory of plans of a query of `read_stream`, whose checkpoint only counts them.

    Raises:
        NotFoundError: code "batch_not_found": the query has finished no batch, or there is no checkpoint.
        InvalidRequestError: the query reads none of the streams.
        CorruptError: the files are not those of a checkpoint, or plans are missing.
        UnavailableError: the directory cannot be read.
    """
    by_stream: dict[str, Positions] = {}
    for text in _offset_texts(checkpoint, plans):
        for stream, positions in offset_positions(options, text, others_pass=True).items():
            if stream in by_stream:
                raise CorruptError(
                    f"the query of {checkpoint!r} reads {options.scope}/{stream} twice, so it has no one lag",
                    code="foreign_checkpoint",
                )
            by_stream[stream] = positions
    if not by_stream:
        raise InvalidRequestError(
            f"the query of {checkpoint!r} does not read {options.named()}. A query of read_stream needs the option"
            " 'plans', too: the directory of its plans",
            code="invalid_option",
        )
    return by_stream


def finished_plan(checkpoint: str, source: int) -> int | None:
    """The number of the last plan that the query has finished, -1 if none; None: that is not known.

    `source` is the number of the source that reads the plans, among the query's sources of files.
    """
    try:
        offsets = _offsets(checkpoint, _last_batch(checkpoint))
        return int([offset[_FILE_SOURCE] for offset in offsets if _FILE_SOURCE in offset][source])
    except NotFoundError:
        return -1
    except (HeadraceError, OSError, IndexError, ValueError, TypeError):
        return None


def _offset_texts(checkpoint: str, plans: str | None) -> Iterator[str]:
    number = _last_batch(checkpoint)
    for offset in _offsets(checkpoint, number):
        if STREAM_CUT in offset:
            yield str(offset[STREAM_CUT])
        elif _FILE_SOURCE in offset and plans is not None:
            name = manifest_name(int(offset[_FILE_SOURCE]))
            data = plan_files(plans, create=False).read(name)
            if data is None:
                raise CorruptError(
                    f"the plans in {plans!r} do not have {name}, where the checkpoint {checkpoint!r} is: they belong to"
                    " another one, or the query went on at this moment",
                    code="foreign_checkpoint",
                )
            yield manifest_head(name, data).end


def _last_batch(checkpoint: str) -> int:
    names = plan_files(f"{checkpoint.rstrip('/')}/commits", create=False).names()
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal()]
    if not numbers:
        raise NotFoundError(f"no batch is finished in the checkpoint {checkpoint!r}", code="batch_not_found")
    return max(numbers)


def _offsets(checkpoint: str, number: int) -> Iterator[Mapping[str, Any]]:
    data = plan_files(f"{checkpoint.rstrip('/')}/offsets", create=False).read(str(number)) or b""
    try:
        lines = data.decode().splitlines()
        if not lines or not lines[0].startswith("v"):
            raise ValueError("it has no version")
        offsets = [json.loads(line) for line in lines[_LINES_BEFORE_OFFSETS:] if line.startswith("{")]
    except (ValueError, RecursionError) as error:
        raise CorruptError(
            f"offsets/{number} in {checkpoint!r} is not a file of a checkpoint: {error}", code="foreign_checkpoint"
        ) from error
    yield from offsets
