"""A controller, an S3 and a segment store for one stream double, on loopback ports that the system chose.

HTTP answers have the shapes of the real API; the segment store speaks the wire protocol. Failures are ordered ahead of
time and counted, so that tests are exact and never wait for luck.
"""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spark_stream_double import SCOPED_NAME, SegmentDouble, StreamDouble

from headrace import wire
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.names import parse_segment_name, segment_name
from headrace.model.stream_cuts import StreamCut

SCOPE, STREAM = SCOPED_NAME
_STREAM_PATH = f"/v1/scopes/{SCOPE}/streams/{STREAM}"


class StoreDouble:
    """What of `stream` lies in tier 2 is `stored(segment)` bytes, in runs of about `run_bytes`."""

    def __init__(self, stream: StreamDouble, *, run_bytes: int = 4096) -> None:
        self.stream = stream
        self.run_bytes = run_bytes
        self.indexed = True
        """Whether the segment store knows append boundaries; without, it answers the segment's length."""
        self.stored: Callable[[SegmentDouble], int] = lambda segment: len(segment.data)
        self.requests: Counter[str] = Counter()
        """Requests answered, by kind: the last literal part of the path, "object", or the wire command's name."""
        self.lock = threading.RLock()
        self._refusals: dict[str, list[int]] = {}
        self.url = ""
        self.wire_port = 0

    def refuse(self, kind: str, status: int, times: int = 1) -> None:
        """The next `times` requests of that kind get this HTTP status; 0 breaks the connection in mid-answer."""
        self._refusals.setdefault(kind, []).extend([status] * times)

    def refusal(self, kind: str) -> int | None:
        waiting = self._refusals.get(kind)
        return waiting.pop(0) if waiting else None

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        """The JSON answer of the controller."""
        rest = path.removeprefix(_STREAM_PATH)
        if rest == "/stream-cut":
            cut = self.stream.tail() if query["at"] == "tail" else self.stream.head()
            return {"scopeName": SCOPE, "streamName": STREAM, "cut": _keys_as_text(cut), "text": cut_text(cut)}
        if rest == "/segments/between":
            return self._between(body)
        if match := re.fullmatch(r"/segments/(\d+)/chunks", rest):
            return self._chunks(self.stream.segments[int(match[1])], query)
        if match := re.fullmatch(r"/segments/(\d+)/endpoint", rest):
            assert int(match[1]) in self.stream.segments
            return {"host": "127.0.0.1", "port": self.wire_port, "zone": "local", "container": 0, "epoch": 1}
        raise AssertionError(f"the double knows no {method} {path}")

    def _between(self, body: Any) -> dict[str, Any]:
        start = _keys_as_ids(body["from"]) if body.get("from") is not None else self.stream.head()
        end = _keys_as_ids(body["to"]) if body.get("to") is not None else self.stream.tail()
        segments = [
            {
                "segmentId": part.segment_id,
                "name": segment_name(SCOPE, STREAM, part.segment_id),
                "low": part.low,
                "high": part.high,
                "startOffset": part.start,
                "endOffset": part.end,
                "predecessors": list(part.predecessors),
                "successors": list(part.successors),
            }
            for part in self.stream.between(start, end)
        ]
        return {"segments": segments, "from": _keys_as_text(start), "to": _keys_as_text(end)}

    def _chunks(self, segment: SegmentDouble, query: Mapping[str, str]) -> dict[str, Any]:
        start, stop, limit = int(query["from"]), int(query["to"]), int(query.get("limit", 100))
        stored = self.stored(segment)
        chunks: list[dict[str, Any]] = []
        position = start
        while position < min(stop, stored) and len(chunks) < limit:
            run_end = segment.boundary_at_or_after((position // self.run_bytes + 1) * self.run_bytes)
            end = min(run_end, stop, stored)
            chunks.append(
                {
                    "offset": position,
                    "length": end - position,
                    "url": f"{self.url}/object/{segment.identifier}",
                    "headers": {"Range": f"bytes={position}-{end - 1}"},
                    "expiresAt": 4_102_444_800_000,
                }
            )
            position = end
        more = position < min(stop, stored)
        return {"chunks": chunks, "storedUntil": position, "next": position if more else None}


def cut_text(positions: Mapping[int, int]) -> str:
    return stream_cut_text(StreamCut.of(SCOPE, STREAM, positions))


def _keys_as_text(cut: Mapping[int, int]) -> dict[str, int]:
    return {str(identifier): offset for identifier, offset in cut.items()}


def _keys_as_ids(cut: Mapping[str, int]) -> dict[int, int]:
    return {int(identifier): offset for identifier, offset in cut.items()}


def _kind(path: str) -> str:
    return "object" if path.startswith("/object/") else path.rpartition("/")[2]


def _http_handler(double: StoreDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def do_GET(self) -> None:
            self._serve("GET", None)

        def do_POST(self) -> None:
            self._serve("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _serve(self, method: str, body: Any) -> None:
            address = urlsplit(self.path)
            kind = _kind(address.path)
            with double.lock:
                refused = double.refusal(kind)
                double.requests[kind] += 1
                if refused:
                    error = {"code": "unavailable", "message": "as the test wants", "retry": "later", "details": {}}
                    self._send(refused, json.dumps({"error": error}).encode())
                elif kind == "object":
                    self._send_range(double.stream.segments[int(address.path.rpartition("/")[2])], refused == 0)
                else:
                    query = {name: values[0] for name, values in parse_qs(address.query).items()}
                    self._send(200, json.dumps(double.answer(method, address.path, query, body)).encode())

        def _send_range(self, segment: SegmentDouble, cut_off: bool) -> None:
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
            assert match is not None, "a signed link demands its Range header"
            data = bytes(segment.data[int(match[1]) : int(match[2]) + 1])
            self._send(206, data, keep=len(data) // 2 if cut_off else None)

        def _send(self, status: int, data: bytes, keep: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:keep])
            if keep is not None:
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            """Tests read counters, not logs."""

    return Handler


def _wire_handler(double: StoreDouble) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            receiver = wire.FrameReceiver()
            while count := self.request.recv_into(receiver.writable()):
                for type_code, payload in receiver.received(count):
                    command = wire.decode(type_code, payload)
                    with double.lock:
                        double.requests[type(command).__name__] += 1
                        if double.refusal(type(command).__name__) is not None:
                            return
                        reply = self._reply(command)
                    self.request.sendall(wire.encode(reply))

        def _reply(self, command: wire.WireCommand) -> wire.WireCommand:
            if isinstance(command, wire.Hello | wire.KeepAlive):
                return command
            name = command.segment  # type: ignore[attr-defined]
            segment = double.stream.segments[parse_segment_name(name).segment_id]
            if isinstance(command, wire.LocateOffset):
                boundary = len(segment.data)
                if double.indexed:
                    boundary = segment.boundary_at_or_after(command.target_offset)
                return wire.OffsetLocated(command.request_id, name, boundary)
            if isinstance(command, wire.GetStreamSegmentInfo):
                length = len(segment.data)
                return wire.StreamSegmentInfo(command.request_id, name, True, segment.sealed, False, 0, length)
            assert isinstance(command, wire.ReadSegment), f"the double knows no {command}"
            data = bytes(segment.data[command.offset : command.offset + command.suggested_length])
            at_end = segment.sealed and command.offset + len(data) == len(segment.data)
            return wire.SegmentRead(name, command.offset, not data, at_end, data, command.request_id)

    return Handler


class _WireServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def serving(double: StoreDouble) -> Iterator[StoreDouble]:
    """The double with its URL and port set, answering until the block ends."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _http_handler(double))
    http.daemon_threads = True
    store = _WireServer(("127.0.0.1", 0), _wire_handler(double))
    double.url = f"http://127.0.0.1:{http.server_address[1]}"
    double.wire_port = store.server_address[1]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in (http, store)]
    for thread in threads:
        thread.start()
    try:
        yield double
    finally:
        for server in (http, store):
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
