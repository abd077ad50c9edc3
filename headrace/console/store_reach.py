"""Whether this machine reaches the segment stores: one answer for all pages, so that they do not wait in turn.

The controller names a store, and the console exchanges Hello with it. A machine outside the VPC waits REACH_TIMEOUT_S
for it, once in LOST_S, and so does one whose store accepts connections and never answers. A store that falls silent
later costs a page STORE_TIMEOUT_S, and the live view of a whole stream as long as its reader is patient. The controller
reaches the stores then, and tells what S3 has. If the stores are down, it does not answer what it asks them. Pages wait
ANSWER_TIMEOUT_S for that, once in SILENT_S.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeVar

from headrace.api.segments import SegmentEndpoint
from headrace.cli.parameters import ScopedName
from headrace.client import EventReader, Headrace, ReaderGroup, StreamCut
from headrace.client.places import Place
from headrace.model.errors import CorruptError, NotFoundError, TruncatedError, UnavailableError
from headrace.model.segments import segment_epoch
from headrace.wire.connections.blocking import BlockingConnection
from headrace.wire.tls import STORE_NOT_TRUSTED, StoreTls

REACH_TIMEOUT_S = 2.0
LOST_S = 30.0
"""After a store was not reached, pages read from S3 for so long before one of them tries again."""

REACHED_S = 10.0
"""After a store was reached, pages do not ask again for so long."""

STORE_PATIENCE_S = 2.0
"""How long a page tries a store that was reached a moment ago."""

STORE_TIMEOUT_S = 10.0
"""For all that a page asks a store for at once, up to an event of 16 MiB. The client itself waits longer for a store
that accepts requests and does not answer."""

ANSWER_TIMEOUT_S = 4.0
"""For an answer of the controller that needs the stores. The first one of a function takes 1 to 3 s."""

SILENT_S = 15.0
"""After the controller had no answer, pages do not ask for one for so long."""

QUESTIONS_AT_ONCE_MAX = 16

EPOCHS_MEASURED_MAX = 1_000
"""Between two positions of which a page shows the distance. The controller reads these epochs at each refresh."""

AWAY = "no segment store can be reached from here"
SILENT = "the segment stores do not answer the controller: they are down, or another store takes over"

T = TypeVar("T")


class SegmentEnd(NamedTuple):
    """The offset after the last byte of a segment. No bytes follow if it is sealed."""

    offset: int
    is_sealed: bool


class StoreReach:
    """Safe for any number of threads: one of them finds out, and the others wait for it. `now_s` never goes back."""

    def __init__(self, client: Headrace, now_s: Callable[[], float]) -> None:
        self._client = client
        self._now_s = now_s
        self._finding = threading.Lock()
        self._known: tuple[bool, float] | None = None
        """What was found out, and until when it counts."""
        self._silent_until_s: float | None = None
        self._questions = ThreadPoolExecutor(QUESTIONS_AT_ONCE_MAX, thread_name_prefix="console-questions")
        # Calls to a silent store end late: they must not keep the controller from being asked.
        self._store_calls = ThreadPoolExecutor(QUESTIONS_AT_ONCE_MAX, thread_name_prefix="console-store-calls")

    def to_stream(self, stream: ScopedName) -> bool:
        """Whether the store of a segment of the stream was reached just now, or any store a moment ago."""

        def find() -> SegmentEndpoint | None:
            admin = self._client.admin
            current = admin.epoch_segments(*stream)
            if current.sealed:
                current = admin.epoch_segments(*stream, epoch=current.epoch)
            return admin.endpoint(*stream, current.segments[0].segment_id) if current.segments else None

        return self._found(find)

    def to_group(self, group: ScopedName) -> bool:
        """As `to_stream`, for the state of a reader group."""
        return self._found(lambda: self._client.admin.reader_groups.state_segment_endpoint(*group))

    def to_table(self, table: ScopedName) -> bool:
        """As `to_stream`, for a key-value table."""

        def find() -> SegmentEndpoint:
            tables = self._client.admin.tables
            return tables.endpoint(*table, tables.segments(*table).segments[0].segment_id)

        return self._found(find)

    def cut_at(self, stream: ScopedName, place: Place) -> StreamCut:
        """The stream cut at a place. Only stores know that of a time: if none is reached, raises UnavailableError."""
        if isinstance(place, datetime) and not self.to_stream(stream):
            raise UnavailableError(
                f"only the segment stores know where a time is, and {AWAY}: choose earliest, latest or a stream cut"
            )
        return self.answer(lambda: self._client.stream_cut_at(*stream, place))

    def segment_end(self, stream: ScopedName, segment_id: int) -> SegmentEnd:
        """Where a segment ends now. Raises NotFoundError if it is not retained."""
        admin = self._client.admin
        tail = self.answer(lambda: admin.stream_cut(*stream, at="latest")).offsets
        if segment_id in tail:
            return SegmentEnd(tail[segment_id], is_sealed=False)
        with suppress(NotFoundError, TruncatedError):
            length = admin.sealed_length(*stream, segment_id)
            if length is None:
                raise UnavailableError("the segment is being sealed: repeat soon")
            return SegmentEnd(length, is_sealed=True)
        raise NotFoundError("the segment was truncated, or the stream does not have it")

    def answer(self, ask: Callable[[], T]) -> T:
        """What the controller asks the stores for. Raises UnavailableError soon if these do not answer it."""
        if self._silent_until_s is not None and self._now_s() < self._silent_until_s:
            raise UnavailableError(SILENT)
        try:
            return _within(ANSWER_TIMEOUT_S, self._questions.submit(ask))
        except TimeoutError:
            self._silent_until_s = self._now_s() + SILENT_S
            raise UnavailableError(SILENT) from None

    def store_answer(self, ask: Callable[[], T]) -> T:
        """What a page asks the stores itself, or S3 in their place.

        Raises UnavailableError soon if these do not answer, and notes that the stores are lost.
        """
        try:
            return _within(STORE_TIMEOUT_S, self._store_calls.submit(ask))
        except TimeoutError:
            self.lost()
            raise UnavailableError(f"neither a segment store nor S3 has answered for {STORE_TIMEOUT_S:g} s") from None
        except UnavailableError:
            self.lost()
            raise

    def answer_or_none(self, ask: Callable[[], T]) -> T | None:
        """As `answer`, for a part of a page; None if there is no answer."""
        try:
            return self.answer(ask)
        except UnavailableError:
            return None

    def behind(
        self,
        stream: ScopedName,
        position: Mapping[int, int],
        end: StreamCut | None = None,
        *,
        newest_epoch: int | None = None,
    ) -> int | None:
        """The bytes behind a position; None if stores do not answer, or more than EPOCHS_MEASURED_MAX epochs follow.

        The controller is asked for the newest epoch if the caller does not know it.
        """
        admin = self._client.admin
        newest = admin.get_stream(*stream).epoch if newest_epoch is None else newest_epoch
        if newest - min(map(segment_epoch, position)) > EPOCHS_MEASURED_MAX:
            return None
        return self.answer_or_none(lambda: admin.stream_cut_distance(*stream, from_cut=position, to_cut=end))

    def close(self) -> None:
        for pool in (self._questions, self._store_calls):
            pool.shutdown(wait=False, cancel_futures=True)

    def lost(self) -> None:
        """Notes that a store did not answer."""
        self._note(is_reached=False)

    def _found(self, find: Callable[[], SegmentEndpoint | None]) -> bool:
        with self._finding:
            known = self._known
            if known is not None and self._now_s() < known[1]:
                return known[0]
            return self._note(is_reached=self._is_reached(find))

    def _note(self, *, is_reached: bool) -> bool:
        self._known = is_reached, self._now_s() + (REACHED_S if is_reached else LOST_S)
        return is_reached

    def _is_reached(self, find: Callable[[], SegmentEndpoint | None]) -> bool:
        try:
            endpoint = find()
            if endpoint is not None:
                name = endpoint.tls_name
                tls = StoreTls(self._client.admin.trust.context(), name) if name else None
                BlockingConnection(endpoint.host, endpoint.port, tls=tls, timeout_s=REACH_TIMEOUT_S).close()
        except UnavailableError as error:
            return error.specific_code == STORE_NOT_TRUSTED  # it answered; readers fetch the authorities again
        except CorruptError:
            return False  # another server listens there
        return True


def _within(timeout_s: float, asked: Future[T]) -> T:
    """The result. Raises TimeoutError if there is none in time; what is opened too late is closed."""
    try:
        return asked.result(timeout_s)
    except TimeoutError:
        if not asked.cancel():
            asked.add_done_callback(_close_late)
        raise


def _close_late(asked: Future[T]) -> None:
    """Closes what was opened too late, such as a reader."""
    if asked.exception() is None and isinstance(late := asked.result(), EventReader | ReaderGroup):
        late.close()
