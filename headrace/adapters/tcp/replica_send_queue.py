"""What waits to be sent over a link between replicas: entries as views of the caller's memory, the rest as bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordHeader, encode_record_header
from headrace.codec.replica_messages import MESSAGE_HEADER, Entry

if TYPE_CHECKING:
    from typing_extensions import Buffer

COPY_BELOW_BYTES: Final = 16 << 10
"""Smaller entries are joined: a system call with many small parts costs more than copying them."""

PARTS_MAX: Final = 1024
"""Parts of one `sendmsg` (IOV_MAX)."""


class SendingSocket(Protocol):
    """A non-blocking socket."""

    def sendmsg(self, buffers: list[memoryview], /) -> int: ...


class SendQueue:
    """Bytes in order. `waiting_bytes` were not handed to the kernel yet."""

    def __init__(self, sock: SendingSocket) -> None:
        self._sock = sock
        self._small: list[Buffer] = []
        self._views: deque[memoryview] = deque()
        self._owned = 0  # so many of the first views are of memory that no caller changes
        self.waiting_bytes = 0
        self.copied_bytes = 0

    def put(self, message: bytes) -> None:
        """Queue an encoded message."""
        self._small.append(message)
        self.waiting_bytes += len(message)

    def put_entry(self, header: RecordHeader, parts: Sequence[Buffer]) -> None:
        """Queue an ENTRY. Its parts must not change until they were sent, or until `detach`."""
        body_bytes = RECORD_HEADER_BYTES + header.length
        self.put(MESSAGE_HEADER.pack(Entry.TYPE, 0, 0, body_bytes) + encode_record_header(header))
        self.waiting_bytes += header.length
        if header.length < COPY_BELOW_BYTES:
            self._small.extend(parts)
            return
        self._seal()
        self._views.extend(_as_bytes(part) for part in parts)

    def flush(self) -> bool:
        """Hand as much as possible to the kernel; return whether nothing waits.

        Raises:
            OSError: the link is broken.
        """
        self._seal()
        views = self._views
        while views:
            try:
                sent = self._sock.sendmsg(list(islice(views, PARTS_MAX)))
            except (BlockingIOError, InterruptedError):
                return False
            self.waiting_bytes -= sent
            while views and sent >= len(views[0]):
                sent -= len(views.popleft())
                self._owned = max(0, self._owned - 1)
            if sent:
                views[0] = views[0][sent:]
        return True

    def detach(self) -> None:
        """Copy what still waits and was not copied before."""
        self._seal()
        if len(self._views) == self._owned:
            return
        rest = [self._views.pop() for _ in range(len(self._views) - self._owned)]
        copy = b"".join(reversed(rest))
        self.copied_bytes += len(copy)
        self._views.append(memoryview(copy))
        self._owned += 1

    def _seal(self) -> None:
        if self._small:
            self._views.append(memoryview(b"".join(self._small)))
            self._small = []


def _as_bytes(part: Buffer) -> memoryview:
    view = memoryview(part)
    return view if view.itemsize == 1 and view.ndim == 1 else view.cast("B")
