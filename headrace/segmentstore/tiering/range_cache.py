"""Ranges of packed objects as they came from tier 2, for all containers of a process, within one budget of bytes.

Objects never change, so cached ranges never become outdated. Readers of the same range share one request. Requested
bytes count against the budget, which therefore bounds memory also while tier 2 is slow. A request is cancelled when no
reader needs it any more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from headrace.model.chunks import ChunkRun
from headrace.model.errors import InvalidRequestError
from headrace.ports.chunk_storage import ChunkStorage

SHARE_OF_LARGE_REQUESTS: Final = 0.75
"""Of the budget. The rest is for small requests, so that they do not wait behind many slow large ones."""


class Range(NamedTuple):
    """`length` bytes at `position` of an object."""

    object_name: str
    position: int
    length: int


class Request:
    """A requested range; `wanted` counts the readers that wait for it or expect to need it."""

    __slots__ = ("task", "wanted")

    def __init__(self, task: asyncio.Task[bytes]) -> None:
        self.task = task
        self.wanted = 0


class RangeCache:
    """`budget_bytes` bound what is remembered and on its way together."""

    def __init__(self, chunk_storage: ChunkStorage, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.requested_bytes = 0
        self.remembered_bytes = 0
        self._chunk_storage = chunk_storage
        self._remembered: OrderedDict[Range, bytes] = OrderedDict()
        self._requests: dict[Range, Request] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()

    def get(self, wanted: Range) -> bytes | None:
        """The bytes, if they are remembered."""
        data = self._remembered.get(wanted)
        if data is not None:
            self._remembered.move_to_end(wanted)
        return data

    def takes_large(self, wanted: Range) -> bool:
        """Whether a large request for this range would not have to wait, or is on its way already."""
        room = int(SHARE_OF_LARGE_REQUESTS * self.budget_bytes) - self.requested_bytes
        return wanted in self._requests or wanted.length <= room

    async def read(self, wanted: Range) -> bytes:
        """The bytes; asked for at once, or when there is room for them.

        Raises:
            InvalidRequestError: there is never room for so many.
            NotFoundError: there is no such object, or it is shorter.
            ThrottledError, UnavailableError: tier 2 does not answer.
        """
        if wanted.length > self.budget_bytes:
            raise InvalidRequestError(f"{wanted.length} bytes do not fit into a read cache of {self.budget_bytes}")
        while (data := self.get(wanted)) is None:
            request = self._requests.get(wanted)
            if request is None and self.requested_bytes + wanted.length > self.budget_bytes:
                await self._room()
                continue
            request = request or self._request(wanted)
            request.wanted += 1
            try:
                return await asyncio.shield(request.task)
            finally:
                self.release(wanted, request)
        return data

    def expect(self, wanted: Range) -> Request | None:
        """Ask for a range that will probably be read soon, if there is room; `release` is owed for what is returned."""
        request = self._requests.get(wanted)
        if request is None and wanted not in self._remembered and self.takes_large(wanted):
            request = self._request(wanted)
        if request is not None:
            request.wanted += 1
        return request

    def release(self, wanted: Range, request: Request) -> None:
        """Note that one reader less needs the range; cancel the request if no reader does."""
        request.wanted -= 1
        if not request.wanted and not request.task.done():
            request.task.cancel()
            if self._requests.get(wanted) is request:
                del self._requests[wanted]

    def _request(self, wanted: Range) -> Request:
        self.requested_bytes += wanted.length
        self._make_room()
        request = Request(asyncio.ensure_future(self._chunk_storage.read(*wanted)))
        request.task.add_done_callback(lambda task: self._answered(wanted, request, task))
        self._requests[wanted] = request
        return request

    def _answered(self, wanted: Range, request: Request, task: asyncio.Task[bytes]) -> None:
        self.requested_bytes -= wanted.length
        if self._requests.get(wanted) is request:
            del self._requests[wanted]
        if not task.cancelled() and task.exception() is None and wanted not in self._remembered:
            self._remembered[wanted] = task.result()
            self.remembered_bytes += wanted.length
            self._make_room()
        while self._waiting:  # all look again: what one waits for may be less than what another does
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _make_room(self) -> None:
        while self._remembered and self.remembered_bytes + self.requested_bytes > self.budget_bytes:
            longest_unused, _ = self._remembered.popitem(last=False)
            self.remembered_bytes -= longest_unused.length

    async def _room(self) -> None:
        """Return when a request has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter


# In which pieces runs are read from tier 2, and what a reader that reads on is going to need next.

PIECE_BYTES: Final = 4 << 20
"""For readers of much of a run: few large requests, each of which serves several replies."""

SMALL_PIECE_BYTES: Final = 128 << 10
"""For readers that want little, and for all while many large requests are in flight."""

LARGE_READ_BYTES_MIN: Final = 256 << 10
PIECES_AHEAD: Final = 2


class ReadAhead:
    """The expected reads of one reader of one segment. Call `close` when the reader ends."""

    def __init__(self, cache: RangeCache) -> None:
        self._cache = cache
        self._expected: list[tuple[Range, Request]] = []
        self._next_offset = -1

    def reads_on(self, offset: int) -> bool:
        """Whether a read at `offset` goes on where the last one ended."""
        return offset == self._next_offset

    def answered(self, end: int, coming: Iterable[Range]) -> None:
        """The reader got bytes up to `end`; `coming` is what it needs next if it reads on."""
        self._next_offset = end
        expected = [(piece, request) for piece in coming if (request := self._cache.expect(piece)) is not None]
        self.close()
        self._expected = expected

    def close(self) -> None:
        """The reader is gone, or somewhere else."""
        expected, self._expected = self._expected, []
        for piece, request in expected:
            self._cache.release(piece, request)


def piece_at(run: ChunkRun, position: int, piece_bytes: int) -> Range:
    """The piece of a run that holds its segment's byte at `position`."""
    start = (position - run.offset) // piece_bytes * piece_bytes
    return Range(run.object_name, run.position + start, min(piece_bytes, run.length - start))


def pieces_behind(runs: Iterable[ChunkRun], position: int) -> list[Range]:
    """The next pieces behind the one that holds `position`, as far as these contiguous runs, in order, have them."""
    pieces: list[Range] = []
    for run in runs:
        while run.offset <= position < run.end and len(pieces) <= PIECES_AHEAD:
            piece = piece_at(run, position, PIECE_BYTES)
            pieces.append(piece)
            position = run.offset + piece.position - run.position + piece.length
    return pieces[1:]
