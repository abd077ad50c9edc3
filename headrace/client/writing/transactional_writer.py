"""Writes events in transactions: a commit adds all events of a transaction to the stream atomically.

A transaction's events are written to segments of its own, through a batch accumulator and appenders like those of an
event writer. The lease is renewed in the background while the writer is open. A transaction is identified by its id, so
that another process can continue or commit it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from headrace.api.transactions import NewTransaction, TransactionSegmentView
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.backoff import Backoff
from headrace.client.closing import close_all, handle_text, stop_tasks
from headrace.client.defaults import LEASE_MS_DEFAULT
from headrace.client.ownership import Ownership
from headrace.client.segment_connections import SegmentConnections
from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.batch_accumulator import BatchAccumulator
from headrace.client.writing.event_writer import (
    Event,
    RoutingKeys,
    WriterOptions,
    checked_batch,
    column_slices,
    event_bytes,
)
from headrace.client.writing.ordered_calls import OrderedCalls
from headrace.client.writing.routing_table import Route
from headrace.client.writing.segment_appender import SegmentAppender
from headrace.model.arguments import checked_calls
from headrace.model.errors import HeadraceError, IllegalStateError, InvalidRequestError, UnavailableError
from headrace.model.limits import EVENT_BYTES_MAX
from headrace.model.transactions import LEASES_PER_REQUEST_MAX, check_lease

# The segments of a transaction that are created on demand: before the first append to each of them.
#
# Appenders that begin at the same time share one request. It names all segments that have events by then, so a batch
# of events costs one request, however many segments it touches.

CreateSegments = Callable[[Sequence[int]], Awaitable[object]]


class SegmentsOnDemand:
    """Requests the segments of one transaction. Used on one event loop.

    `create` is the request, which may be repeated. `written` returns the ids of the segments that have events.
    """

    def __init__(self, create: CreateSegments, written: Callable[[], Iterable[int]]) -> None:
        self._create = create
        self._written = written
        self._created: set[int] = set()
        self._request: asyncio.Task[None] | None = None

    async def ensure(self, segment_id: int) -> None:
        """Returns when the segment exists. Raises the error of the request, also to the others that wait for it."""
        while segment_id not in self._created:
            if self._request is None or self._request.done():
                self._request = asyncio.get_running_loop().create_task(self._create_all(segment_id))
            await asyncio.shield(self._request)

    async def close(self) -> None:
        """Cancels a request."""
        if self._request is not None:
            self._request.cancel()
            await asyncio.gather(self._request, return_exceptions=True)

    async def _create_all(self, wanted: int) -> None:
        segments = sorted({wanted, *self._written()} - self._created)
        await self._create(segments)
        self._created.update(segments)


_log = logging.getLogger("headrace.client")

_COMMITTED = "transaction_committed"
_ABORTED = "transaction_aborted"
_WRITER_ID_BITS = 128
_PINGS_PER_LEASE = 3
_LOOKS_PER_PING = 4
"""How often the pinger looks for leases to renew, so that a failed renewal is soon repeated."""

_PINGS_AT_ONCE = 12
_REPEATS_AT_ONCE = 4
"""How many renewals that got no answer alone are repeated at once, apart from the others."""

_PING_LIMIT_FIRST_S = 1.0
_PING_LIMIT_MAX_S = 5.0
"""How long one request may take: a controller that does not answer for one transaction must not delay the others."""

_UNANSWERED_MAX = 3
"""The limit of a renewal alone is doubled so often at most."""

_COMMIT_POLL_FIRST_S = 0.02
_COMMIT_POLL_MAX_S = 0.5


@checked_calls("write", "write_batch", "write_many", "segment_replaced", "segment_failed", "leave")
class AsyncTransaction:
    """An open transaction. At its end an `async with` block commits it; after an exception it aborts it."""

    def __init__(self, writer: AsyncTransactionalWriter, view: NewTransaction, *, is_settled: bool = False) -> None:
        self._id = view.transaction
        self.accumulator = BatchAccumulator(
            block_bytes=writer.options.block_bytes,
            buffer_bytes=writer.options.buffer_bytes,
            stream_name=f"{writer.scope}/{writer.stream}",
        )
        self._writer = writer
        self._is_settled = is_settled
        self._ownership = Ownership()
        self._ownership.check()
        self._calls = OrderedCalls(self.accumulator)
        self._segments = SegmentsOnDemand(self._create_segments, self._written_segments) if view.on_demand else None
        self._appenders = [self._appender(segment) for segment in view.segments]
        routes = zip(view.segments, self._appenders, strict=True)
        self.accumulator.route(Route(segment.key_range, appender.queue) for segment, appender in routes)

    def __repr__(self) -> str:
        return handle_text(
            self,
            f"{self.id} of {self._writer.scope}/{self._writer.stream}",
            closed=self.accumulator.failure is not None,
        )

    @property
    def id(self) -> str:
        """32 lower-case hex digits, which other processes can also use to name the transaction."""
        return self._id

    async def write(self, event: Event, routing_key: str | None = None) -> Ack:
        """Queues an event. Waits while the buffer is full.

        Raises:
            InvalidRequestError: code "event_too_large": a transaction accepts events of up to 8 MiB.
            IllegalStateError: code "transaction_aborted" or "transaction_committed".
        """
        payload = transaction_event(event)
        return await self._calls.write(payload, routing_key)

    async def write_batch(self, events: Iterable[Event], routing_keys: RoutingKeys = None) -> Ack:
        """Queues many events, as `AsyncEventWriter.write_batch`. If an event is invalid, no event is queued.

        Raises:
            InvalidRequestError: as there; a transaction accepts events of up to 8 MiB.
            IllegalStateError: code "transaction_aborted" or "transaction_committed".
        """
        checked = checked_batch(events, routing_keys, EVENT_BYTES_MAX, too_large_for_transaction)
        return await self._calls.write_batch(*checked)

    async def write_many(self, events: Any, routing_keys: Any = None) -> Ack:
        """Queues the events of an Arrow or numpy column, as `AsyncEventWriter.write_many`.

        Raises:
            InvalidRequestError: as there; a transaction accepts events of up to 8 MiB.
            IllegalStateError: code "transaction_aborted" or "transaction_committed".
        """
        slices = column_slices(events, routing_keys, EVENT_BYTES_MAX, too_large_for_transaction)
        return await self._calls.write_slices(slices)

    async def flush(self) -> None:
        """Waits until all written events are durable. Raises the error that ended the transaction, if any."""
        await self._calls.flush()

    async def commit(self, *, time: int | None = None, writer: str | None = None, wait: bool = False) -> None:
        """Flushes and commits. With `wait` it returns only when readers can see the events.

        A commit can be repeated, also that of another client. `writer` and `time` record for watermarks that later
        events of this writer are not older than `time`.

        Raises:
            IllegalStateError: code "transaction_aborted": a client aborted it, or its lease expired. With `wait` also
                if a lost volume of a segment store took events of it. Code "transaction_committed": another client
                committed it before all events of this object were acknowledged.
        """
        if not self._is_committed_without_loss():
            await self.flush()
        admin, scope, stream = self._writer.admin, self._writer.scope, self._writer.stream
        try:
            view = await admin.transactions.commit(scope, stream, self.id, writer=writer, time=time)
        except IllegalStateError as error:
            if error.specific_code == _ABORTED:
                await self.leave(error)
            raise
        self._is_settled = True
        await self.leave(_ended("committed"))
        poll_s = _COMMIT_POLL_FIRST_S
        while wait and view.state != "COMMITTED":
            if view.state in ("ABORTING", "ABORTED"):
                raise IllegalStateError(
                    f"transaction {self.id} was aborted, since events of it may be lost: write its events again",
                    details={"transaction": self.id, "state": view.state},
                    code=_ABORTED,
                )
            await asyncio.sleep(poll_s)
            poll_s = min(poll_s * 2, _COMMIT_POLL_MAX_S)
            view = await admin.transactions.get(scope, stream, self.id)

    async def detach(self) -> None:
        """Flushes, and leaves the transaction open for another process, which commits or aborts it by its id.

        The lease is no longer renewed. Raises the same errors as `flush`.
        """
        await self.flush()
        self._is_settled = True
        await self.leave(_ended("detached"))

    async def abort(self) -> None:
        """Aborts the transaction and deletes its events. Raises IllegalStateError, code "transaction_committed"."""
        self._is_settled = True
        reason: HeadraceError = _ended("aborted")
        try:
            await self._writer.admin.transactions.abort(self._writer.scope, self._writer.stream, self.id)
        except IllegalStateError as error:
            reason = error
            raise
        finally:
            await self.leave(reason)

    async def state(self) -> str:
        """Returns OPEN, COMMITTING, COMMITTED, ABORTING or ABORTED."""
        return (await self._writer.admin.transactions.get(self._writer.scope, self._writer.stream, self.id)).state

    async def leave(self, reason: HeadraceError) -> None:
        """Stops writing and pinging without a change to the transaction. Unacknowledged events fail with `reason`."""
        self._writer.forget(self)
        self.accumulator.close(reason)
        if self._ownership.has_gone():
            return
        ends = [appender.stop() for appender in self._appenders]
        for appender in self._appenders:
            self.segment_failed(appender, reason)  # before it waits: the call may be cancelled
        if self._segments is not None:
            await self._segments.close()
        await asyncio.gather(*ends)

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_settled and kind is None:
            return  # the block has already committed, detached or aborted it
        if kind is None:
            await self.commit()
        else:
            with contextlib.suppress(HeadraceError):
                await self.abort()

    # AppendOwner

    async def segment_replaced(self, appender: SegmentAppender) -> None:
        """Raises why the transaction has ended: its segments have no successors, and are only deleted at its end."""
        view = await self._writer.admin.transactions.get(self._writer.scope, self._writer.stream, self.id)
        if view.state.is_commit:
            raise _committed_elsewhere(self.id)
        raise IllegalStateError(
            f"transaction {self.id} accepts no more events: it was aborted, or its lease expired",
            details={"transaction": self.id, "state": str(view.state)},
            code=_ABORTED,
        )

    def segment_failed(self, appender: SegmentAppender, error: HeadraceError) -> None:
        """Fails the events of the segment, and all later writes in the transaction."""
        self.accumulator.fail(appender.queue, appender.in_flight, error)
        appender.in_flight.clear()

    def _is_committed_without_loss(self) -> bool:
        """Whether it was committed, and no event that was written here is missing from it."""
        failure = self.accumulator.failure
        return failure is not None and failure.specific_code == _COMMITTED and not self.accumulator.failed_events

    def _appender(self, segment: TransactionSegmentView) -> SegmentAppender:
        on_demand, segment_id, options = self._segments, segment.segment_id, self._writer.options
        return SegmentAppender(
            self,
            self._writer.connections,
            self.accumulator,
            segment_id=segment_id,
            segment_name=segment.transaction_segment,
            writer_id=secrets.randbits(_WRITER_ID_BITS),
            new_backoff=lambda: Backoff(options.give_up_after_s),
            wake=asyncio.get_running_loop().call_soon_threadsafe,
            ensure_segment=None if on_demand is None else lambda: on_demand.ensure(segment_id),
        )

    async def _create_segments(self, segments: Sequence[int]) -> None:
        admin, scope, stream = self._writer.admin, self._writer.scope, self._writer.stream
        await admin.transactions.create_segments(scope, stream, self.id, segments)

    def _written_segments(self) -> list[int]:
        queues = self.accumulator.with_events(appender.queue for appender in self._appenders)
        return [queue.segment_id for queue in queues]


@checked_calls("forget")
class AsyncTransactionalWriter:
    """Begins transactions on a stream. Open it with `AsyncHeadrace.transactional_writer`, use it with `async with`.

    After `close`, other processes can continue its open transactions by their ids until the leases expire.
    """

    def __init__(
        self,
        admin: AsyncAdmin,
        scope: str,
        stream: str,
        options: WriterOptions | None = None,
        lease_ms: int = LEASE_MS_DEFAULT,
    ) -> None:
        self.admin = admin
        self.scope, self.stream = scope, stream
        self.options = options or WriterOptions()
        self.connections = SegmentConnections(admin, scope, stream)
        self._lease_ms = check_lease(lease_ms)
        self._open: dict[AsyncTransaction, float] = {}
        """The transactions that are pinged, and when the last lease began, in seconds of the event loop."""
        self._pinged: set[AsyncTransaction] = set()
        """Those whose renewal runs or waits for its turn."""
        self._alone: dict[AsyncTransaction, int] = {}
        """Those renewed alone, since a request for many got no answer; and how many in a row then got none in time."""
        self._pings_at_once = asyncio.Semaphore(_PINGS_AT_ONCE)
        self._repeats_at_once = asyncio.Semaphore(_REPEATS_AT_ONCE)
        self._pinger_failure: HeadraceError | None = None
        self._pinger: asyncio.Task[None] | None = None
        self._closed = False
        self._ownership = Ownership()

    def __repr__(self) -> str:
        return handle_text(self, f"{self.scope}/{self.stream}", closed=self.closed)

    async def begin(self, *, label: str | None = None) -> AsyncTransaction:
        """Begins a transaction. Each of its segments is created when the first event is written to it.

        With a `label` another process can find the transaction without its id.

        Raises:
            InvalidRequestError: code "invalid_label".
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
        """
        self._check_pinger()
        began_s = asyncio.get_running_loop().time()
        view = await self.admin.transactions.create(
            self.scope, self.stream, lease_ms=self._lease_ms, label=label, on_demand=True
        )
        return self._opened(view, began_s)

    async def transaction(self, transaction_id: str) -> AsyncTransaction:
        """Continues a transaction, which another process may have begun.

        One that was committed accepts no more events. Its state can be read, and its commit can be repeated.

        Raises:
            NotFoundError: code "transaction_not_found".
            IllegalStateError: code "transaction_aborted".
        """
        self._check_pinger()
        ended: IllegalStateError | None = None
        began_s = asyncio.get_running_loop().time()
        try:
            await self._renew(transaction_id)
        except IllegalStateError as error:
            if error.specific_code != _COMMITTED:
                raise
            ended = error
        view = await self.admin.transactions.get(self.scope, self.stream, transaction_id)
        if ended is None:
            return self._opened(view, began_s)
        transaction = AsyncTransaction(self, view, is_settled=True)
        await transaction.leave(ended)
        return transaction

    def forget(self, transaction: AsyncTransaction) -> None:
        """Stops pinging a transaction."""
        self._open.pop(transaction, None)
        self._alone.pop(transaction, None)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def close(self) -> None:
        """Closes the writer. Open transactions stay open until their leases expire. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._ownership.has_gone():
            return
        pinger = () if self._pinger is None else (self._pinger,)
        reason = UnavailableError("the writer is closed", code="writer_closed")
        leaving = [partial(transaction.leave, reason) for transaction in self._open]
        await close_all(partial(stop_tasks, pinger), *leaving, self.connections.close)

    async def __aenter__(self) -> AsyncTransactionalWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _opened(self, view: NewTransaction, began_s: float) -> AsyncTransaction:
        self._ownership.check()
        transaction = AsyncTransaction(self, view)
        self._open[transaction] = began_s
        if self._pinger is None:
            self._pinger = asyncio.get_running_loop().create_task(self._ping())
        return transaction

    def _check_pinger(self) -> None:
        if self._pinger_failure is not None:
            raise self._pinger_failure

    async def _ping(self) -> None:
        """Renews the leases until the writer is closed. If it fails, the transactions accept no more events."""
        every_s = self._lease_ms / 1000 / _PINGS_PER_LEASE
        try:
            async with asyncio.TaskGroup() as pings:
                while True:
                    await asyncio.sleep(every_s / _LOOKS_PER_PING)
                    self._renew_due(pings, every_s)
        except ExceptionGroup as group:  # all transactions and later calls raise its first error
            error, stream = group.exceptions[0], f"{self.scope}/{self.stream}"
            _log.error("event=pinger_failed stream=%r transactions=%d error=%r", stream, len(self._open), error)
            self._pinger_failure = HeadraceError(
                f"the leases of transactions on {stream} are not renewed any more ({error!r}): open another writer",
                code="leases_not_renewed",
            )
            for transaction in list(self._open):
                await transaction.leave(self._pinger_failure)

    def _due(self, every_s: float) -> list[AsyncTransaction]:
        """Those whose lease began `every_s` ago, first those that end first."""
        due_s = asyncio.get_running_loop().time() - every_s
        due = [
            transaction
            for transaction, began_s in self._open.items()
            if began_s <= due_s and transaction not in self._pinged
        ]
        return sorted(due, key=self._open.__getitem__)

    def _renew_due(self, pings: asyncio.TaskGroup, every_s: float) -> None:
        due = self._due(every_s)
        self._pinged.update(due)
        alone = [each for each in due if each in self._alone]
        together = [each for each in due if each not in self._alone]
        for each in alone:
            pings.create_task(self._ping_one(each, every_s))
        for first in range(0, len(together), LEASES_PER_REQUEST_MAX):
            pings.create_task(self._ping_many(together[first : first + LEASES_PER_REQUEST_MAX], every_s))

    async def _ping_many(self, transactions: Sequence[AsyncTransaction], every_s: float) -> None:
        """Tries once to renew leases in one request. Those without an outcome are renewed alone next."""
        began_s, limit_s = asyncio.get_running_loop().time(), min(_PING_LIMIT_MAX_S, every_s / 2)
        outcomes: dict[str, HeadraceError | None] = {}
        try:
            async with self._pings_at_once, asyncio.timeout(limit_s):
                outcomes = await self.admin.transactions.ping_many(
                    self.scope,
                    self.stream,
                    [transaction.id for transaction in transactions],
                    lease_ms=self._lease_ms,
                    retry_s=0.0,
                )
        except (TimeoutError, HeadraceError):
            pass  # the answers to requests for one will say what is wrong
        finally:
            self._pinged.difference_update(transactions)
        for transaction in transactions:
            if transaction.id in outcomes:
                await self._renewed(transaction, outcomes[transaction.id], began_s)
            elif transaction in self._open:
                self._alone.setdefault(transaction, 0)

    async def _ping_one(self, transaction: AsyncTransaction, every_s: float) -> None:
        """Tries once to renew a lease. Few of those that got no answer wait at once: they must not delay the others."""
        unanswered = self._alone.get(transaction, 0)
        limit_s = min(_PING_LIMIT_MAX_S, every_s, _PING_LIMIT_FIRST_S * 2**unanswered)
        try:
            async with self._repeats_at_once if unanswered else self._pings_at_once:
                if transaction in self._open:
                    await self._ping_once(transaction, limit_s)
        finally:
            self._pinged.discard(transaction)

    async def _ping_once(self, transaction: AsyncTransaction, limit_s: float) -> None:
        began_s, failure = asyncio.get_running_loop().time(), None
        try:
            async with asyncio.timeout(limit_s):
                await self._renew(transaction.id, retry_s=0.0)
        except TimeoutError:
            if transaction in self._open:  # a later look repeats it
                self._alone[transaction] = min(self._alone.get(transaction, 0) + 1, _UNANSWERED_MAX)
            return
        except HeadraceError as error:
            failure = error
        await self._renewed(transaction, failure, began_s)

    async def _renewed(self, transaction: AsyncTransaction, failure: HeadraceError | None, began_s: float) -> None:
        """If another client has ended the transaction, it accepts no more events. Other failures are repeated."""
        if failure is None or _has_longest_lease(failure):
            self._alone.pop(transaction, None)
            if transaction in self._open:
                self._open[transaction] = began_s
        elif failure.retry == "never":
            await transaction.leave(failure)

    async def _renew(self, transaction: str, *, retry_s: float | None = None) -> None:
        """Renews a lease, if the transaction is not near its longest lifetime."""
        try:
            await self.admin.transactions.ping(
                self.scope, self.stream, transaction, lease_ms=self._lease_ms, retry_s=retry_s
            )
        except IllegalStateError as error:
            if not _has_longest_lease(error):
                raise


def transaction_event(event: Event) -> bytes:
    """Returns the event as bytes. Raises InvalidRequestError, code "event_too_large"."""
    payload = event_bytes(event)
    if len(payload) > EVENT_BYTES_MAX:
        raise too_large_for_transaction(len(payload))
    return payload


def too_large_for_transaction(size_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"an event of {size_bytes} bytes is too large for a transaction: at most {EVENT_BYTES_MAX} bytes",
        details={"bytes": size_bytes, "bytes_max": EVENT_BYTES_MAX},
        code="event_too_large",
    )


def _committed_elsewhere(transaction: str) -> IllegalStateError:
    return IllegalStateError(
        f"transaction {transaction} was committed by another client: do not write its events again; whether it has "
        "those that were not acknowledged is not known, read the stream to check",
        details={"transaction": transaction},
        code=_COMMITTED,
    )


def _has_longest_lease(failure: HeadraceError) -> bool:
    """Whether a lease was not renewed as the transaction is near its longest lifetime: it keeps the lease it has."""
    return failure.specific_code == "max_execution_time_exceeded"


def _ended(how: str) -> IllegalStateError:
    return IllegalStateError(f"this transaction was {how}: begin a new one", code=f"transaction_{how}")
