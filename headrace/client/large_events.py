"""Appends an event that is larger than the limit of one append, atomically and exactly once.

The event is written in chunks to a transient segment, which only this connection uses, and is then merged into the
target segment. The merge also changes the writer's last event number, by compare-and-set from the event before to this
one. The number therefore shows whether an attempt without an answer has succeeded, and a late attempt changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final, TypeVar

from headrace import wire
from headrace.client.writing.event_blocks import Block
from headrace.model.errors import ConflictError, UnavailableError
from headrace.model.limits import EVENT_BYTES_MAX
from headrace.wire.connections.asynchronous import AsyncConnection, Flow, SingleReply, answer_within, problem_of

CHUNK_BYTES: Final = EVENT_BYTES_MAX
REPLY_TIMEOUT_S: Final = 30.0
NO_EVENT_NUMBER: Final = -(1 << 63)
_REPLACE_IF_EQUALS: Final = 4
_WRITER_ID_BITS: Final = 128

T = TypeVar("T", bound=wire.WireCommand)


async def append_large(
    connection: AsyncConnection, block: Block, segment_id: int, segment: str, writer_id: int
) -> None:
    """Appends the block's single event as number `block.last_number` of the writer. Returns when it is durable.

    Raises:
        SealedError, NotFoundError: the segment accepts no more events.
        ConflictError: the writer's last number is not the expected one: an earlier attempt may have succeeded.
        HeadraceError: any error of an append.
    """
    replies = SingleReply()
    flow = connection.open_flow(replies, segment_id)
    try:
        await _LargeAppend(flow, replies, segment).run(block, writer_id)
    finally:
        flow.close()


class _LargeAppend:
    def __init__(self, flow: Flow, replies: SingleReply, segment: str) -> None:
        self._flow = flow
        self._replies = replies
        self._segment = segment

    async def run(self, block: Block, writer_id: int) -> None:
        next_id = self._flow.next_id
        created = await self._ask(wire.CreateTransientSegment(next_id(), writer_id, self._segment), wire.SegmentCreated)
        chunk_writer_id = secrets.randbits(_WRITER_ID_BITS)
        await self._ask(wire.SetupAppend(next_id(), chunk_writer_id, created.segment), wire.AppendSetup)
        offset = 0
        for number, chunk in enumerate(_chunks(block)):
            await self._ask(
                wire.ConditionalBlockEnd(chunk_writer_id, number, offset, chunk, next_id()), wire.DataAppended
            )
            offset += len(chunk)
        before = block.last_number - 1
        number_moves = wire.AttributeUpdate(
            writer_id, _REPLACE_IF_EQUALS, block.last_number, before if before > 0 else NO_EVENT_NUMBER
        )
        await self._ask(
            wire.MergeSegments(next_id(), self._segment, created.segment, attribute_updates=(number_moves,)),
            wire.SegmentsMerged,
        )

    async def _ask(self, command: wire.WireCommand, expected: type[T]) -> T:
        reply = await answer_within(self._flow, self._replies.ask(self._flow, command), REPLY_TIMEOUT_S)
        if isinstance(reply, expected):
            return reply
        if isinstance(reply, wire.SegmentAttributeUpdated):
            raise ConflictError(f"the last event number of this writer in {self._segment} is not the expected one")
        if isinstance(reply, wire.NoSuchSegment | wire.SegmentIsSealed) and reply.segment != self._segment:
            # The target may still exist, so this is not final: the next attempt creates another transient segment.
            raise UnavailableError(f"the transient segment {reply.segment} no longer exists")
        raise problem_of(self._flow, reply)


def _chunks(block: Block) -> Iterator[bytes | memoryview]:
    """Yields the header and the event in chunks of at most CHUNK_BYTES."""
    header, event = block.parts
    first = CHUNK_BYTES - len(header)
    view = memoryview(event)
    yield b"".join((header, view[:first]))
    for start in range(first, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]
