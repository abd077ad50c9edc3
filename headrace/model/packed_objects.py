"""Packed objects of a container: their names, and the records that count the runs in each object.

An object without runs is garbage and is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER_DIGITS = 10


@dataclass(frozen=True, slots=True)
class ObjectCount:
    """The number of `runs` in a packed object of `length` bytes, and their `run_bytes`.

    `emptied_at_ms` is the time since which the object has no runs; None while it has some.
    """

    runs: int
    run_bytes: int
    length: int
    emptied_at_ms: int | None = None

    def changed(self, runs: int, run_bytes: int, now_ms: int) -> ObjectCount:
        """The count after `runs` and `run_bytes` were added (negative: removed)."""
        left = self.runs + runs
        return ObjectCount(left, self.run_bytes + run_bytes, self.length, None if left else now_ms)


def object_partition(container: int) -> str:
    """The metadata partition that counts the packed objects of a container; sort keys are their names."""
    return f"objects/container-{container:04d}"


def object_body(count: ObjectCount) -> dict[str, Any]:
    body = {"runs": count.runs, "bytes": count.run_bytes, "length": count.length}
    return body if count.emptied_at_ms is None else {**body, "emptiedAtMs": count.emptied_at_ms}


def object_count(body: Mapping[str, Any]) -> ObjectCount:
    """The count stored in a record body."""
    return ObjectCount(body["runs"], body["bytes"], body["length"], body.get("emptiedAtMs"))


def packed_prefix(container: int) -> str:
    """The prefix of the names of a container's packed objects."""
    return f"container-{container:04d}/packed/"


def packed_name(container: int, epoch: int, number: int) -> str:
    """The name of the packed object `number` that the container's owner of `epoch` writes."""
    return f"{packed_prefix(container)}{epoch:0{_NUMBER_DIGITS}d}-{number:0{_NUMBER_DIGITS}d}"


def packed_epoch(container: int, name: str) -> int | None:
    """The epoch in the name of a packed object; None for any other name."""
    digits = name.removeprefix(packed_prefix(container))
    if len(digits) != 2 * _NUMBER_DIGITS + 1 or digits[_NUMBER_DIGITS] != "-":
        return None
    epoch, number = digits[:_NUMBER_DIGITS], digits[_NUMBER_DIGITS + 1 :]
    return int(epoch) if (epoch + number).isascii() and (epoch + number).isdigit() else None
