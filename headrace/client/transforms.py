"""Makes a stream from a stream, exactly once: `AsyncHeadrace.transform` and `Headrace.transform`.

The results of some events are one transaction. It is committed as the next epoch of the transform, with the position
after these events as its note. One write decides about the results, the epoch and the position, so that a transform
that is started again continues without a gap or a repetition. If two processes run the same transform, one of them
commits the next epoch, and the other one is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.client.administration.admin import AsyncAdmin
from headrace.client.defaults import LEASE_MS_DEFAULT
from headrace.client.places import Place, cut_of_place
from headrace.client.reading.event_reader import AsyncEventReader, ReaderOptions
from headrace.client.writing.transactional_writer import AsyncTransaction, AsyncTransactionalWriter
from headrace.model.arguments import check_fields
from headrace.model.errors import HeadraceError, IllegalStateError, InvalidRequestError
from headrace.model.names import check_reader_group_name, check_scope_name, check_stream_name, scoped_stream_name
from headrace.model.stream_cuts import StreamCut

Result = tuple[bytes, str | None]
"""An event of the output, and its routing key."""

Handler = Callable[[Sequence[bytes]], Iterable[Result] | Awaitable[Iterable[Result]]]
"""Makes the results of some events. The events are consecutive ones of one segment."""

PUBLISH_EVERY_S: Final = 10.0
REPEATS_MAX: Final = 5
"""Transactions in a row that were aborted by others, for example because the process was frozen for a lease."""

_REPEAT_PAUSE_S: Final = 1.0
_ABORTED: Final = frozenset({"transaction_aborted", "transaction_not_found"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """Options of a transform.

    Results are committed `commit_every_s` seconds after the first event of an epoch was read, or after
    `events_per_commit` events. Readers of the output see them a moment later. `start` is where a transform begins that
    has not committed yet. A process that is frozen for longer than `lease_ms` repeats what it has not committed.
    """

    commit_every_s: float = 1.0
    events_per_commit: int = 100_000
    start: Place = "earliest"
    lease_ms: int = LEASE_MS_DEFAULT
    reading: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.commit_every_s < 0 or self.events_per_commit < 1:
            raise InvalidRequestError(
                f"commit_every_s is {self.commit_every_s} and events_per_commit {self.events_per_commit}: they must be "
                "at least 0 and 1"
            )


class Transformed(NamedTuple):
    """What a call has done: the events that it has read, and the results that it has written and committed."""

    events: int
    results: int
    commits: int


@dataclass(slots=True)
class _Epoch:
    """What the next commit will have."""

    transaction: AsyncTransaction
    due_s: float
    events: int = 0
    results: int = 0


class AsyncTransform:
    """One run of a transform, in one process."""

    def __init__(
        self, admin: AsyncAdmin, source: str, handler: Handler, *, into: str, name: str, options: TransformOptions
    ) -> None:
        self._admin = admin
        self._source = _scope_and_stream("source", source)
        self._target = _scope_and_stream("into", into)
        self._handler = handler
        self._name = check_reader_group_name(name)
        self._options = options
        self._epoch = -1
        self._committed: StreamCut | None = None
        """The position of the last epoch."""
        self._published_s = float("-inf")
        self._done = Transformed(0, 0, 0)
        self._repeats = 0

    async def run(self, end: StreamCut | None) -> Transformed:
        """Transforms events until `end`, or the end of a sealed stream. Raises as `AsyncHeadrace.transform`."""
        start = await self._begin()
        while True:
            try:
                await self._run_from(start, end)
                return self._done
            except HeadraceError as error:
                if error.specific_code not in _ABORTED or self._repeats >= REPEATS_MAX:
                    raise
                self._repeats += 1
                _log.warning("event=transform_repeated transform=%s error=%r", self._name, error.message)
            await asyncio.sleep(_REPEAT_PAUSE_S)
            start = await self._again()

    async def _begin(self) -> StreamCut:
        """The position after the last commit of any process, or where a new transform begins."""
        committed = await self._admin.transactions.committed(*self._target, self._name)
        self._committed = None if committed.epoch is None else self._position(committed.note)
        self._epoch = -1 if committed.epoch is None else committed.epoch
        start = self._committed
        if start is None:
            start = await cut_of_place(self._admin, *self._source, self._options.start)
        # Retention keeps the events from here on. Before the first commit, an earlier registration has the start.
        subscriber = await self._admin.subscribers.register(*self._source, self._name, start=start)
        return StreamCut.of(*self._source, subscriber.offsets) if committed.epoch is None else start

    async def _again(self) -> StreamCut:
        before = self._epoch
        start = await self._begin()
        if self._epoch != before:
            raise self._overtaken()
        return start

    async def _run_from(self, start: StreamCut, end: StreamCut | None) -> None:
        reader = AsyncEventReader(self._admin, *self._source, start, end, self._options.reading)
        async with (
            reader,
            AsyncTransactionalWriter(self._admin, *self._target, lease_ms=self._options.lease_ms) as writer,
        ):
            await reader.open()
            epoch: _Epoch | None = None
            try:
                while True:
                    batch = await reader.read_batch(None if epoch is None else self._time_left_s(epoch))
                    if batch is not None:
                        epoch = epoch or await self._opened(writer)
                        await self._write(epoch, batch.events)
                    if epoch is not None and (reader.ended or self._is_due(epoch)):
                        await self._commit(epoch, reader.position)
                        epoch = None
                    if reader.ended:
                        await self._publish()
                        return
            except BaseException:
                if epoch is not None:
                    await _abort(epoch.transaction)
                raise

    async def _opened(self, writer: AsyncTransactionalWriter) -> _Epoch:
        transaction = await writer.begin(label=f"{self._name}/{self._epoch + 1}")
        return _Epoch(transaction, _now_s() + self._options.commit_every_s)

    def _time_left_s(self, epoch: _Epoch) -> float:
        return max(0.0, epoch.due_s - _now_s())

    def _is_due(self, epoch: _Epoch) -> bool:
        return epoch.events >= self._options.events_per_commit or _now_s() >= epoch.due_s

    async def _write(self, epoch: _Epoch, events: Sequence[bytes]) -> None:
        if inspect.iscoroutinefunction(self._handler):
            results = list(await self._handler(events))
        else:  # in a thread: leases are renewed and events are read meanwhile
            results = await asyncio.to_thread(_results, self._handler, events)
        if results:
            await epoch.transaction.write_batch([event for event, _ in results], [key for _, key in results])
        epoch.events += len(events)
        epoch.results += len(results)

    async def _commit(self, epoch: _Epoch, position: StreamCut) -> None:
        """Commit the results and the position as the next epoch.

        Raises:
            IllegalStateError: code "transform_overtaken"; or the transaction was aborted, and the events come again.
        """
        await epoch.transaction.detach()  # the lease is long enough for the commit
        transaction = epoch.transaction.id
        view = await self._admin.transactions.commit_all(
            *self._target,
            [transaction],
            writer=self._name,
            epoch=self._epoch + 1,
            abort_labels=self._name,
            note=json.dumps({"source": scoped_stream_name(*self._source), "position": position.positions}),
        )
        if not view.new and not await self._is_committed(transaction):
            raise self._overtaken()
        self._epoch += 1
        self._repeats = 0
        events, results, commits = self._done
        self._done = Transformed(events + epoch.events, results + epoch.results, commits + 1)
        self._committed = position
        if _now_s() >= self._published_s + PUBLISH_EVERY_S:
            await self._publish()

    async def _is_committed(self, transaction: str) -> bool:
        """Whether an earlier attempt of the same request, whose answer was lost, has committed it."""
        view = await self._admin.transactions.get(*self._target, transaction)
        return view.state.is_commit

    async def _publish(self) -> None:
        """Retention may remove what is before the committed position, where the next run begins.

        The reader may be further, but only past the ends of segments: a start before the head would be refused. A
        failure costs nothing: the next publication makes up for it.
        """
        if self._committed is None:
            return
        self._published_s = _now_s()
        try:
            await self._admin.subscribers.publish(*self._source, self._name, self._committed)
        except HeadraceError as error:
            _log.warning("event=transform_not_published transform=%s error=%r", self._name, error.message)

    def _position(self, note: str | None) -> StreamCut:
        """Raises InvalidRequestError: the epochs of this name are not those of a transform of this source."""
        try:
            noted = json.loads(note or "")
            source, positions = noted["source"], tuple((int(each), int(offset)) for each, offset in noted["position"])
        except (KeyError, TypeError, ValueError):
            raise InvalidRequestError(
                f"{self._name} is a writer of commit sets of {scoped_stream_name(*self._target)} that is not a "
                "transform: choose another name"
            ) from None
        if source != scoped_stream_name(*self._source):
            raise InvalidRequestError(
                f"transform {self._name} reads {source}, not {scoped_stream_name(*self._source)}: choose another name"
            )
        return StreamCut(*self._source, positions)

    def _overtaken(self) -> IllegalStateError:
        return IllegalStateError(
            f"another process runs transform {self._name} and has committed epoch {self._epoch + 1}: only one can run",
            code="transform_overtaken",
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _results(handler: Handler, events: Sequence[bytes]) -> list[Result]:
    """The results of a handler that is not a coroutine function."""
    try:
        results = handler(events)
        if isinstance(results, Awaitable):
            if inspect.iscoroutine(results):
                results.close()  # else Python warns that it was never awaited
            raise InvalidRequestError("the handler returned an awaitable: make it an `async def` function")
        return list(results)
    except StopIteration as error:
        # No future takes this error, so the transform would wait for ever. A coroutine replaces it in the same way.
        raise RuntimeError("the handler raised StopIteration") from error


async def _abort(transaction: AsyncTransaction) -> None:
    """Abort what was not committed. If that fails, the end of its lease does it; a committed one stays so."""
    try:
        await transaction.abort()
    except HeadraceError as error:
        _log.info("event=transform_not_aborted transaction=%s error=%r", transaction.id, error.message)


def _scope_and_stream(what: str, name: str) -> tuple[str, str]:
    scope, slash, stream = name.partition("/")
    if not slash:
        raise InvalidRequestError(f"{what} is {name[:300]!r}: write <scope>/<stream>")
    return check_scope_name(scope), check_stream_name(stream)
