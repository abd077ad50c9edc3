"""Table requests of one connection. Replies with data are made one at a time, after the peer has taken earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import wire
from headrace.model.errors import HeadraceError
from headrace.model.segment_attributes import CREATION_TIME, EVENT_COUNT
from headrace.segmentstore.cache.reservations import Reservation
from headrace.segmentstore.connections.received_bytes import ReceivedBytes
from headrace.segmentstore.tables import table_requests
from headrace.segmentstore.tables.table_requests import Batch

if TYPE_CHECKING:
    from headrace.segmentstore.connections.session import Session
    from headrace.segmentstore.tables.table_store import TableStore

Command = Any


class TableProcessor:
    """The table requests of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pool = session.store.pool
        self._answering = asyncio.Lock()
        self._taken = asyncio.Event()
        self._taken.set()
        self._held: set[Callable[[], None]] = set()
        self._large: set[ReceivedBytes | Batch] = set()

    def handlers(self) -> dict[type[wire.WireCommand], Callable[[Any], None]]:
        handled: dict[type[wire.WireCommand], Callable[[Any], Awaitable[None]]] = {
            wire.CreateTableSegment: self._create,
            wire.DeleteTableSegment: self._delete,
            wire.GetTableSegmentInfo: self._info,
            wire.ReadTable: self._in_turn(self._read_values),
            wire.ReadTableKeys: self._in_turn(self._read_keys),
            wire.ReadTableEntries: self._in_turn(self._read_entries),
            wire.ReadTableEntriesDelta: self._in_turn(self._read_delta),
        }
        return {kind: self._starter(handler) for kind, handler in handled.items()}

    def accept(self, type_code: int, received: Reservation) -> None:
        """Handle an update or removal whose payload is in the cache.

        Raises:
            WireFormatError: the payload does not have the format of its type.
        """
        try:
            changes = wire.TableChanges(type_code, received.parts)
            tokens = self._session.tokens  # its token may have ended since its first fields arrived
            if tokens is not None and not tokens.admits_table_command(type_code, changes):
                self._pool.release(received)
                return
            batch = Batch(self._pool, received, changes)
            more = batch.read_slice()
        except wire.WireFormatError:
            self._pool.release(received)
            raise
        except HeadraceError as error:
            self._pool.release(received)
            self._session.send(wire.reply_of_error(error, wire.Refused(changes.request_id, changes.segment)))
            return
        request = _Update(changes.request_id, changes.segment, type_code, batch)
        if more:
            self._large.add(batch)
            self._run_holding(batch.release, self._update_large, request)
        else:
            self._session.count_outstanding(batch.length)
            self._run_holding(batch.release, self._update, request)

    def answer_large(self, command: wire.WireCommand, received: ReceivedBytes) -> None:
        """Answer a read of many keys.

        Its memory in `received` is kept until the reply. The connection accepts no other command until then, so it has
        at most one such read.
        """
        self._large.add(received)

        def release() -> None:
            self._large.discard(received)
            received.release()

        self._run_holding(release, self._in_turn(self._read_values), command)

    @property
    def busy(self) -> bool:
        """Whether later commands must wait for a large one."""
        return bool(self._large)

    def close(self) -> None:
        """Free the memory of requests whose tasks never started, because these tasks end without running."""
        for release in self._held:
            release()
        self._held.clear()

    def sending_possible(self, *, possible: bool) -> None:
        """Set whether replies may be made, which is when the peer has taken all earlier ones."""
        if possible:
            self._taken.set()
        else:
            self._taken.clear()

    # Creation to removal

    async def _create(self, command: wire.CreateTableSegment) -> None:
        created = (
            (CREATION_TIME, self._session.store.clock.now_ms()),
            (EVENT_COUNT, 0),
        )
        await self._tables(command.segment).create(command.segment, command.key_length, created)
        self._session.send(wire.SegmentCreated(command.request_id, command.segment))

    async def _delete(self, command: wire.DeleteTableSegment) -> None:
        await self._tables(command.segment).delete(command.segment, must_be_empty=command.must_be_empty)
        self._session.send(wire.SegmentDeleted(command.request_id, command.segment))

    async def _info(self, command: wire.GetTableSegmentInfo) -> None:
        async with self._tables(command.segment).use(command.segment) as table:
            segment = table.segment
            reply = wire.TableSegmentInfo(
                command.request_id,
                command.segment,
                segment.accepted.start_offset,
                segment.accepted.length,
                table.entry_count,
                table.key_length,
            )
            await table.read_is_durable()
        self._session.send(reply)

    # Changes

    async def _update_large(self, update: _Update) -> None:
        """Read the other changes, one slice in each turn of the event loop, and append the batch.

        Later commands of the connection wait until the batch has its place in the table.
        """
        slots = self._session.store.table_memory.large_batches
        with ExitStack() as held:
            held.callback(self._let_next, update.batch)
            await slots.acquire()
            held.callback(slots.release)
            while update.batch.read_slice():
                await asyncio.sleep(0)
            self._session.count_outstanding(update.batch.length)
            await self._update(update, held.close)

    def _let_next(self, batch: Batch) -> None:
        self._large.discard(batch)
        self._session.commands_possible()

    async def _update(self, update: _Update, entered: Callable[[], None] = lambda: None) -> None:
        try:
            async with self._tables(update.segment).use(update.segment) as table:
                versions = await table_requests.update(table, update.batch, entered)
        finally:
            self._session.count_outstanding(-update.batch.length)
        self._session.send(
            wire.TableEntriesUpdated(update.request_id, versions)
            if update.type_code == wire.UpdateTableEntries.TYPE
            else wire.TableKeysRemoved(update.request_id, update.segment)
        )

    # Reads

    async def _read_values(self, command: wire.ReadTable) -> None:
        async with self._tables(command.segment).use(command.segment) as table:
            entries = await table_requests.get(table, [key.key for key in command.keys])
            await table.read_is_durable()
        self._session.send(wire.TableRead(command.request_id, command.segment, tuple(entries)))

    async def _read_keys(self, command: wire.ReadTableKeys) -> None:
        first, last = _bounds(command)
        async with self._tables(command.segment).use(command.segment) as table:
            page = await table_requests.page_of_keys(table, first, last, max(command.suggested_key_count, 1))
            await table.read_is_durable()
        keys = tuple(wire.TableKey(key, place.version) for key, place in page)
        token = keys[-1].key if keys else command.continuation_token
        self._session.send(wire.TableKeysRead(command.request_id, command.segment, keys, token))

    async def _read_entries(self, command: wire.ReadTableEntries) -> None:
        first, last = _bounds(command)
        async with self._tables(command.segment).use(command.segment) as table:
            entries = await table_requests.page_of_entries(table, first, last, max(command.suggested_entry_count, 1))
            await table.read_is_durable()
        token = entries[-1].key if entries else command.continuation_token
        self._session.send(wire.TableEntriesRead(command.request_id, command.segment, tuple(entries), token))

    async def _read_delta(self, command: wire.ReadTableEntriesDelta) -> None:
        async with self._tables(command.segment).use(command.segment) as table:
            delta = await table_requests.delta(table, command.from_position, max(command.suggested_entry_count, 1))
            await table.read_is_durable()
        self._session.send(
            wire.TableEntriesDeltaRead(
                command.request_id,
                command.segment,
                tuple(delta.entries),
                delta.should_clear,
                delta.reached_end,
                delta.last_position,
            )
        )

    # Inside

    def _tables(self, name: str) -> TableStore:
        return self._session.store.owner_of(name).tables

    def _starter(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], None]:
        return lambda command: self._session.run(self._answer(handler, command))

    def _in_turn(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """A handler that runs when the peer has taken all earlier replies and no other such handler runs."""

        async def wait_and_handle(command: Any) -> None:
            async with self._answering:
                await self._taken.wait()
                tokens = self._session.tokens  # its token may have ended meanwhile
                if tokens is None or tokens.admits(command):
                    await handler(command)

        return wait_and_handle

    def _run_holding(
        self, release: Callable[[], None], handler: Callable[[Any], Awaitable[None]], command: Command
    ) -> None:
        """Run a handler, and call `release` at its end, or when the connection closes before it starts."""

        async def answer_and_release() -> None:
            try:
                await self._answer(handler, command)
            finally:
                self._held.discard(release)
                release()

        self._held.add(release)
        self._session.run(answer_and_release())

    async def _answer(self, handler: Callable[[Any], Awaitable[None]], command: Command) -> None:
        try:
            await handler(command)
        except wire.WireFormatError as error:
            self._session.refuse_protocol(error)
        except HeadraceError as error:
            self._session.send(wire.reply_of_error(error, wire.Refused(command.request_id, command.segment)))


@dataclass(frozen=True, slots=True)
class _Update:
    """An update or removal whose entries are in its batch."""

    request_id: int
    segment: str
    type_code: int
    batch: Batch


def _bounds(command: wire.ReadTableKeys | wire.ReadTableEntries) -> tuple[bytes, bytes | None]:
    """The first and the last key that the reply may have; None if there is no last key."""
    first = bytes(command.from_key)
    if command.continuation_token:
        first = max(first, bytes(command.continuation_token) + b"\0")  # the next possible key after the last one sent
    return first, bytes(command.to_key) or None
