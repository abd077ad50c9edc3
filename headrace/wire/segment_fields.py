"""Changes of attributes and merged sources within a frame, alone and in lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from headrace.wire.fields import (
    TEXT_BYTES_MIN,
    UUID_FIELD,
    Fixed,
    FixedRun,
    ListStep,
    Sink,
    read_name,
    write_name,
)


@dataclass(frozen=True, slots=True)
class AttributeUpdate:
    """One attribute change.

    `update_type`: 0 none, 1 replace, 2 replace if greater, 3 accumulate, 4 replace if equal to `old_value`.
    """

    attribute_id: int
    update_type: int
    new_value: int
    old_value: int


@dataclass(frozen=True, slots=True)
class MergedSource:
    """A merged source segment and the length of the target after it."""

    source: str
    new_target_write_offset: int


_INT64_RUN = FixedRun([Fixed("q")])
_ATTRIBUTE_UPDATE_RUN = FixedRun([UUID_FIELD, Fixed("b"), Fixed("q"), Fixed("q")])


def _read_attribute_update(payload: memoryview, position: int) -> tuple[AttributeUpdate, int]:
    values: list[Any] = []
    position = _ATTRIBUTE_UPDATE_RUN.read(payload, position, values)
    return AttributeUpdate(*values), position


def _write_attribute_update(update: AttributeUpdate, sink: Sink) -> None:
    values = (update.attribute_id, update.update_type, update.new_value, update.old_value)
    _ATTRIBUTE_UPDATE_RUN.write(values, sink)


def _read_merged_source(payload: memoryview, position: int) -> tuple[MergedSource, int]:
    source, position = read_name(payload, position)
    values: list[Any] = []
    position = _INT64_RUN.read(payload, position, values)
    return MergedSource(source, values[0]), position


def _write_merged_source(merged: MergedSource, sink: Sink) -> None:
    write_name(merged.source, sink)
    _INT64_RUN.write((merged.new_target_write_offset,), sink)


MERGED_SOURCES_MAX = 1_000
"""Sources of one merge command. The store may have to look up each source that is not in memory."""

MERGE_ATTRIBUTE_UPDATES_MAX = 100
"""Attribute updates of one merge command (ours; clients send one)."""

SourceNames = Annotated[tuple[str, ...], ListStep(MERGED_SOURCES_MAX, TEXT_BYTES_MIN, read_name, write_name)]
AttributeUpdates = Annotated[
    tuple[AttributeUpdate, ...],
    ListStep(
        MERGE_ATTRIBUTE_UPDATES_MAX, _ATTRIBUTE_UPDATE_RUN.bytes_min, _read_attribute_update, _write_attribute_update
    ),
]
MergedSources = Annotated[
    tuple[MergedSource, ...],
    ListStep(MERGED_SOURCES_MAX, TEXT_BYTES_MIN + _INT64_RUN.bytes_min, _read_merged_source, _write_merged_source),
]
