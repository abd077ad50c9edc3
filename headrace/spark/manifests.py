"""Manifests: the plan of one micro-batch as a file of JSON lines, for engines without a streaming data source.

Spark's file source reads a directory of them, one file per micro-batch. The first line says where the batch ends.
Each further line is what one task reads. Names are numbers, so that the newest is the last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.segments import SegmentEndpoint
from headrace.client.ranges.segment_ranges import SegmentRange
from headrace.model.errors import CorruptError, UnavailableError
from headrace.spark.partitions import Partition
from headrace.spark.stream_access import PlannedRange

START_NAME = "_start.json"
"""Where the first batch starts. Spark ignores names that begin with an underscore."""

CHECKPOINT_NAME = "_checkpoint.json"
"""Where the checkpoint of the query is, so that a planner can ask it what the query has finished."""

_SUFFIX = ".json"
_DIGITS = 10


def manifest_name(number: int) -> str:
    return f"{number:0{_DIGITS}d}{_SUFFIX}"


def manifest_number(name: str) -> int | None:
    """None: another file."""
    digits = name.removesuffix(_SUFFIX)
    return int(digits) if name.endswith(_SUFFIX) and len(digits) == _DIGITS and digits.isdecimal() else None


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """`end` is the text of the cut at which the batch ends. `planner` tells writers of the same manifest apart.

    With a `problem` the manifest has only that: the task that reads it fails. Only a failed task ends a query with an
    error.
    """

    end: str
    planner: str
    problem: str | None = None


def manifest_bytes(head: ManifestHead, partitions: Sequence[Partition]) -> bytes:
    lines: list[object] = [{"end": head.end, "planner": head.planner, "problem": head.problem}]
    lines += [[_range_json(planned) for planned in partition] for partition in partitions]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()


def manifest_head(name: str, data: bytes) -> ManifestHead:
    """Raises CorruptError if the file is not a manifest."""
    try:
        head = json.loads(data.partition(b"\n")[0])
        return ManifestHead(str(head["end"]), str(head["planner"]), head["problem"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{name} is not a manifest of the Spark connector", details={"name": name}) from error


def partition_of_line(line: str) -> Partition:
    """What a line tells its task to read.

    Raises:
        UnavailableError: the manifest holds a problem instead of a plan.
    """
    parsed = json.loads(line)
    if isinstance(parsed, list):
        return tuple(_range(fields) for fields in parsed)
    if parsed["problem"]:
        raise UnavailableError(f"the next batch could not be planned: {parsed['problem']}", code="planning_failed")
    return ()


def _range_json(planned: PlannedRange) -> dict[str, Any]:
    """Without links: a process that can read the file could read the stream with them."""
    part = planned.part
    fields = [part.scope, part.stream, part.segment_id, part.low, part.high, part.start, part.end]
    return {"range": fields, "endpoint": None if planned.endpoint is None else planned.endpoint.to_json()}


def _range(document: dict[str, Any]) -> PlannedRange:
    endpoint = document["endpoint"]
    known = None if endpoint is None else SegmentEndpoint.from_json(endpoint)
    return PlannedRange(SegmentRange(*document["range"]), endpoint=known)
