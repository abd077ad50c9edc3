"""Writes a container's operations to its ledger, reports when they are durable, and reads them again.

Operations that are accepted in one turn of the event loop share a data frame, which is one ledger entry. The frame is
written at the end of the turn; there is no timer. An operation that is larger than a frame is split over several.

Any number of frames may be in flight, and the ledger reports them in their order. An operation is durable with the
frame that has its last byte. After a failure the log reports no success any more. While the store's lease may have
ended, it reports nothing.

A frame keeps its cache blocks pinned until the ledger has stopped reading them, which may be after it is durable. The
bytes may be in tier 2 by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.codec import data_frames
from headrace.codec.data_frames import FRAME_HEADER_BYTES, OPERATION_LENGTH_BYTES, FrameHeader
from headrace.model.errors import CorruptError, HeadraceError, InvalidRequestError, UnavailableError
from headrace.ports.clock import Clock
from headrace.ports.ledger import Ledger
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.reservations import Block, Reservation
from headrace.segmentstore.lease_gate import LeaseGate

# Reads the operations of a container's log, joins those that were split, and checks that none is missing.

OPERATION_BYTES_MAX: Final = 17 << 20
"""Large enough for an append of two wire frames with its fields. A longer operation in the log means damage."""


class LoggedOperation(NamedTuple):
    """An operation and its place in the log: its first byte is at `position` of `entry`.

    `ordering` is that of the frame with its last byte.
    """

    entry: int
    position: int
    ordering: int
    content: bytes | memoryview


class FrameReader:
    """`next_sequence` is the sequence number after the last whole operation, `last_ordering` the greatest one read.

    A reader that `resumes` may start in the middle of the log. It skips the rest of an operation that began earlier.
    """

    def __init__(self, container: int, *, resumes: bool = False) -> None:
        self.next_sequence = 0
        self.last_ordering = 0
        self._container = container
        self._started = False
        self._resumes = resumes
        self._unfinished: bytearray | None = None
        self._unfinished_bytes = 0
        self._unfinished_at = (0, 0)  # entry and position

    def read(self, entry: int, payload: memoryview) -> Iterator[LoggedOperation]:
        """Read the operations that end in this entry. Entries must be passed in their order.

        The reader drops an operation whose end was never written. Its owner ended before it was durable, so no client
        got an acknowledgement.

        Raises:
            CorruptError: the entry is not a frame, or does not continue the one before.
        """
        header, content = data_frames.decode_frame(payload)
        self._check(entry, header)
        self.last_ordering = header.ordering
        position = header.continued_bytes
        if self._unfinished is not None:
            yield from self._continued(entry, header.ordering, content[:position])
        content_bytes, ordering = len(content), header.ordering
        if position < content_bytes:
            self._started = True  # also of a reader that resumes: the operation that began earlier has ended
        while position < content_bytes:
            length = data_frames.decode_operation_length(content, position)
            if not 0 < length <= OPERATION_BYTES_MAX:
                raise self._corrupt(entry, f"holds an operation of {length} bytes")
            start = position + data_frames.OPERATION_LENGTH_BYTES
            position = start + length
            if position > content_bytes:
                self._unfinished = bytearray(content[start:])
                self._unfinished_bytes, self._unfinished_at = length, (entry, start)
                return
            self.next_sequence += 1
            yield LoggedOperation(entry, start, ordering, content[start:position])

    def _check(self, entry: int, header: data_frames.FrameHeader) -> None:
        continues = header.continued_bytes > 0
        if not continues:
            self._unfinished = None
        elif self._unfinished is None and self._resumes and not self._started:
            self.next_sequence = header.first_sequence
            return
        elif self._unfinished is None:
            raise self._corrupt(entry, "continues an operation whose start is missing")
        if header.ordering <= self.last_ordering:
            raise self._corrupt(entry, f"has ordering {header.ordering} behind {self.last_ordering}")
        expected = self.next_sequence + continues
        if self._started and header.first_sequence != expected:
            raise self._corrupt(entry, f"continues with operation {header.first_sequence}, expected {expected}")
        self._started = True
        self.next_sequence = header.first_sequence - continues

    def _continued(self, entry: int, ordering: int, piece: memoryview) -> Iterator[LoggedOperation]:
        unfinished = self._unfinished
        if unfinished is None or len(unfinished) + len(piece) > self._unfinished_bytes:
            raise self._corrupt(entry, "continues an operation beyond its end")
        unfinished += piece
        if len(unfinished) == self._unfinished_bytes:
            self._unfinished = None
            self.next_sequence += 1
            yield LoggedOperation(*self._unfinished_at, ordering, memoryview(unfinished))

    def _corrupt(self, entry: int, what: str) -> CorruptError:
        return CorruptError(f"entry {entry} of the log of container {self._container} {what}: operations are missing")


# Increasing numbers that order the data frames of a store by time.


class OrderingClock:
    """One per store, shared by its containers.

    A number is the wall time in microseconds, or the last number plus one if the time has not increased since.
    """

    __slots__ = ("_clock", "_last")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def next(self) -> int:
        """A number above all those before."""
        self._last = self.upcoming
        return self._last

    @property
    def upcoming(self) -> int:
        """The number that `next` would return now: above all earlier ones, at most all later ones."""
        return max(self._last + 1, self._clock.now_ms() * 1000)

    def observe(self, ordering: int) -> None:
        """Note a number that a recovery has found, so that `next` returns greater ones."""
        self._last = max(self._last, ordering)


_log = logging.getLogger(__name__)

FRAME_BYTES_MAX: Final = (1 << 20) + (64 << 10)
"""Large enough for an append of 1 MiB in one frame."""

FRAME_BYTES_MIN: Final = 256
"""Large enough for the fields of an append."""

Parts = Sequence[bytes | memoryview]
Reached = Callable[[HeadraceError | None], None]


class OperationLog:
    """`next_sequence` is the sequence number of the first operation.

    `on_failure` is called once, with the error that stopped the log. It is not called for a log that was ended (`end`).

    `pool` has the memory of the reservations that are logged; without it the memory of all parts must never change.

    `current_ordering` is that of the frame with the last byte of the newest operation. Every operation that begins in
    an entry up to `durable_entry` is durable.
    """

    def __init__(
        self,
        ledger: Ledger,
        ordering_clock: OrderingClock,
        next_sequence: int = 0,
        gate: LeaseGate | None = None,
        on_failure: Callable[[HeadraceError], None] | None = None,
        *,
        pool: BlockPool | None = None,
    ) -> None:
        self.ledger = ledger
        self.gate = gate
        self.pool = pool
        self.failure: HeadraceError | None = None
        self._refusal: HeadraceError | None = None  # of further operations: the failure, or while it is suspended
        self._on_failure = on_failure
        self.current_ordering = 0
        self.last_sequence = self.durable_sequence = next_sequence - 1
        self.durable_entry = ledger.next_entry - 1
        self._frame_bytes_max = min(FRAME_BYTES_MAX, ledger.entry_bytes_max)
        if self._frame_bytes_max < FRAME_BYTES_MIN:
            raise InvalidRequestError(f"a log with entries of {ledger.entry_bytes_max} bytes holds no frame")
        self._ordering_clock = ordering_clock
        self._loop = asyncio.get_running_loop()
        self._open: _Frame | None = None
        self._youngest: _Frame | None = None  # of those that are not durable
        self._flush_scheduled = False
        self._waiting: set[asyncio.Future[None]] = set()

    def append(self, parts: Parts, reached: Reached) -> int:
        """Log an operation and return the number of the entry with its first byte.

        `reached` is called with None when the operation is durable, or with an error when its outcome is unknown. The
        parts must never change, unless they are those of a reservation (`append_framed`).

        Raises:
            InvalidRequestError: the operation is too large; nothing was logged.
            UnavailableError, FencedError: the log has failed for good, or another owner has taken over.
        """
        length = sum(map(len, parts))
        framed = [data_frames.encode_operation_length(length), *parts]
        return self.append_framed(framed, OPERATION_LENGTH_BYTES + length, reached)

    def append_framed(self, parts: Parts, framed_bytes: int, reached: Reached, data: Reservation | None = None) -> int:
        """As `append`, for parts of `framed_bytes` that begin with the operation's length.

        The blocks of `data`, to which parts belong, are not used again before the ledger has released them.
        """
        if self._refusal is not None:
            raise self._refusal
        if framed_bytes > OPERATION_LENGTH_BYTES + OPERATION_BYTES_MAX:
            raise InvalidRequestError(f"an operation of {framed_bytes} bytes exceeds {OPERATION_BYTES_MAX}")
        frame = self._open
        if frame is None or frame.length + framed_bytes > self._frame_bytes_max:
            frame = self._next_frame()
        entry = frame.entry
        self.last_sequence += 1
        if frame.length + framed_bytes > self._frame_bytes_max:
            frame = self._split(frame, parts, framed_bytes, data)
        else:
            frame.parts += parts
            frame.length += framed_bytes
        frame.last_sequence = self.last_sequence
        frame.reached.append(reached)
        if data is not None:
            frame.pin(data)
        return entry

    def flush(self) -> int:
        """Submit the open frame. Returns the number of the entry that the next operation will begin."""
        frame, self._open = self._open, None
        if frame is not None:
            self._submit(frame)
        return self.ledger.next_entry

    def truncate(self, before_entry: int) -> None:
        """Let the ledger discard the entries before this one; raises as `append`."""
        self.flush()
        self.ledger.truncate(before_entry)

    def close(self) -> None:
        """Submit what was accepted, and close the ledger."""
        self.flush()
        self.ledger.close()

    def suspend(self, error: HeadraceError) -> None:
        """Submit what was accepted, and refuse further operations with this error until `resume`."""
        self.flush()
        if self.failure is None:
            self._refusal = error

    def resume(self) -> None:
        """Accept operations again, unless the log has failed."""
        self._refusal = self.failure

    @property
    def upcoming_ordering(self) -> int:
        """The ordering of an operation logged now: at least all earlier ones, at most all later ones."""
        return self._ordering_clock.upcoming if self._open is None else self.current_ordering

    @property
    def is_durable(self) -> bool:
        """Whether everything logged so far is durable."""
        return self._youngest is None

    def when_durable(self, callback: Callable[[], None], failed: Callable[[], None] | None = None) -> None:
        """Call `callback` when everything logged so far is durable, before later operations are reported.

        Calls it at once if all is durable now. If the log fails, or has failed, it calls `failed` instead.
        """
        if self.failure is not None:
            _call(failed)
        elif self._youngest is None:
            callback()
        else:
            self._youngest.reached.append(lambda error: _call(failed if error else callback))

    async def durable(self) -> None:
        """Return once everything logged so far is durable.

        Raises:
            UnavailableError, FencedError: the log has failed or was taken over.
        """
        future = self.expect()
        self.when_durable(lambda: resolve(future))
        await future

    def expect(self) -> asyncio.Future[None]:
        """A future that gets the error if the log fails. Otherwise the caller resolves it.

        A caller that does not await it, because its request was refused or has ended, need not look at the error.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
            future.exception()  # noted as seen, as below
            return future
        self._waiting.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[None]) -> None:
        self._waiting.discard(future)
        if not future.cancelled():
            future.exception()  # else the loop reports an error that `on_failure` has reported

    def fail(self, error: HeadraceError) -> None:
        """Stop for good. All waiting callers get the error, and `on_failure` is called."""
        if self.failure is None:
            self.end(error)
            if self._on_failure is not None:
                self._on_failure(error)

    def end(self, error: HeadraceError) -> None:
        """Stop for good, because the container is not served here any more. All waiting callers get the error.

        This is not a failure of the container, so `on_failure` is not called.
        """
        if self.failure is not None:
            return
        self.failure = self._refusal = error
        self.ledger.close()
        frame, self._open = self._open, None
        if frame is not None:
            frame.released()  # it was not submitted
            # In a later turn: the callbacks must not run inside the code that called this.
            self._loop.call_soon(frame, error)
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(error)

    def frame_durable(self, frame: _Frame) -> None:
        """Note that the frames up to this one are durable. Only frames call this."""
        self.durable_entry = max(self.durable_entry, frame.durable_entry)
        self.durable_sequence = max(self.durable_sequence, frame.last_sequence)
        if self._youngest is frame:
            self._youngest = None

    def _next_frame(self, continued_bytes: int = 0) -> _Frame:
        """Open a frame that begins with the rest of an operation, of `continued_bytes`."""
        entry = self.flush()
        if self.failure is not None:
            raise self.failure
        ordering = self.current_ordering = self._ordering_clock.next()
        header = FrameHeader(self.last_sequence + 1, ordering, continued_bytes)
        self._open = self._youngest = frame = _Frame(self, entry, data_frames.encode_frame_header(header))
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._end_turn)
        return frame

    def _split(self, frame: _Frame, parts: Parts, pending_bytes: int, data: Reservation | None) -> _Frame:
        """Split an operation over several frames. Returns the frame with its end, which is still open."""
        for whole in parts:
            part = memoryview(whole)
            while len(part):
                room = self._frame_bytes_max - frame.length
                if not room:
                    frame.durable_entry = -1
                    if data is not None:
                        frame.pin(data)
                    frame = self._next_frame(min(pending_bytes, self._frame_bytes_max - FRAME_HEADER_BYTES))
                    continue
                piece, part = part[:room], part[room:]
                frame.parts.append(piece)
                frame.length += len(piece)
                pending_bytes -= len(piece)
        return frame

    def _end_turn(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _submit(self, frame: _Frame) -> None:
        try:
            self.ledger.append(frame.parts, frame, frame.released)
        except HeadraceError as error:
            self._open = frame
            self.fail(error)


def _call(callback: Callable[[], None] | None) -> None:
    if callback is not None:
        callback()


def resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future whose waiter may have gone."""
    if not future.done():
        future.set_result(None)


class _Frame:
    """A submitted or open frame, and the callbacks for it. After a failure all of them get the error.

    `blocks` are pinned. Each frame of a split operation pins them: the ledger may release a later frame first.
    """

    __slots__ = ("blocks", "durable_entry", "entry", "last_sequence", "length", "log", "parts", "reached")

    def __init__(self, log: OperationLog, entry: int, header: bytes) -> None:
        self.log = log
        self.entry = self.durable_entry = entry
        self.parts: list[bytes | memoryview] = [header]
        self.length = FRAME_HEADER_BYTES
        self.last_sequence = -1
        self.reached: list[Reached] = []
        self.blocks: list[Block] = []

    def pin(self, data: Reservation) -> None:
        """Keep the bytes of a reservation unchanged until `released`."""
        is_pinned = not data.more and self.blocks and self.blocks[-1] is data.block
        if self.log.pool is not None and not is_pinned:
            self.log.pool.pin(data.blocks)
            self.blocks += data.blocks

    def released(self) -> None:
        """Let the blocks be used again, because the ledger does not read them any more."""
        blocks, self.blocks = self.blocks, []
        if blocks and self.log.pool is not None:
            self.log.pool.unpin(blocks)

    def __call__(self, error: Exception | None) -> None:
        log = self.log
        if error is None and log.gate is not None and not log.gate.is_open:
            log.gate.hold(lambda: self(None))
            return
        if error is not None:
            log.fail(error if isinstance(error, HeadraceError) else UnavailableError(f"the log failed: {error}"))
        if log.failure is None:
            log.frame_durable(self)
        for reached in self.reached:
            try:
                reached(log.failure)
            except Exception as defect:  # noqa: BLE001 - the other callbacks must run in any case
                _log.exception("event=report_failed entry=%d", self.entry)
                log.fail(HeadraceError(f"a durable operation could not be reported: {defect!r}"))
