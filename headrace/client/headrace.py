"""The two entry points: `AsyncHeadrace` for programs with an event loop, `Headrace` (from `connect`) for all others."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

import httpx

from headrace.client.administration.admin import AsyncAdmin
from headrace.client.administration.scoped_names import scope_and_name
from headrace.client.client_zone import ClientZone
from headrace.client.closing import Block, exit_all, handle_text
from headrace.client.defaults import LEASE_MS_DEFAULT, RETRY_TIMEOUT_S
from headrace.client.http_api import HttpApi, OnWaiting
from headrace.client.lazy_imports import lazy_names
from headrace.client.loop_thread import LoopCaller, LoopThread
from headrace.client.synchronous.synchronous_admin import Admin
from headrace.model.arguments import checked_calls
from headrace.model.errors import InvalidRequestError, TruncatedError
from headrace.model.external_access import NETWORK_VARIABLE, Network, NetworkName, parse_network

if TYPE_CHECKING:
    from headrace.client.groups.reader_group import AsyncReaderGroup
    from headrace.client.key_value_table import AsyncKeyValueTable
    from headrace.client.places import Place
    from headrace.client.ranges.range_bytes import HistorySource
    from headrace.client.ranges.range_reader import AsyncRangeReader
    from headrace.client.ranges.segment_ranges import SegmentRange
    from headrace.client.reading.event_reader import AsyncEventReader, ReaderOptions
    from headrace.client.single_segment.byte_stream import AsyncByteStream
    from headrace.client.single_segment.revisioned_stream import AsyncRevisionedStream
    from headrace.client.single_segment.state_synchronizer import AsyncStateSynchronizer, StateForm
    from headrace.client.synchronous.synchronous_bases import EventReader, EventWriter
    from headrace.client.synchronous.synchronous_byte_stream import ByteStream
    from headrace.client.synchronous.synchronous_range_reader import RangeReader
    from headrace.client.synchronous.synchronous_reader_group import ReaderGroup
    from headrace.client.synchronous.synchronous_revisioned_stream import RevisionedStream
    from headrace.client.synchronous.synchronous_state_synchronizer import StateSynchronizer
    from headrace.client.synchronous.synchronous_table import KeyValueTable
    from headrace.client.synchronous.synchronous_transactions import TransactionalWriter
    from headrace.client.transforms import Handler, Transformed, TransformOptions
    from headrace.client.trust import TlsOptions
    from headrace.client.writing.event_writer import AsyncEventWriter, WriterOptions
    from headrace.client.writing.transactional_writer import AsyncTransactionalWriter
    from headrace.model.stream_cuts import StreamCut

if not TYPE_CHECKING:  # the check of arguments asks for the types of parameters
    __getattr__ = lazy_names(
        __name__,
        {
            "Handler": "headrace.client.transforms",
            "HistorySource": "headrace.client.ranges.range_bytes",
            "Place": "headrace.client.places",
            "ReaderOptions": "headrace.client.reading.event_reader",
            "SegmentRange": "headrace.client.ranges.segment_ranges",
            "StateForm": "headrace.client.single_segment.state_synchronizer",
            "StreamCut": "headrace.model.stream_cuts",
            "TlsOptions": "headrace.client.trust",
            "TransformOptions": "headrace.client.transforms",
            "WriterOptions": "headrace.client.writing.event_writer",
        },
    )

URL_VARIABLE: Final = "HEADRACE_URL"
DEFAULT_URL: Final = "http://127.0.0.1:10080"
"""Where `headrace up` listens."""

Auth = httpx.Auth | Literal["aws-iam"] | None

S = TypeVar("S")
U = TypeVar("U")


class _Opened(Block, Protocol):
    """What `Headrace` closes at its end, unless it is closed already."""

    @property
    def closed(self) -> bool: ...


@checked_calls()
class AsyncHeadrace:
    """A client of the deployment whose controller is at `url`. Use it with `async with`.

    Without `url` that is the environment variable HEADRACE_URL, and without it the local stack, as for the commands.
    `auth="aws-iam"` signs requests with AWS credentials (needs the extra `headrace[aws-auth]`). Any `httpx.Auth` is
    accepted too. `retry_s` is how long a failed request to the controller is retried, in seconds. `tls` is for clients
    that must not trust the authorities which the controller publishes. `network="external"` is for clients that reach
    the segment stores only through the load balancer of the deployment's `external_domain`; without `network` that is
    the environment variable HEADRACE_NETWORK, and without it `"vpc"`. `zone` is the id of the availability zone of the
    client ("use1-az1"); without it that is the environment variable HEADRACE_ZONE, and without it the one of the task
    of ECS or the instance of EC2. Readers in another zone than a store read history from S3.
    `on_waiting(url)` is called on the event loop if a request to the controller has no answer after a second.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        auth: Auth = None,
        retry_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        tls: TlsOptions | None = None,
        on_waiting: OnWaiting | None = None,
        network: NetworkName | None = None,
        zone: str | None = None,
    ) -> None:
        chosen = _network(network)
        self._api = HttpApi(
            _controller_url(url),
            auth=_auth(auth),
            retry_s=retry_s,
            transport=transport,
            on_waiting=on_waiting,
            network=chosen,
            zone=ClientZone(zone, is_searched=chosen is Network.VPC),
        )
        self.admin = AsyncAdmin(self._api, tls)

    def __repr__(self) -> str:
        return handle_text(self, self._api.url, closed=self._api.closed)

    async def writer(
        self, scope: str, stream: str | None = None, options: WriterOptions | None = None
    ) -> AsyncEventWriter:
        """Opens a writer of a stream: `writer("shop/orders")`, or `writer("shop", "orders")`.

        All methods that name a stream, a group or a table take its name in both forms.

        Raises:
            NotFoundError: there is no such stream.
            SealedError: the stream is sealed.
        """
        from headrace.client.writing.event_writer import AsyncEventWriter, WriterCore, WriterOptions

        core = WriterCore(self.admin, *scope_and_name(scope, stream), options or WriterOptions())
        await core.open()
        return AsyncEventWriter(core)

    def transactional_writer(
        self,
        scope: str,
        stream: str | None = None,
        options: WriterOptions | None = None,
        *,
        lease_ms: int = LEASE_MS_DEFAULT,
    ) -> AsyncTransactionalWriter:
        """Returns a writer that writes events in transactions. It renews their leases while it is open."""
        from headrace.client.writing.transactional_writer import AsyncTransactionalWriter

        return AsyncTransactionalWriter(self.admin, *scope_and_name(scope, stream), options, lease_ms)

    async def reader(
        self,
        scope: str,
        stream: str | None = None,
        start: Place = "earliest",
        end: Place | None = None,
        options: ReaderOptions | None = None,
    ) -> AsyncEventReader:
        """Opens a reader that starts at a place, and stops at `end` if it is given.

            headrace.reader("shop/orders", start="-5m")

        A place is `"earliest"`, `"latest"`, a stream cut or a time: a text as `"10:05"` or `"-5m"`, a `datetime`, or a
        `timedelta` before now. Times are as for `stream_cut_at`, and not for a reader `from_s3`.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: a stream cut belongs to another stream, `end` is before the start, the text is not a
                place, or the time has no time zone.
        """
        from headrace.client.places import cut_of_place, end_or_cut
        from headrace.client.reading.event_reader import AsyncEventReader, ReaderOptions

        scope, stream = scope_and_name(scope, stream)
        chosen = options or ReaderOptions()
        first = await end_or_cut(self.admin, scope, stream, start, asks_stores=not chosen.from_s3)
        last = None
        if end is not None:
            last = await cut_of_place(self.admin, scope, stream, end, asks_stores=not chosen.from_s3)
        reader = AsyncEventReader(self.admin, scope, stream, first, last, chosen)
        await reader.open()
        return reader

    async def transform(
        self,
        source: str,
        handler: Handler,
        *,
        into: str,
        name: str,
        end: StreamCut | None = None,
        options: TransformOptions | None = None,
    ) -> Transformed:
        """Writes what `handler` makes of the events of a stream into another stream, each event exactly once.

        It runs until `end`, until the end of a sealed source, or until it is cancelled. It can be killed at any moment:
        the next call with this `name` continues after the last commit. Results and position are committed together.
        Events of a segment come in their order, and so do their results with the same routing key.

            headrace.transform("shop/orders", invoices, into="shop/invoices", name="invoicing")

        Args:
            source: The stream to read, as `<scope>/<stream>`. Retention keeps what the transform has not read: it is a
                subscriber of the stream.
            handler: Gets some consecutive events of one segment, and returns pairs of an event and its routing key
                (or None). A coroutine function runs on the event loop, others run in a thread. It may be called again
                with the same events, together with others or not, if its results were not committed.
            into: The stream to write, as `<scope>/<stream>`.
            name: The transform. One process at a time runs it: of two, one fails at its next commit.

        Raises:
            IllegalStateError: code "transform_overtaken": another process runs the transform.
            InvalidRequestError: the name belongs to a transform of another source.
            NotFoundError: there is no such stream.
            SealedError: the output is sealed.
            TruncatedError: unread events have been truncated, and `on_truncation` is "error".
            Exception: an error of the handler. What was not committed is aborted.
        """
        from headrace.client.transforms import AsyncTransform, TransformOptions

        transform = AsyncTransform(
            self.admin, source, handler, into=into, name=name, options=options or TransformOptions()
        )
        return await transform.run(end)

    async def stream_cut_at(self, scope: str, stream: str, time: Place) -> StreamCut:
        """Returns the stream cut at a time. A reader that starts there misses no event that was stored since.

        Other places, as `reader` has them, give their cut, too. The clocks of the segment stores decide. The cut of a
        time may include older events: of a few seconds, or of one chunk in tier 2 where the time index is coarse.

        Raises:
            InvalidRequestError: the time has no time zone.
            NotFoundError: there is no such stream.
            UnavailableError: a segment's store could not be reached for too long.
        """
        from headrace.client.places import cut_of_place

        return await cut_of_place(self.admin, scope, stream, time)

    async def key_value_table(self, scope: str, table: str | None = None) -> AsyncKeyValueTable:
        """Opens a key-value table. Raises NotFoundError if there is no such table."""
        from headrace.client.key_value_table import open_table

        return await open_table(self.admin.tables, *scope_and_name(scope, table))

    async def reader_group(
        self,
        scope: str,
        group: str | None = None,
        *,
        initialize: bool = True,
        give_up_after_s: float = RETRY_TIMEOUT_S,
        from_s3: bool = False,
    ) -> AsyncReaderGroup:
        """Opens a group that `admin.reader_groups.create` made.

        A group that no reader has joined yet has no state; then its first state is written. `initialize=False` writes
        nothing. `give_up_after_s` is how long an unreachable store of the state is tried.

        With `from_s3` no store is connected: `readers`, `status` and `recorded_cuts` tell what S3 has of the state, as
        it was some 5 to 10 seconds ago. Nothing can be written.

        Raises:
            NotFoundError: there is no such group; or code "group_state_not_found": with `initialize=False`, it has no
                state.
            UnavailableError: the store of the state could not be reached for too long.
        """
        from headrace.client.groups.reader_group import AsyncReaderGroup

        opened = AsyncReaderGroup(self.admin, *scope_and_name(scope, group), give_up_after_s, from_s3=from_s3)
        await opened.open(initialize=initialize and not from_s3)
        return opened

    async def byte_stream(self, scope: str, stream: str | None = None) -> AsyncByteStream:
        """Opens a stream of one segment for writing and reading bytes that are not events.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "not_one_segment": the stream has several open segments.
        """
        from headrace.client.single_segment.byte_stream import AsyncByteStream
        from headrace.client.single_segment.segment_requests import ByteSegment, only_segment

        scope, stream = scope_and_name(scope, stream)
        segment = await only_segment(self.admin, scope, stream)
        return AsyncByteStream(ByteSegment(self.admin, scope, stream, segment.segment_id))

    async def revisioned_stream(self, scope: str, stream: str | None = None) -> AsyncRevisionedStream:
        """Opens a stream of one segment for conditional writes.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "not_one_segment": the stream has several segments.
        """
        from headrace.client.single_segment.revisioned_stream import AsyncRevisionedStream
        from headrace.client.single_segment.segment_requests import only_segment

        scope, stream = scope_and_name(scope, stream)
        segment = await only_segment(self.admin, scope, stream)
        return AsyncRevisionedStream(self.admin, scope, stream, segment.segment_id)

    async def state_synchronizer(self, scope: str, stream: str, form: StateForm[S, U]) -> AsyncStateSynchronizer[S, U]:
        """Opens a state that several processes share in a stream of one segment. Reads it as far as it is written.

        If the state was truncated, the synchronizer has none: its `initialize` writes one.

        Raises the same errors as `revisioned_stream`, and CorruptError if the stream holds something else.
        """
        from headrace.client.single_segment.state_synchronizer import STATE_TRUNCATED, AsyncStateSynchronizer

        synchronizer = AsyncStateSynchronizer(await self.revisioned_stream(scope, stream), form)
        try:
            await synchronizer.fetch()
        except BaseException as error:
            if isinstance(error, TruncatedError) and error.specific_code == STATE_TRUNCATED:
                return synchronizer
            await synchronizer.close()
            raise
        return synchronizer

    async def segment_ranges(
        self,
        scope: str,
        stream: str | None = None,
        start: Place | None = None,
        end: Place | None = None,
        *,
        bytes_max: int | None = None,
    ) -> list[SegmentRange]:
        """Lists what is between two places as ranges that `range_reader` reads, in any order and in any process.

        Without `start` they begin at the head, without `end` they end at the tail as it is now. Ranges without bytes
        are left out. Segments that a scale replaced come before their successors, so that reading the ranges one after
        the other keeps the order of the events of a routing key. With `bytes_max`, larger ranges are split between two
        events near that size, where the stores know such places. Both take one request to the controller for each 4,000
        segments.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: code "invalid_stream_cut": a cut belongs to another stream, is not a position of this
                one, or `end` is before `start`. Code "stream_recreated": it belongs to a deleted stream of this name.
            TruncatedError: bytes after `start` have been truncated.
        """
        from headrace.client.places import cut_of_place
        from headrace.client.ranges.segment_ranges import list_ranges

        scope, stream = scope_and_name(scope, stream)
        first = None if start is None else await cut_of_place(self.admin, scope, stream, start)
        last = None if end is None else await cut_of_place(self.admin, scope, stream, end)
        return await list_ranges(self.admin, scope, stream, first, last, bytes_max)

    def range_reader(
        self, part: SegmentRange, *, read_history_from: HistorySource = "s3", give_up_after_s: float = RETRY_TIMEOUT_S
    ) -> AsyncRangeReader:
        """Returns a reader of the events of one range that `segment_ranges` has listed, perhaps in another process.

        History is read from S3, with links that the controller signs, and the rest from the segment store. With
        `read_history_from="segment_store"` all is read from there, for machines that do not reach S3. An unreachable
        store is tried for `give_up_after_s`. Call it in a coroutine: the reader belongs to the event loop that runs.
        """
        from headrace.client.ranges.range_bytes import StreamRanges
        from headrace.client.ranges.range_reader import AsyncRangeReader

        admin = Admin(LoopCaller(asyncio.get_running_loop()), self.admin)
        source = StreamRanges(admin, part.scope, part.stream, give_up_after_s=give_up_after_s)
        return AsyncRangeReader(source, part, read_history_from)

    async def close(self) -> None:
        """Closes the connections to the controller. Close writers, readers and tables first."""
        await self._api.close()

    async def __aenter__(self) -> AsyncHeadrace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


@checked_calls()
class Headrace:
    """A client for programs without an event loop. Make it with `connect`, use it with `with`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        auth: Auth = None,
        retry_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
        tls: TlsOptions | None = None,
        on_waiting: OnWaiting | None = None,
        network: NetworkName | None = None,
        zone: str | None = None,
    ) -> None:
        signing = _auth(auth)
        self._thread = LoopThread()
        try:
            self._core = self._thread.run(_make(url, signing, retry_s, transport, tls, on_waiting, network, zone))
        except BaseException:
            self._thread.close()
            raise
        self.admin = Admin(self._thread, self._core.admin)
        self._open: list[_Opened] = []

    def __repr__(self) -> str:
        return repr(self._core).replace("<Async", "<", 1)

    def writer(self, scope: str, stream: str | None = None, options: WriterOptions | None = None) -> EventWriter:
        """Opens a writer of a stream.

        Arguments and errors are those of `AsyncHeadrace.writer`.
        """
        from headrace.client.synchronous.synchronous_bases import EventWriter
        from headrace.client.writing.event_writer import WriterCore, WriterOptions

        core = WriterCore(self._core.admin, *scope_and_name(scope, stream), options or WriterOptions())
        self._thread.run(core.open())
        writer = EventWriter(self._thread, core)
        self._keep(writer)
        return writer

    def transactional_writer(
        self,
        scope: str,
        stream: str | None = None,
        options: WriterOptions | None = None,
        *,
        lease_ms: int = LEASE_MS_DEFAULT,
    ) -> TransactionalWriter:
        """Opens a writer that writes events in transactions. It renews their leases while it is open.

        Arguments and errors are those of `AsyncHeadrace.transactional_writer`.
        """
        from headrace.client.synchronous.synchronous_transactions import TransactionalWriter

        core = self._thread.run(_transactional_writer(self._core, *scope_and_name(scope, stream), options, lease_ms))
        writer = TransactionalWriter(self._thread, core)
        self._keep(writer)
        return writer

    def reader(
        self,
        scope: str,
        stream: str | None = None,
        start: Place = "earliest",
        end: Place | None = None,
        options: ReaderOptions | None = None,
    ) -> EventReader:
        """Opens a reader that starts at a place, and stops at `end` if it is given.

            headrace.reader("shop/orders", start="-5m")

        A place is `"earliest"`, `"latest"`, a stream cut or a time: a text as `"10:05"` or `"-5m"`, a `datetime`, or a
        `timedelta` before now. Times are as for `stream_cut_at`, and not for a reader `from_s3`.

        Raises:
            NotFoundError: there is no such stream.
            InvalidRequestError: a stream cut belongs to another stream, `end` is before the start, the text is not a
                place, or the time has no time zone.
        """
        from headrace.client.synchronous.synchronous_bases import EventReader

        reader = EventReader(self._thread, self._thread.run(self._core.reader(scope, stream, start, end, options)))
        self._keep(reader)
        return reader

    def transform(
        self,
        source: str,
        handler: Handler,
        *,
        into: str,
        name: str,
        end: StreamCut | None = None,
        options: TransformOptions | None = None,
    ) -> Transformed:
        """Writes what `handler` makes of the events of a stream into another stream, each event exactly once.

        Arguments and errors are those of `AsyncHeadrace.transform`.
        """
        return self._thread.run(self._core.transform(source, handler, into=into, name=name, end=end, options=options))

    def stream_cut_at(self, scope: str, stream: str, time: Place) -> StreamCut:
        """Returns the stream cut at a time or another place.

        Arguments and errors are those of `AsyncHeadrace.stream_cut_at`.
        """
        return self._thread.run(self._core.stream_cut_at(scope, stream, time))

    def key_value_table(self, scope: str, table: str | None = None) -> KeyValueTable:
        """Opens a key-value table. Raises NotFoundError if there is no such table."""
        from headrace.client.synchronous.synchronous_table import KeyValueTable

        opened = KeyValueTable(self._thread, self._thread.run(self._core.key_value_table(scope, table)))
        self._keep(opened)
        return opened

    def reader_group(
        self,
        scope: str,
        group: str | None = None,
        *,
        initialize: bool = True,
        give_up_after_s: float = RETRY_TIMEOUT_S,
        from_s3: bool = False,
    ) -> ReaderGroup:
        """Opens a group that `admin.reader_groups.create` made.

        Arguments and errors are those of `AsyncHeadrace.reader_group`.
        """
        from headrace.client.synchronous.synchronous_reader_group import ReaderGroup

        opening = self._core.reader_group(
            scope, group, initialize=initialize, give_up_after_s=give_up_after_s, from_s3=from_s3
        )
        opened = ReaderGroup(self._thread, self._thread.run(opening))
        self._keep(opened)
        return opened

    def byte_stream(self, scope: str, stream: str | None = None) -> ByteStream:
        """Opens a stream of one segment for writing and reading bytes that are not events.

        Arguments and errors are those of `AsyncHeadrace.byte_stream`.
        """
        from headrace.client.synchronous.synchronous_byte_stream import ByteStream

        opened = ByteStream(self._thread, self._thread.run(self._core.byte_stream(scope, stream)))
        self._keep(opened)
        return opened

    def revisioned_stream(self, scope: str, stream: str | None = None) -> RevisionedStream:
        """Opens a stream of one segment for conditional writes.

        Arguments and errors are those of `AsyncHeadrace.revisioned_stream`.
        """
        from headrace.client.synchronous.synchronous_revisioned_stream import RevisionedStream

        opened = RevisionedStream(self._thread, self._thread.run(self._core.revisioned_stream(scope, stream)))
        self._keep(opened)
        return opened

    def state_synchronizer(self, scope: str, stream: str, form: StateForm[S, U]) -> StateSynchronizer[S, U]:
        """Opens a state that several processes share in a stream of one segment.

        Arguments and errors are those of `AsyncHeadrace.state_synchronizer`.
        """
        from headrace.client.synchronous.synchronous_state_synchronizer import StateSynchronizer

        opened = StateSynchronizer(self._thread, self._thread.run(self._core.state_synchronizer(scope, stream, form)))
        self._keep(opened)
        return opened

    def segment_ranges(
        self,
        scope: str,
        stream: str | None = None,
        start: Place | None = None,
        end: Place | None = None,
        *,
        bytes_max: int | None = None,
    ) -> list[SegmentRange]:
        """Lists what is between two places as ranges that `range_reader` reads, in any order and in any process.

        Arguments and errors are those of `AsyncHeadrace.segment_ranges`.
        """
        listing = self._core.segment_ranges(scope, stream, start, end, bytes_max=bytes_max)
        return self._thread.run(listing)

    def range_reader(
        self, part: SegmentRange, *, read_history_from: HistorySource = "s3", give_up_after_s: float = RETRY_TIMEOUT_S
    ) -> RangeReader:
        """Opens a reader of the events of one range, which `segment_ranges` has listed.

        Arguments and errors are those of `AsyncHeadrace.range_reader`.
        """
        from headrace.client.synchronous.synchronous_range_reader import RangeReader

        core = self._thread.run(_range_reader(self._core, part, read_history_from, give_up_after_s))
        reader = RangeReader(self._thread, core)
        self._keep(reader)
        return reader

    def close(self) -> None:
        """Flushes and closes all writers, closes all readers, then the client. A second call does nothing.

        Raises IllegalStateError, code "own_thread", in a callback of an acknowledgement: it would wait for itself.
        """
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        """Closes everything, as `exit_all`. After an error of the caller, writers do not wait for acknowledgements."""
        self._thread.end_once(partial(self._close_all, error))

    def _close_all(self, error: BaseException | None) -> None:
        with ExitStack() as last:
            last.callback(self._thread.close)
            last.callback(lambda: self._thread.run(self._core.close()))
            last.push(self._close_rest)
            exit_all(self._open, error)

    def _close_rest(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes what an interrupt between two closings has left open."""
        if error is not None:
            exit_all([each for each in self._open if not each.closed], error)

    def _keep(self, opened: _Opened) -> None:
        """Remembers an opened object, so that `close` closes it with the client."""
        self._open = [each for each in self._open if not each.closed] + [opened]

    def __enter__(self) -> Headrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)


def connect(
    url: str | None = None,
    *,
    auth: Auth = None,
    retry_s: float = 30.0,
    transport: httpx.AsyncBaseTransport | None = None,
    tls: TlsOptions | None = None,
    on_waiting: OnWaiting | None = None,
    network: NetworkName | None = None,
    zone: str | None = None,
) -> Headrace:
    """Returns a client of the deployment whose controller is at `url`, or HEADRACE_URL. Sends no request.

    See `AsyncHeadrace`.
    """
    return Headrace(
        url, auth=auth, retry_s=retry_s, transport=transport, tls=tls, on_waiting=on_waiting, network=network, zone=zone
    )


def _controller_url(given: str | None) -> str:
    return given if given is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL


def _network(given: NetworkName | None) -> Network:
    return parse_network(given if given is not None else os.environ.get(NETWORK_VARIABLE) or Network.VPC)


async def _make(
    url: str | None,
    auth: httpx.Auth | None,
    retry_s: float,
    transport: httpx.AsyncBaseTransport | None,
    tls: TlsOptions | None,
    on_waiting: OnWaiting | None,
    network: NetworkName | None,
    zone: str | None,
) -> AsyncHeadrace:
    return AsyncHeadrace(
        url, auth=auth, retry_s=retry_s, transport=transport, tls=tls, on_waiting=on_waiting, network=network, zone=zone
    )


async def _transactional_writer(
    core: AsyncHeadrace, scope: str, stream: str, options: WriterOptions | None, lease_ms: int
) -> AsyncTransactionalWriter:
    """Creates the writer on the event loop that it will use."""
    return core.transactional_writer(scope, stream, options, lease_ms=lease_ms)


async def _range_reader(
    core: AsyncHeadrace, part: SegmentRange, read_history_from: HistorySource, give_up_after_s: float
) -> AsyncRangeReader:
    """Creates the reader on the event loop that it will use."""
    return core.range_reader(part, read_history_from=read_history_from, give_up_after_s=give_up_after_s)


def _auth(auth: Auth) -> httpx.Auth | None:
    if auth is None or isinstance(auth, httpx.Auth):
        return auth
    if auth == "aws-iam":
        from headrace.client.aws_iam import AwsIamAuth

        return AwsIamAuth()
    raise InvalidRequestError(f'auth={auth!r} is not supported: pass None, "aws-iam" or an httpx.Auth')
