"""Requests of one connection on whole segments: creation to removal, attributes, merging, and information.

Each request gets its own reply or the error reply that the wire protocol has for the error. The reply has the id of
the request and the name in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace import wire
from headrace.model import names, segment_attributes
from headrace.model.errors import (
    FencedError,
    HeadraceError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from headrace.model.time_points import UNKNOWN_ORDERING
from headrace.segmentstore.connections.connection_limits import TRANSIENT_SEGMENTS_PER_CONNECTION_MAX
from headrace.segmentstore.containers import merges
from headrace.segmentstore.containers.attribute_updates import AttributeUpdate, UpdateKind
from headrace.segmentstore.containers.container import Keep, never
from headrace.segmentstore.containers.segment import Segment

if TYPE_CHECKING:
    from headrace.segmentstore.connections.session import Session
    from headrace.segmentstore.containers.container import SegmentContainer
    from headrace.segmentstore.owned_container import OwnedContainer
    from headrace.segmentstore.store import SegmentStore

_NAMES_PER_TURN: Final = 50
"""Sources of a merge that are looked up in one turn of the event loop."""

_SCALE_TYPES: Final = (
    wire.SCALE_TYPE_NONE,
    wire.SCALE_TYPE_KBYTES_PER_SEC,
    wire.SCALE_TYPE_EVENTS_PER_SEC,
)


class SegmentProcessor:
    """The segment requests of one session."""

    def __init__(self, session: Session, random_uuid: Callable[[], int]) -> None:
        self._session = session
        self._store = session.store
        self._random_uuid = random_uuid
        self._transient: list[str] = []

    def handlers(self) -> dict[type[wire.WireCommand], Callable[[Any], None]]:
        handled: dict[type[wire.WireCommand], Callable[[Any], Awaitable[None]]] = {
            wire.CreateSegment: self._create,
            wire.CreateTransientSegment: self._create_transient,
            wire.SealSegment: self._seal,
            wire.TruncateSegment: self._truncate,
            wire.TruncateSegmentUpTo: self._truncate,
            wire.DeleteSegment: self._delete,
            wire.DeleteSegmentUpTo: self._delete_up_to,
            wire.MergeSegments: self._merge,
            wire.MergeSegmentsBatch: self._merge_batch,
            wire.UpdateSegmentPolicy: self._update_policy,
            wire.GetSegmentAttribute: self._get_attribute,
            wire.UpdateSegmentAttribute: self._update_attribute,
            wire.UpdateSegmentAttributeUpTo: self._update_attribute,
            wire.GetStreamSegmentInfo: self._info,
            wire.LocateOffset: self._locate,
        }
        starters: dict[type[wire.WireCommand], Callable[[Any], None]] = {
            kind: self._starter(handler) for kind, handler in handled.items()
        }
        starters[wire.Hello] = self._hello
        starters[wire.KeepAlive] = self._session.send
        return starters

    def close(self) -> None:
        """Remove the transient segments of this connection, because no other client knows their names."""
        for name in self._transient:
            self._store.run_background(remove_transient(self._store, name))
        self._transient = []

    def _starter(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], None]:
        return lambda command: self._session.run(self._answer(handler, command))

    async def _answer(self, handler: Callable[[Any], Awaitable[None]], command: Any) -> None:
        """Run a handler. If it raises, send the error reply."""
        try:
            await handler(command)
        except HeadraceError as error:
            self._session.send(wire.reply_of_error(error, _refused(command)))

    def _container(self, name: str) -> SegmentContainer:
        return self._store.owner_of(name).container

    def _hello(self, command: wire.Hello) -> None:
        self._session.send(wire.OWN_HELLO)
        if not command.is_compatible:
            self._session.close()

    # Creation to removal

    async def _create(self, command: wire.CreateSegment) -> None:
        if command.scale_type not in _SCALE_TYPES:
            raise InvalidRequestError(f"scale type {command.scale_type} is unknown")
        created = (
            (segment_attributes.CREATION_TIME, self._store.clock.now_ms()),
            (segment_attributes.EVENT_COUNT, 0),
            (segment_attributes.SCALE_POLICY_TYPE, command.scale_type),
            (segment_attributes.SCALE_POLICY_RATE, command.target_rate),
            (segment_attributes.ROLLOVER_SIZE, max(command.rollover_size_bytes, 0)),
        )
        await self._container(command.segment).create(command.segment, created)
        self._session.send(wire.SegmentCreated(command.request_id, command.segment))

    async def _create_transient(self, command: wire.CreateTransientSegment) -> None:
        if len(self._transient) >= TRANSIENT_SEGMENTS_PER_CONNECTION_MAX:
            raise InvalidRequestError(
                f"a connection makes at most {TRANSIENT_SEGMENTS_PER_CONNECTION_MAX} transient segments"
            )
        name = names.transient_segment_name(command.parent_segment, command.writer_id, self._random_uuid())
        container = self._container(name)
        created = ((segment_attributes.CREATION_TIME, self._store.clock.now_ms()), (segment_attributes.EVENT_COUNT, 0))
        self._transient.append(name)
        try:
            await container.create(name, created)
        except InvalidRequestError:
            self._transient.remove(name)
            raise
        self._session.send(wire.SegmentCreated(command.request_id, name))

    async def _seal(self, command: wire.SealSegment) -> None:
        await self._refuse_table(command.segment, "sealed: delete the key-value table instead")
        await self._container(command.segment).seal(command.segment)
        self._session.send(wire.SegmentSealed(command.request_id, command.segment))

    async def _truncate(self, command: wire.TruncateSegment | wire.TruncateSegmentUpTo) -> None:
        await self._refuse_table(command.segment, "truncated: its entries are compacted by the store")
        keep: Keep = never
        if isinstance(command, wire.TruncateSegmentUpTo):
            keep = _is_above(command.attribute_id, command.value_max)
        await self._container(command.segment).truncate(command.segment, command.truncation_offset, keep)
        self._session.send(wire.SegmentTruncated(command.request_id, command.segment))

    async def _delete(self, command: wire.DeleteSegment) -> None:
        owned = self._store.owner_of(command.segment)
        if await self._is_table(command.segment):
            await owned.tables.delete(command.segment)
        else:
            await owned.container.delete(command.segment)
        self._session.send(wire.SegmentDeleted(command.request_id, command.segment))

    async def _delete_up_to(self, command: wire.DeleteSegmentUpTo) -> None:
        await self._refuse_table(command.segment, "deleted on a condition")
        container = self._container(command.segment)
        await container.delete(command.segment, _is_above(command.attribute_id, command.value_max))
        self._session.send(wire.SegmentDeleted(command.request_id, command.segment))

    # Merging

    async def _merge(self, command: wire.MergeSegments) -> None:
        updates = [
            AttributeUpdate(update.attribute_id, update.update_type, update.new_value, update.old_value)
            for update in command.attribute_updates
        ]
        container = await self._container_of_merge(command.target, [command.source])
        length = await merges.merge(container, command.target, command.source, updates)
        self._forget_transient([command.source])
        self._session.send(wire.SegmentsMerged(command.request_id, command.target, command.source, length))

    async def _merge_batch(self, command: wire.MergeSegmentsBatch) -> None:
        container = await self._container_of_merge(command.target, command.sources)
        lengths = await merges.merge_batch(container, command.target, command.sources)
        self._forget_transient(command.sources)
        merged = tuple(map(wire.MergedSource, command.sources, lengths))
        self._session.send(wire.SegmentsBatchMerged(command.request_id, command.target, merged))

    async def _container_of_merge(self, target: str, sources: Sequence[str]) -> SegmentContainer:
        for number, name in enumerate((target, *sources), 1):
            await self._refuse_table(name, "merged")
            if number % _NAMES_PER_TURN == 0:
                await asyncio.sleep(0)
        container = self._container(target)
        for source in sources:
            if self._container(source) is not container:
                raise InvalidRequestError(f"segments {target} and {source} do not share a container: they cannot merge")
        return container

    def _forget_transient(self, merged: Sequence[str]) -> None:
        gone = set(merged)
        self._transient = [name for name in self._transient if name not in gone]

    async def _is_table(self, name: str) -> bool:
        segment = await self._container(name).find(name)
        return segment is not None and segment.is_table

    async def _refuse_table(self, name: str, deed: str) -> None:
        if await self._is_table(name):
            raise InvalidRequestError(f"segment {name} is a table, which cannot be {deed}")

    # Attributes

    async def _update_policy(self, command: wire.UpdateSegmentPolicy) -> None:
        if command.scale_type not in _SCALE_TYPES:
            raise InvalidRequestError(f"scale type {command.scale_type} is unknown")
        updates = [
            AttributeUpdate(segment_attributes.SCALE_POLICY_TYPE, UpdateKind.REPLACE, command.scale_type),
            AttributeUpdate(segment_attributes.SCALE_POLICY_RATE, UpdateKind.REPLACE, command.target_rate),
        ]
        await self._container(command.segment).update_attributes(command.segment, updates)
        self._session.send(wire.SegmentPolicyUpdated(command.request_id, command.segment))

    async def _get_attribute(self, command: wire.GetSegmentAttribute) -> None:
        container = self._container(command.segment)
        segment = await container.find(command.segment)
        value = segment_attributes.NO_VALUE if segment is None else _attribute(segment, command.attribute_id)
        await container.log.durable()
        if segment is None:
            raise NotFoundError(f"there is no segment {command.segment}")
        self._session.send(wire.SegmentAttribute(command.request_id, value))

    async def _update_attribute(self, command: wire.UpdateSegmentAttribute | wire.UpdateSegmentAttributeUpTo) -> None:
        update = AttributeUpdate(
            command.attribute_id, UpdateKind.REPLACE_IF_EQUALS, command.new_value, command.expected_value
        )
        keep: Keep = never
        if isinstance(command, wire.UpdateSegmentAttributeUpTo):
            keep = _is_above(command.bound_id, command.value_max)
        await self._container(command.segment).update_attributes(command.segment, [update], keep)
        self._session.send(wire.SegmentAttributeUpdated(command.request_id, True))

    # Information

    async def _info(self, command: wire.GetStreamSegmentInfo) -> None:
        container = self._container(command.segment)
        segment = await container.find(command.segment)
        reply: wire.WireCommand = wire.NoSuchSegment(command.request_id, command.segment)
        if segment is not None:
            reply = wire.StreamSegmentInfo(
                command.request_id,
                command.segment,
                True,
                segment.accepted.sealed,
                False,
                segment.accepted.last_modified_ms,
                segment.accepted.length,
                segment.accepted.start_offset,
                container.log.upcoming_ordering,
            )
        await container.log.durable()
        self._session.send(reply)

    async def _locate(self, command: wire.LocateOffset) -> None:
        owned = self._store.owner_of(command.segment)
        segment = await owned.container.find(command.segment)
        if segment is None:
            await owned.container.log.durable()
            raise NotFoundError(f"there is no segment {command.segment}")
        offset = -1
        if command.ordering_number > UNKNOWN_ORDERING:
            offset = await owned.reader.offset_from(segment, command.ordering_number)
        target = max(command.target_offset, segment.accepted.start_offset)
        if offset <= target:
            offset = await owned.reader.append_boundary(segment, target)
        ordering = UNKNOWN_ORDERING
        if command.ordering_number > UNKNOWN_ORDERING:
            ordering = await _ordering_at(owned, segment, offset)
        await owned.container.log.durable()
        self._session.send(wire.OffsetLocated(command.request_id, command.segment, offset, ordering))


async def _ordering_at(owned: OwnedContainer, segment: Segment, offset: int) -> int:
    """The number of the append at `offset`, or of an append now if there is none yet."""
    if offset >= segment.accepted.length:
        return owned.container.log.upcoming_ordering
    return await owned.reader.ordering_at(segment, offset)


async def remove_transient(store: SegmentStore, name: str) -> None:
    """Remove a transient segment of a closed connection. It may have been merged or removed already.

    If its container is about to move, it may stay here, and only another opening would remove the segment.
    """
    try:
        while store.is_moving(name):
            with suppress(FencedError):
                await store.settled_owner_of(name)
        await store.owner_of(name).container.delete(name)
    except (NotFoundError, FencedError, UnavailableError):
        return


def _refused(command: Any) -> wire.Refused:
    """The request as an error reply repeats it. The segment of a merge is its target."""
    names_of_it = (getattr(command, field, None) for field in ("segment", "target", "parent_segment"))
    name = next((name for name in names_of_it if isinstance(name, str)), "")
    return wire.Refused(command.request_id, name, getattr(command, "truncation_offset", -1))


def _is_above(attribute_id: int, value_max: int) -> Keep:
    """The condition under which commands that end in "UpTo" do not change a segment: the attribute is above the bound.

    A segment without the attribute is changed.
    """

    def is_above(segment: Segment) -> bool:
        return segment.attribute(attribute_id) > value_max

    return is_above


def _attribute(segment: Segment, attribute_id: int) -> int:
    if attribute_id == segment_attributes.MAY_LACK_BYTES:
        return 1 if segment.accepted.may_lack_bytes else segment_attributes.NO_VALUE
    return segment.attribute(attribute_id)
