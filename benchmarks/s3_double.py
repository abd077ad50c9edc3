"""`python -m benchmarks.s3_double`: an S3 that keeps nothing, in a process of its own, so that tier 2 costs little.

It reads the body of a PUT into one buffer again and again, and answers at once, or after the time that a connection to
S3 takes. A GET with a range gets zeros, a listing is empty. With `--keep` it keeps the bodies in memory, and a GET gets
what was put. It prints `ready PORT` and ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, cast

import uvloop

LOOPBACK: Final = "127.0.0.1"
_HEAD_BYTES_MAX: Final = 64 << 10
_BODY_BUFFER_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(64 << 20)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_EMPTY_LIST: Final = (
    b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys>"
    b"</ListBucketResult>"
)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d+)", re.IGNORECASE)


Objects = dict[bytes, bytes]
"""What an S3 double keeps: bodies by path."""


@dataclass(frozen=True, slots=True)
class S3Pace:
    """What one connection to S3 gives: the time to the first byte, and bytes a second after it; 0: no limit."""

    first_byte_s: float
    bytes_per_s: float

    def seconds(self, length: int) -> float:
        return self.first_byte_s + (length / self.bytes_per_s if self.bytes_per_s else 0.0)


FREE: Final = S3Pace(0.0, 0.0)
LIKE_S3: Final = S3Pace(0.030, 90e6)
PACES: Final = {"free": FREE, "like-s3": LIKE_S3}


class _Connection(asyncio.BufferedProtocol):
    """One connection, one request at a time, as botocore and httpx send them."""

    def __init__(self, pace: S3Pace, objects: Objects | None) -> None:
        self._pace = pace
        self._objects = objects
        self._body = bytearray()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_BODY_BUFFER_BYTES))
        self._head = b""
        self._body_left = 0
        self._body_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._body_left:
            self._keep(self._buffer[:nbytes])
            self._body_left -= nbytes
            if not self._body_left:
                self._end_request()
            return
        self._head += self._buffer[:nbytes]
        end = self._head.find(b"\r\n\r\n")
        if end >= 0:
            self._begin_body(end)
        elif len(self._head) > _HEAD_BYTES_MAX and self._transport is not None:
            self._transport.abort()

    def _begin_body(self, end: int) -> None:
        head, rest = self._head[:end], self._head[end + 4 :]
        self._head = head
        length = _LENGTH.search(head)
        self._body_bytes = int(length[1]) if length else 0
        self._body_left = self._body_bytes - len(rest)
        if self._transport is not None and b"100-continue" in head.lower():
            self._transport.write(_CONTINUE)
        self._keep(rest)
        if not self._body_left:
            self._end_request()

    def _keep(self, data: bytes | memoryview) -> None:
        if self._objects is not None:
            self._body += data

    def _end_request(self) -> None:
        head, self._head = self._head, b""
        if self._objects is None:
            status, body = _answer(head)
        else:
            status, body = _answer_kept(self._objects, head, bytes(self._body))
            self._body.clear()
        wait_s = self._pace.seconds(self._body_bytes + len(body))
        if wait_s:
            asyncio.get_running_loop().call_later(wait_s, self._reply, status, body)
        else:
            self._reply(status, body)

    def _reply(self, status: bytes, body: memoryview) -> None:
        if self._transport is not None:
            head = b'HTTP/1.1 %s\r\nContent-Length: %d\r\nETag: "0"\r\n\r\n' % (status, len(body))
            self._transport.writelines([head, body])


def _answer(head: bytes) -> tuple[bytes, memoryview]:
    if head.startswith(b"GET ") and b"list-type" in head.partition(b"\r\n")[0]:
        return b"200 OK", memoryview(_EMPTY_LIST)
    if head.startswith(b"GET ") and (asked := _RANGE.search(head)) is not None:
        return b"206 Partial Content", memoryview(_ZEROS)[: int(asked[2]) + 1 - int(asked[1])]
    if head.startswith(b"POST "):
        return b"200 OK", memoryview(b"<DeleteResult/>")
    found = head.startswith((b"PUT ", b"DELETE "))
    return b"200 OK" if found else b"404 Not Found", memoryview(b"")


def _answer_kept(objects: Objects, head: bytes, body: bytes) -> tuple[bytes, memoryview]:
    """As `_answer`, of an S3 that keeps what it gets. Links have their signature behind the name of the object."""
    method, target, _ = head.split(b" ", 2)
    name, _, query = target.partition(b"?")
    if method == b"PUT":
        objects[name] = body
        return b"200 OK", memoryview(b"")
    if method == b"DELETE":
        objects.pop(name, None)
        return b"204 No Content", memoryview(b"")
    if method != b"GET" or b"list-type" in query:
        return _answer(head)
    found = objects.get(name)
    if found is None:
        return b"404 Not Found", memoryview(b"")
    asked = _RANGE.search(head)
    if asked is None:
        return b"200 OK", memoryview(found)
    return b"206 Partial Content", memoryview(found)[int(asked[1]) : int(asked[2]) + 1]


@contextmanager
def running_s3_double(pace: str, *, keep: bool = False) -> Iterator[str]:
    """Run it in a process of its own, with one of PACES; yield its address."""
    command = [sys.executable, "-m", "benchmarks.s3_double", "--pace", pace, *(["--keep"] if keep else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://{LOOPBACK}:{int(process.stdout.readline().removeprefix('ready '))}"
        finally:
            process.stdin.close()


async def _serve(pace: S3Pace, objects: Objects | None) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(pace, objects), LOOPBACK, 0)
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3_double", description=__doc__.partition("\n")[0])
    parser.add_argument("--pace", choices=sorted(PACES), default="free", help="the time that a request takes")
    parser.add_argument("--keep", action="store_true", help="keep what is put, in memory")
    options = parser.parse_args()
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(PACES[options.pace], {} if options.keep else None))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
