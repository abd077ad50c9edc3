"""Load that does everything to a segment at once: writers, conditional writers, and one who changes its life.

A lane has one segment at a time, and beside it transactions and transient segments that come and go. What it asks and
what is answered goes into the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fuzz.checker import CHANGES_KEY, MERGES_KEY, WrongStateError, writer_id
from fuzz.connections import Connection
from fuzz.histories import (
    BLOCK_HEADER_BYTES,
    Append,
    AttributeChange,
    History,
    Merge,
    Outcome,
    Request,
    SegmentHistory,
    Truncation,
    WriterHistory,
    block_bytes,
)
from fuzz.randomness import Random
from headrace import wire
from headrace.model.names import parent_segment_name, transaction_segment_name

_IN_FLIGHT_MAX: Final = 4
_PLAIN_WRITERS: Final = 2
_EVENTS_MAX: Final = 3
_REPLACE_IF_EQUALS: Final = 4
_PARTIAL_EVENT = wire.PartialEvent.TYPE


@dataclass(frozen=True, slots=True)
class Load:
    """What lanes need of their surroundings. `position` is the clock of the history; `answered` hears each answer."""

    history: History
    connect: Callable[[], Awaitable[Connection]]
    position: Callable[[], int]
    answered: Callable[[], None]
    payload_bytes_max: int


class Lane:
    """All requests on the segments whose names begin with `prefix`; what they are follows from `random`."""

    def __init__(self, prefix: str, random: Random) -> None:
        self._prefix = prefix
        self._random = random
        self._generation = 0
        self._transactions = 0

    async def live(self, load: Load) -> None:
        """Until the store dies: raises an exception group of ConnectionError then."""
        async with asyncio.TaskGroup() as group:
            await _Life(self, load, group).run()

    def next_transaction(self) -> int:
        self._transactions += 1
        return self._transactions

    @property
    def random(self) -> Random:
        return self._random

    def segment(self, history: History) -> SegmentHistory | None:
        """The one in use; None if it is time for a new one."""
        for segment in reversed(history.segments):
            if segment.name == self.name:
                gone = segment.delete is not None and segment.delete.outcome() is Outcome.DONE
                return None if gone or segment.create.outcome() is not Outcome.DONE else segment
        return None

    def left_behind(self, history: History) -> list[SegmentHistory]:
        """Transactions that nobody will come back to."""
        return [
            each
            for each in history.segments
            if each.name.startswith(f"{self._prefix}.")
            and parent_segment_name(each.name) is not None
            and not each.transient
            and each.create.outcome() is Outcome.DONE
            and all(end is None or end.outcome() is not Outcome.DONE for end in (each.delete, each.merged))
        ]

    @property
    def name(self) -> str:
        return f"{self._prefix}.#epoch.{self._generation}"

    def next_name(self) -> None:
        self._generation += 1


class _Life:
    """A lane between two deaths of the store."""

    def __init__(self, lane: Lane, load: Load, group: asyncio.TaskGroup) -> None:
        self._lane = lane
        self._load = load
        self._group = group
        self._random = lane.random
        self._known_length = 0

    async def run(self) -> None:
        self._control = await self._load.connect()
        for left in self._lane.left_behind(self._load.history):
            await self._delete(left)
        while True:
            segment = self._lane.segment(self._load.history)
            if segment is None:
                segment = await self._create(self._lane.name)
            await self._use(segment)

    async def _use(self, segment: SegmentHistory) -> None:
        self._known_length = max([0, *segment.known_ends()])
        while len(segment.writers) < _PLAIN_WRITERS + 1:
            segment.writers.append(WriterHistory(self._load.history.new_tag(), segment))
        sealed = segment.seal is not None and segment.seal.outcome() is Outcome.DONE
        if not sealed:
            *plain, conditional = segment.writers
            works = [self._write(writer, self._own_random()) for writer in plain]
            works.append(self._write_conditionally(conditional, self._own_random()))
            writers = [self._group.create_task(work) for work in works]
            kinds = [self._change, self._truncate, self._merge, self._merge_batch, self._merge_transient, self._abort]
            for _ in range(self._random.randint(4, 30)):
                await self._random.choice(kinds)(segment)
            await self._seal(segment)
            await asyncio.gather(*writers)
        if self._random.random() < 0.8:
            await self._delete(segment)
        if self._random.random() < 0.5 or segment.delete is None:
            self._lane.next_name()

    def _own_random(self) -> Random:
        """For a task of its own: what it does must not depend on how tasks take turns."""
        return Random(self._random.random())

    # Requests of which one is under way at a time

    async def _ask(
        self,
        command: wire.WireCommand,
        request: Request,
        done: type[wire.WireCommand],
        *refused: type[wire.WireCommand],
    ) -> wire.WireCommand:
        reply = await self._control.call(command)
        if not isinstance(reply, (done, *refused)):
            raise WrongStateError(f"{command} was answered {reply}")
        is_done = isinstance(reply, done) and reply != wire.SegmentAttributeUpdated(1, False)
        request.answer(self._load.position(), done=is_done)
        self._load.answered()
        return reply

    def _asked(self) -> int:
        return self._load.position()

    async def _create(self, name: str) -> SegmentHistory:
        segment = SegmentHistory(name, Request(self._asked()))
        self._load.history.segments.append(segment)
        await self._ask(wire.CreateSegment(1, name, 0, 0), segment.create, wire.SegmentCreated)
        return segment

    async def _seal(self, segment: SegmentHistory) -> None:
        segment.seal = Request(self._asked())
        await self._ask(wire.SealSegment(1, segment.name), segment.seal, wire.SegmentSealed)

    async def _delete(self, segment: SegmentHistory) -> None:
        segment.delete = Request(self._asked())
        await self._ask(wire.DeleteSegment(1, segment.name), segment.delete, wire.SegmentDeleted)

    async def _change(self, segment: SegmentHistory) -> None:
        last = max([0, *(each.value for each in segment.changes if each.outcome() is Outcome.DONE)])
        expected = last or wire.NO_ATTRIBUTE_VALUE
        change = AttributeChange(self._asked(), value=last + 1)
        if self._random.random() < 0.2:
            change.value, expected = 1 << 40, 1 << 41  # does not hold, so it must not happen
        segment.changes.append(change)
        command = wire.UpdateSegmentAttribute(1, segment.name, CHANGES_KEY, change.value, expected)
        await self._ask(command, change, wire.SegmentAttributeUpdated)

    async def _truncate(self, segment: SegmentHistory) -> None:
        ends = segment.known_ends()
        if ends:
            truncation = Truncation(self._asked(), offset=self._random.choice(ends))
            segment.truncations.append(truncation)
            command = wire.TruncateSegment(1, segment.name, truncation.offset)
            await self._ask(command, truncation, wire.SegmentTruncated)

    # Transactions

    async def _fill(self, source: SegmentHistory, blocks: int) -> None:
        writer = WriterHistory(self._load.history.new_tag(), source)
        source.writers.append(writer)
        setup = await self._control.call(wire.SetupAppend(1, writer_id(writer.tag), source.name))
        if not isinstance(setup, wire.AppendSetup):
            raise WrongStateError(f"{source.name}: {setup}")
        for number in range(blocks):
            append = self._next_append(writer, number, self._random, _EVENTS_MAX)
            self._send(self._control, writer, append, self._random)
            reply = await self._control.receive()
            if not isinstance(reply, wire.DataAppended):
                raise WrongStateError(f"an append to {source.name} was answered {reply}")
            self._appended(writer, reply)

    async def _filled(self, segment: SegmentHistory) -> SegmentHistory:
        owner = parent_segment_name(segment.name) or segment.name  # a transaction of a transaction cannot exist
        source = await self._create(transaction_segment_name(owner, self._lane.next_transaction()))
        await self._fill(source, self._random.randint(0, 4))
        if self._random.random() < 0.3:  # as a transaction with a large event: merged into what is merged itself
            await self._random.choice([self._merge, self._merge_transient])(source)
        if self._random.random() < 0.3:
            await self._seal(source)
        return source

    async def _merge(self, segment: SegmentHistory) -> None:
        await self._merge_one(segment, await self._filled(segment))

    async def _merge_one(self, segment: SegmentHistory, source: SegmentHistory) -> None:
        merge = Merge(self._asked(), sources=[source], counted=self._random.random() < 0.6)
        updates = []
        if merge.counted:
            count = sum(each.counted and each.outcome() is Outcome.DONE for each in segment.merges)
            expected = count or wire.NO_ATTRIBUTE_VALUE
            if self._random.random() < 0.2:
                expected = 1 << 41  # does not hold, so nothing of it must happen
            updates.append(wire.AttributeUpdate(MERGES_KEY, _REPLACE_IF_EQUALS, count + 1, expected))
        segment.merges.append(merge)
        source.merged = merge
        command = wire.MergeSegments(1, segment.name, source.name, "", tuple(updates))
        reply = await self._ask(command, merge, wire.SegmentsMerged, wire.SegmentAttributeUpdated)
        if isinstance(reply, wire.SegmentAttributeUpdated):
            source.merged = None
            if not source.transient:
                await self._delete(source)

    async def _merge_batch(self, segment: SegmentHistory) -> None:
        sources = [await self._filled(segment) for _ in range(self._random.randint(1, 4))]
        names = [source.name for source in sources]
        if self._random.random() < 0.3:  # as a retry has it: merged already
            names.insert(self._random.randint(0, len(names)), transaction_segment_name(segment.name, 1 << 100))
        merge = Merge(self._asked(), sources=sources)
        segment.merges.append(merge)
        for source in sources:
            source.merged = merge
        command = wire.MergeSegmentsBatch(1, segment.name, tuple(names))
        reply = await self._ask(command, merge, wire.SegmentsBatchMerged)
        if not isinstance(reply, wire.SegmentsBatchMerged) or [each.source for each in reply.merged] != names:
            raise WrongStateError(f"{command} was answered {reply}")

    async def _merge_transient(self, segment: SegmentHistory) -> None:
        asked = self._asked()
        reply = await self._control.call(wire.CreateTransientSegment(1, 7, segment.name))
        if not isinstance(reply, wire.SegmentCreated):
            raise WrongStateError(f"a transient segment of {segment.name} was answered {reply}")
        source = SegmentHistory(reply.segment, Request(asked), transient=True)
        self._load.history.segments.append(source)
        source.create.answer(self._load.position(), done=True)
        await self._fill(source, self._random.randint(1, 3))
        if self._random.random() < 0.8:
            await self._merge_one(segment, source)

    async def _abort(self, segment: SegmentHistory) -> None:
        await self._delete(await self._filled(segment))

    # Appends

    def _next_append(self, writer: WriterHistory, number: int, random: Random, events_max: int = 1) -> Append:
        append = Append(self._asked(), number=number)
        append.payload_bytes = random.randint(1, self._load.payload_bytes_max)
        append.event_count = random.randint(1, events_max)
        writer.appends.append(append)
        return append

    def _send(self, connection: Connection, writer: WriterHistory, append: Append, random: Random) -> None:
        data = block_bytes(writer.tag, append)
        number, count, identifier = append.number, append.event_count, writer_id(writer.tag)
        if random.random() < 0.3:
            cut = random.randint(0, BLOCK_HEADER_BYTES)
            rest = random.randint(0, len(data) - cut)
            partial = wire.FRAME_HEADER.pack(_PARTIAL_EVENT, rest) + data[cut : cut + rest]
            connection.send(wire.AppendBlock(identifier, data[:cut] + partial))
            connection.send(wire.AppendBlockEnd(identifier, cut, data[cut + rest :], count, number, 5))
        else:
            connection.send(wire.AppendBlockEnd(identifier, len(data), data, count, number, 5))

    def _appended(self, writer: WriterHistory, reply: wire.DataAppended) -> None:
        """An acknowledgement speaks for everything that was not acknowledged yet, up to its number."""
        waiting = [each for each in writer.appends if each.outcome() is Outcome.UNKNOWN]
        done = [each for each in waiting if each.number <= reply.event_number]
        if not done or done[-1].number != reply.event_number:
            raise WrongStateError(f"writer {writer.tag} waits for {[each.number for each in waiting]}: {reply}")
        for append in done:
            append.answer(self._load.position(), done=True)
        done[-1].end = reply.current_segment_write_offset
        self._known_length = max(self._known_length, reply.current_segment_write_offset)
        self._load.answered()

    def _refuse_rest(self, writer: WriterHistory) -> None:
        for append in writer.appends:
            if append.outcome() is Outcome.UNKNOWN:
                append.answer(self._load.position(), done=False)

    async def _resume(self, writer: WriterHistory) -> tuple[Connection, int]:
        """A connection and the number of the next block; what did not happen is sent anew under its old number."""
        connection = await self._load.connect()
        reply = await connection.call(wire.SetupAppend(1, writer_id(writer.tag), writer.segment.name))
        happened = [each.number for each in writer.appends if each.outcome() is Outcome.DONE]
        last = happened[-1] if happened else wire.NO_EVENT_NUMBER
        if not isinstance(reply, wire.AppendSetup) or reply.last_event_number != last:
            raise WrongStateError(f"writer {writer.tag} has stored {last}: {reply}")
        return connection, max(last, -1) + 1

    async def _write(self, writer: WriterHistory, random: Random) -> None:
        connection, number = await self._resume(writer)
        in_flight = 0
        while True:
            while in_flight < random.randint(1, _IN_FLIGHT_MAX):
                self._send(connection, writer, self._next_append(writer, number, random, _EVENTS_MAX), random)
                number, in_flight = number + 1, in_flight + 1
            reply = await connection.receive()
            if isinstance(reply, wire.SegmentIsSealed | wire.NoSuchSegment):
                break
            if not isinstance(reply, wire.DataAppended):
                raise WrongStateError(f"an append to {writer.segment.name} was answered {reply}")
            self._appended(writer, reply)
            in_flight = sum(each.outcome() is Outcome.UNKNOWN for each in writer.appends[-_IN_FLIGHT_MAX:])
        self._refuse_rest(writer)
        connection.close()

    async def _write_conditionally(self, writer: WriterHistory, random: Random) -> None:
        connection, number = await self._resume(writer)
        while True:
            append = self._next_append(writer, number, random)
            append.event, append.expected_offset = random.random() < 0.5, self._known_length
            number += 1
            conditional = wire.ConditionalAppend if append.event else wire.ConditionalBlockEnd
            data = block_bytes(writer.tag, append)
            connection.send(conditional(writer_id(writer.tag), append.number, self._known_length, data, 6))
            reply = await connection.receive()
            if isinstance(reply, wire.DataAppended):
                self._appended(writer, reply)
            elif isinstance(reply, wire.ConditionalCheckFailed):
                append.answer(self._load.position(), done=False)
                info = await connection.call(wire.GetStreamSegmentInfo(1, writer.segment.name))
                if isinstance(info, wire.StreamSegmentInfo):
                    self._known_length = info.write_offset
            elif isinstance(reply, wire.SegmentIsSealed | wire.NoSuchSegment):
                break
            else:
                raise WrongStateError(f"a conditional append to {writer.segment.name} was answered {reply}")
        self._refuse_rest(writer)
        connection.close()
