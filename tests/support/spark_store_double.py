"""A controller, an S3 and a segment store for one stream double, on loopback ports that the system chose.

HTTP answers have the shapes of the real API; the segment store speaks the wire protocol. Failures are ordered ahead of
time and counted, so that tests are exact and never wait for luck.
"""

from __future__ import annotations

import json
import re
import socketserver
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spark_stream_double import SCOPED_NAME, SegmentDouble, StreamDouble

from headrace import wire
from headrace.api.plans import LostBytes, NextCutView
from headrace.api.response_headers import TOKENS, TOKENS_REQUIRED
from headrace.api.segments import RangeBetween, RangesBetween
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.cut_planning import BatchRules
from headrace.model.names import parse_segment_name, segment_name
from headrace.model.stream_cut_ranges import split_pieces
from headrace.model.stream_cuts import StreamCut

SCOPE, STREAM = SCOPED_NAME
_STREAM_PATH = re.compile(rf"/v1/scopes/{SCOPE}/streams/([^/]+)(/.+)")


class RefusedError(Exception):
    """An error answer of the controller."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": code, "message": message, "retry": "never", "details": dict(details or {})}}


class StoreDouble:
    """What of `stream` lies in tier 2 is `stored(segment)` bytes, in runs of about `run_bytes`."""

    def __init__(self, stream: StreamDouble, *, run_bytes: int = 4096) -> None:
        self.stream = stream
        self.streams = {STREAM: stream}
        """All streams of the scope by name; most tests have one."""
        self.run_bytes = run_bytes
        self.indexed = True
        """Whether the segment store knows append boundaries; without, it answers the segment's length."""
        self.stored: Callable[[SegmentDouble], int] = lambda segment: len(segment.data)
        self.segments_per_cut: int | None = None
        self.tells_what_is_left = True
        """Whether a next cut says how much is behind it."""
        self.gone: RefusedError | None = None
        """What the controller answers to everything, for example after the stream was deleted."""
        self.linked_ranges = 0
        """Ranges whose plan was asked for with links."""
        self.token_life_s: float | None = None
        """With one, the store wants delegation tokens, and the controller issues and announces them."""
        self.tokens: list[str] = []
        self.tls: ssl.SSLContext | None = None
        """With one, the store wants TLS, says `tls_name`, and the controller publishes `authorities`."""
        self.tls_name = ""
        self.authorities: tuple[str, ...] = ()
        self.requests: Counter[str] = Counter()
        """Requests answered, by kind: the last literal part of the path, "object", or the wire command's name."""
        self.arriving: Callable[[str, str], None] = lambda kind, path: None
        """Called with the kind and the path of each HTTP request, at once if they are: before the lock is taken."""
        self.lock = threading.RLock()
        self._refusals: dict[str, list[int]] = {}
        self.url = ""
        self.wire_port = 0

    def refuse(self, kind: str, status: int, times: int = 1) -> None:
        """The next `times` requests of that kind get this HTTP status; 0 breaks the connection in mid-answer."""
        self._refusals.setdefault(kind, []).extend([status] * times)

    def forgive(self) -> None:
        """No request is refused any more."""
        with self.lock:
            self._refusals.clear()

    def refusal(self, kind: str) -> int | None:
        waiting = self._refusals.get(kind)
        return waiting.pop(0) if waiting else None

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        """The JSON answer of the controller."""
        if self.gone is not None:
            raise self.gone
        if path == f"/v1/scopes/{SCOPE}/streams":
            return {
                "streams": [{"scopeName": SCOPE, "streamName": name, "streamTags": []} for name in self.streams],
                "next": None,
            }
        if path == "/v1/trust":
            return {"certificates": list(self.authorities)}
        matched = _STREAM_PATH.fullmatch(path)
        assert matched is not None, f"the double knows no {method} {path}"
        if matched[1] not in self.streams:
            raise RefusedError(404, "not_found", f"there is no stream {SCOPE}/{matched[1]}")
        stream, rest = self.streams[matched[1]], matched[2]
        if rest == "/stream-cut":
            cut = stream.tail() if query["at"] == "tail" else stream.head()
            text = cut_text(cut, matched[1])
            return {"scopeName": SCOPE, "streamName": matched[1], "cut": _keys_as_text(cut), "text": text}
        if rest == "/segments/between":
            return self._between(stream, body)
        if rest == "/next-cut":
            return self._next_cut(matched[1], body)
        if rest == "/stream-cuts/distance":
            start = _keys_as_ids(body["from"])
            return {"bytes": stream.next_batch(start, None, BatchRules()).length_bytes}
        if rest == "/delegation-token":
            self.tokens.append(f"token-{len(self.tokens) + 1}-for-{method}")
            return {"token": self.tokens[-1], "expiresMs": int((time.time() + (self.token_life_s or 0)) * 1000)}
        if rest == "/range-plans":
            _check_ranges(stream, body["ranges"])
            self.linked_ranges += len(body["ranges"]) if body["links"] else 0
            return {
                "ranges": [self._plan(matched[1], segment_range, body["links"]) for segment_range in body["ranges"]]
            }
        if match := re.fullmatch(r"/segments/(\d+)/chunks", rest):
            return self._chunks(matched[1], int(match[1]), query)
        if match := re.fullmatch(r"/segments/(\d+)/endpoint", rest):
            assert int(match[1]) in stream.segments
            return self._endpoint()
        raise AssertionError(f"the double knows no {method} {path}")

    def _endpoint(self) -> dict[str, Any]:
        address = {"host": "127.0.0.1", "port": self.wire_port, "zone": "local", "container": 0, "epoch": 1}
        return address | ({"tlsName": self.tls_name} if self.tls_name else {})

    def _next_cut(self, name: str, body: Any) -> dict[str, Any]:
        stream = self.streams[name]
        start = _keys_as_ids(body["from"]) if body["from"] is not None else stream.head()
        end = _keys_as_ids(body["to"]) if body["to"] is not None else None
        _check_incarnation(stream, start)
        if end is not None and stream.is_before(end, start):
            raise RefusedError(400, "invalid_stream_cut", "the stream cut is not valid: 'to' is before 'from'")
        lost: tuple[LostBytes, ...] = ()
        if head := stream.readable(start):
            ranges_lost = stream.between(start, head)
            lost = tuple(
                LostBytes(lost_range.segment_id, lost_range.start, lost_range.length_bytes)
                for lost_range in ranges_lost
                if lost_range.length_bytes
            )
            if body["onTruncation"] == "fail":
                raise _truncated(stream, lost)
            start, end = head, end and (stream.readable(end) or end)
        rules = BatchRules(body["bytes"], body["strictKeyOrder"], self.segments_per_cut)
        batch = stream.next_batch(start, end, rules, self.indexed)
        ranges = tuple(
            RangeBetween(
                segment_range.segment.segment_id,
                segment_range.segment.key_range.low,
                segment_range.segment.key_range.high,
                segment_name(SCOPE, name, segment_range.segment.segment_id),
                segment_range.start_offset,
                segment_range.end_offset,
                segment_range.predecessors,
                segment_range.successors,
            )
            for segment_range in batch.ranges
        )
        cut_from, cut_to = (StreamCut.of(SCOPE, name, positions) for positions in (start, batch.positions))
        rest = stream.next_batch(batch.positions, end, BatchRules())
        left_bytes = rest.length_bytes if self.tells_what_is_left or batch.reached_end else None
        lost_bytes = sum(loss.length for loss in lost)
        return NextCutView(
            **RangesBetween.between(cut_from, cut_to, ranges).fields(),
            reached_end=batch.reached_end,
            left_bytes=left_bytes,
            lost=lost,
            lost_bytes=lost_bytes,
        ).to_json()

    def _plan(self, name: str, wanted: Any, links: bool) -> dict[str, Any]:
        segment = self.streams[name].segments[wanted["segmentId"]]

        def boundary(target: int) -> int:
            return segment.boundary_at_or_after(target) if self.indexed else len(segment.data)

        pieces = []
        for start, end in split_pieces(wanted["start"], wanted["end"], wanted["pieceBytes"], boundary):
            found = self._chunks(name, segment.identifier, {"from": str(start), "to": str(end)}) if links else None
            complete = found is not None and found["next"] is None
            chunks = found["chunks"] if found is not None and complete else []
            stored_until = found["storedUntil"] if found is not None and complete else None
            pieces.append({"start": start, "end": end, "chunks": chunks, "storedUntil": stored_until})
        return {"segmentId": segment.identifier, "pieces": pieces, "endpoint": self._endpoint()}

    def _between(self, stream: StreamDouble, body: Any) -> dict[str, Any]:
        start = _keys_as_ids(body["from"]) if body.get("from") is not None else stream.head()
        end = _keys_as_ids(body["to"]) if body.get("to") is not None else stream.tail()
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
            for part in stream.between(start, end)
        ]
        return {"segments": segments, "from": _keys_as_text(start), "to": _keys_as_text(end)}

    def _chunks(self, name: str, segment_id: int, query: Mapping[str, str]) -> dict[str, Any]:
        segment = self.streams[name].segments[segment_id]
        start, stop, limit = int(query["from"]), int(query["to"]), int(query.get("limit", 100))
        if start < self.streams[name].first_byte(segment_id):
            raise RefusedError(410, "truncated", f"bytes of segment {segment.identifier} were truncated")
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
                    "url": f"{self.url}/object/{name}/{segment.identifier}",
                    "headers": {"Range": f"bytes={position}-{end - 1}"},
                    "expiresAt": 4_102_444_800_000,
                }
            )
            position = end
        more = position < min(stop, stored)
        return {"chunks": chunks, "storedUntil": position, "next": position if more else None}


def _check_incarnation(stream: StreamDouble, identifiers: Iterable[int]) -> None:
    if any(identifier not in stream.segments for identifier in identifiers):
        raise RefusedError(400, "stream_recreated", "the stream was deleted and created again")


def _check_ranges(stream: StreamDouble, ranges: list[dict[str, int]]) -> None:
    """As the controller does: ranges of a request have bytes, which are not truncated, and do not overlap."""
    _check_incarnation(stream, [segment_range["segmentId"] for segment_range in ranges])
    if any(segment_range["start"] < stream.first_byte(segment_range["segmentId"]) for segment_range in ranges):
        raise RefusedError(410, "truncated", "bytes of a segment were truncated: plan from the head")
    in_order = sorted(
        (segment_range["segmentId"], segment_range["start"], segment_range["end"]) for segment_range in ranges
    )
    follows = [left[0] != right[0] or left[2] <= right[1] for left, right in pairwise(in_order)]
    if not all(follows) or any(start >= end for _, start, end in in_order):
        raise RefusedError(400, "invalid_request", "the ranges are empty or overlap")


def _truncated(stream: StreamDouble, lost: tuple[LostBytes, ...]) -> RefusedError:
    details = {
        "lost": [loss.to_json() for loss in lost],
        "lostBytes": sum(loss.length for loss in lost),
        "headText": cut_text(stream.head()),
    }
    return RefusedError(410, "truncated", "stream weather/stations was truncated beyond this cut", details)


def cut_text(positions: Mapping[int, int], stream: str = STREAM) -> str:
    return stream_cut_text(StreamCut.of(SCOPE, stream, positions))


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
            double.arriving(kind, address.path)
            with double.lock:
                refused = double.refusal(kind)
                double.requests[kind] += 1
                if refused:
                    error = {"code": "unavailable", "message": "as the test wants", "retry": "later", "details": {}}
                    self._send(refused, json.dumps({"error": error}).encode())
                elif kind == "object":
                    _, _, name, segment_id = address.path.split("/")
                    self._send_range(double.streams[name].segments[int(segment_id)], refused == 0)
                else:
                    query = {name: values[0] for name, values in parse_qs(address.query).items()}
                    try:
                        self._send(200, json.dumps(double.answer(method, address.path, query, body)).encode())
                    except RefusedError as refusal:
                        self._send(refusal.status, json.dumps(refusal.body).encode())

        def _send_range(self, segment: SegmentDouble, cut_off: bool) -> None:
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
            assert match is not None, "a signed link demands its Range header"
            data = bytes(segment.data[int(match[1]) : int(match[2]) + 1])
            self._send(206, data, keep=len(data) // 2 if cut_off else None)

        def _send(self, status: int, data: bytes, keep: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if double.token_life_s is not None:
                self.send_header(TOKENS, TOKENS_REQUIRED)
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
        def setup(self) -> None:
            if double.tls is not None:
                self.request = double.tls.wrap_socket(self.request, server_side=True)

        def finish(self) -> None:
            if double.tls is not None:  # the server closes only the socket that it has accepted
                self.request.close()

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
            if double.token_life_s is not None and command.delegation_token not in double.tokens:  # type: ignore[attr-defined]
                double.requests["refused"] += 1
                return wire.AuthTokenCheckFailed(command.request_id, "", wire.TOKEN_CHECK_FAILED)  # type: ignore[attr-defined]
            name = command.segment  # type: ignore[attr-defined]
            parsed = parse_segment_name(name)
            stream = double.streams.get(parsed.stream)
            if stream is None:
                return wire.NoSuchSegment(command.request_id, name)  # type: ignore[attr-defined]
            segment = stream.segments[parsed.segment_id]
            if isinstance(command, wire.LocateOffset):
                boundary = len(segment.data)
                if command.ordering_number:
                    boundary = segment.boundary_at_time(command.ordering_number // 1000)
                elif double.indexed:
                    boundary = segment.boundary_at_or_after(command.target_offset)
                return wire.OffsetLocated(command.request_id, name, boundary)
            if isinstance(command, wire.GetStreamSegmentInfo):
                length = len(segment.data)
                return wire.StreamSegmentInfo(command.request_id, name, True, segment.sealed, False, 0, length)
            assert isinstance(command, wire.ReadSegment), f"the double knows no {command}"
            first_byte = stream.first_byte(segment.identifier)
            if command.offset < first_byte:
                return wire.SegmentIsTruncated(command.request_id, name, first_byte, "", command.offset)
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
