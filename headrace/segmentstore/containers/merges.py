"""Merges segments into another segment of their container, atomically.

When the merge is logged, no write of a source's chunk directory may be in progress. Otherwise tier 2 could get bytes
under the source's name after the merge.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from headrace.codec import data_frames
from headrace.model.errors import ConflictError, IllegalStateError, NotFoundError, SealedError, source_incomplete
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, updated_attributes
from headrace.segmentstore.containers.container import SegmentContainer
from headrace.segmentstore.containers.quarantine import check_not_quarantined
from headrace.segmentstore.containers.segment import Segment

_log = logging.getLogger(__name__)


async def merge(
    container: SegmentContainer, target_name: str, source_name: str, updates: Iterable[AttributeUpdate] = ()
) -> int:
    """Merge one source and update attributes of the target. Returns the target's length after the merge.

    Raises:
        NotFoundError: one of them does not exist; `details["segment"]` names it.
        SealedError: the target is sealed.
        ConflictError: an attribute condition on the target does not hold (code "attribute").
        IllegalStateError: the source was truncated, or is the target; or it may lack bytes (code "source_incomplete"),
            or one of them is in quarantine (code "segment_quarantined"); `details["segment"]` names it then.
    """
    (source,) = await _settled_sources(container, target_name, [source_name])
    if source is None:
        raise NotFoundError(
            f"there is no segment {source_name}", details={"segment": source_name}, code="segment_not_found"
        )
    target = await _open_target(container, target_name, [source])
    try:
        attributes = updated_attributes(target, updates)
    except ConflictError:
        await container.log.durable()  # the client learns of the attribute's value, which must be durable first
        raise
    (operation,) = _operations(container, target, [source], attributes)
    await _merged(container, operation, target, [source])
    return operation.offset + operation.length


async def merge_batch(container: SegmentContainer, target_name: str, source_names: Sequence[str]) -> list[int]:
    """Merge all sources in their order, or none. Returns the target's length after each of them.

    A source that does not exist counts as merged, since an earlier attempt may have merged it. Raises as `merge`.
    """
    settled = await _settled_sources(container, target_name, source_names)
    sources = list(dict.fromkeys(source for source in settled if source is not None))
    target = await _open_target(container, target_name, sources)
    lengths, merged, length = [], set[Segment](), target.accepted.length
    for source in settled:
        if source is not None and source not in merged:
            merged.add(source)
            length += source.accepted.length
        lengths.append(length)
    if sources:
        batch = data_frames.MergeBatchOperation(_operations(container, target, sources, ()))
        await _merged(container, batch, target, sources)
    else:
        await container.log.durable()
    return lengths


async def _settled_sources(
    container: SegmentContainer, target_name: str, source_names: Sequence[str]
) -> list[Segment | None]:
    """Find the sources, None for those that do not exist. Waits until no write of their directories is in progress."""
    while True:
        target = await container.existing(target_name)
        sources: list[Segment | None] = []
        for name in source_names:
            try:
                sources.append(await container.settled_for_removal(name))
            except NotFoundError:
                sources.append(None)
        there = [source for source in sources if source is not None]
        # Each of them may have changed during the wait for the next one.
        if not target.accepted.removed and not any(
            source.accepted.removed or container.directory_write(source) for source in there
        ):
            return sources


async def _open_target(container: SegmentContainer, name: str, sources: Sequence[Segment]) -> Segment:
    """Check that the sources can be merged, and return the target. Does not wait unless it raises."""
    target = container.metadata.segments[name]
    if target.accepted.sealed:
        await container.log.durable()
        raise SealedError(f"segment {name} is sealed", details={"segment": name})
    for each in (target, *sources):
        if each.quarantined:
            await container.log.durable()
            check_not_quarantined(each)
    for source in sources:
        if source is target or source.accepted.start_offset:
            await container.log.durable()
            raise IllegalStateError(
                f"segment {source.name} cannot be merged into {name}: it was truncated, or is the same"
            )
        if source.accepted.may_lack_bytes:
            await container.log.durable()
            _log.error(
                "event=merge_refused container=%d segment=%r target=%r length=%d",
                container.container,
                source.name,
                name,
                source.accepted.length,
            )
            raise source_incomplete(source.name)
    return target


def _operations(
    container: SegmentContainer, target: Segment, sources: Sequence[Segment], attributes: data_frames.Attributes
) -> tuple[data_frames.MergeOperation, ...]:
    operations, offset, now_ms = [], target.accepted.length, container.clock.now_ms()
    for source in sources:
        operations.append(
            data_frames.MergeOperation(target.number, source.number, offset, source.accepted.length, attributes, now_ms)
        )
        offset += source.accepted.length
    return tuple(operations)


async def _merged(
    container: SegmentContainer,
    operation: data_frames.MergeOperation | data_frames.MergeBatchOperation,
    target: Segment,
    sources: Sequence[Segment],
) -> None:
    """Log a merge, and return when it is durable. Until it is logged, the sources' bytes are theirs to flush."""
    durable = container.accept(operation)
    for source in sources:
        container.dirty.pop(source.number, None)
        container.count_change(source.name)
    container.dirty[target.number] = target
    waiting = [target, *(source for source in sources if not source.is_stored)]
    since_s = [segment.untiered_since_s for segment in waiting if segment.untiered_since_s is not None]
    target.untiered_since_s = min(since_s, default=container.clock.monotonic_s())
    await durable
    container.wake_flusher()
