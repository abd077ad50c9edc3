"""The part of a stream between two times, as stream cuts that stay the same for all runs of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.spark.jobs.job_files import JobFiles

if TYPE_CHECKING:
    from headrace.client.headrace import Headrace

DAY_MS = 24 * 3600 * 1000
YEAR_1_MS = -719_162 * DAY_MS
YEAR_10000_MS = 2_932_897 * DAY_MS
"""Times of these years are milliseconds since 1970. Others are in another unit, and Spark has no date for them."""


@dataclass(frozen=True, slots=True)
class CutRange:
    """The texts of the cuts at which a range of a stream begins and ends."""

    start: str
    end: str


def parse_time(text: str) -> datetime:
    """A time with its zone, like 2026-11-23T10:00:00Z.

    Raises:
        InvalidRequestError: the text is not a time, or lacks the zone.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} is not a time: {error}", code="invalid_time") from error
    if time.tzinfo is None:
        raise InvalidRequestError(f"{text!r} has no time zone: add Z or an offset", code="invalid_time")
    return time


def recorded_range(
    headrace: Headrace,
    files: JobFiles,
    path: str,
    scope: str,
    stream: str,
    start: datetime,
    end: datetime,
    target: Mapping[str, str | None] | None = None,
) -> CutRange:
    """The range between two times, resolved by the first run and recorded in the file `path` for those that follow.

    The cut of a time may move when data goes to S3, where the index of times is coarser, so it is resolved once.
    `target` says where the range is copied to: it must stay the same, or parts of the copy would be elsewhere.

    Raises:
        InvalidRequestError: the end is not after the start, or the file is of another range or target.
    """
    if end <= start:
        raise InvalidRequestError(f"the end, {end}, is not after the start, {start}", code="invalid_time")
    wanted = {"scope": scope, "stream": stream, "from": start.isoformat(), "to": end.isoformat()}
    wanted |= {name: value for name, value in (target or {}).items() if value is not None}
    if not files.exists(path):
        first, last = (headrace.stream_cut_at(scope, stream, time) for time in (start, end))
        cuts = {"startCut": stream_cut_text(first), "endCut": stream_cut_text(last)}
        files.create(path, json.dumps(wanted | cuts, indent=1) + "\n")
    recorded = json.loads(files.read(path))
    cuts_recorded = CutRange(recorded.pop("startCut"), recorded.pop("endCut"))
    if recorded != wanted:
        described = ", ".join(f"{name} {value}" for name, value in recorded.items())
        raise InvalidRequestError(
            f"{path} is of another replay ({described}): use a checkpoint of its own for each", code="other_replay"
        )
    return cuts_recorded
