"""A scripted cluster for the client's tests: a controller behind httpx, and a segment store behind TCP.

It keeps the protocol's rules (numbers of appends, order of replies, successors before seals) and breaks connections
where a test asks for it. Segments live in memory; `events` tells what a reader must find.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx

from headrace import wire
from headrace.api.stream_cuts import ExplainedCutCheck
from headrace.client import Headrace, KeyRange, connect
from headrace.client.loop_thread import LoopThread
from headrace.codec.events import split_events
from headrace.model.names import segment_name
from headrace.model.segments import equal_ranges, segment_id
from headrace.model.stream_cuts import invalid_cut

SCOPE, STREAM = "s", "t"
HOLD_S = 0.05


@dataclass
class Segment:
    """One segment, as the store and the controller know it."""

    key_range: KeyRange
    predecessors: list[int] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    deleted: bool = False
    writers: dict[int, int] = field(default_factory=dict)


class Cluster:
    """Controller and store of one stream.

    `before_append` and `after_append` are asked for each append, with its running number: True drops the connection.
    `refuse` may answer any command instead of the store.
    """

    def __init__(self, segments: int) -> None:
        self.segments = {segment_id(0, n): Segment(r) for n, r in enumerate(equal_ranges(segments))}
        self.active = set(self.segments)
        self.epoch = 0
        self.sealed = False
        self.appends = 0
        self.reads = 0
        self.connections = 0
        self.before_append: Callable[[int], bool] = lambda _: False
        self.after_append: Callable[[int], bool] = lambda _: False
        self.replies: dict[type[wire.WireCommand], list[wire.WireCommand]] = {}
        self.refuse: Callable[[wire.WireCommand], wire.WireCommand | None] = lambda _: None
        self.hello: wire.WireCommand = wire.Hello(17, 5)
        self.requests: list[tuple[str, str]] = []
        self.notes: list[tuple[str, int, dict[int, int]]] = []
        self.removed_writers: list[str] = []
        self.answers: list[httpx.Response | Exception] = []
        self.lock = threading.RLock()
        self.thread = LoopThread()
        self._changed: asyncio.Condition | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.thread.run(self._listen(0))

    # What a test does

    def client(self, **options: Any) -> Headrace:
        return connect("http://controller", transport=httpx.MockTransport(self.handle), **options)

    def name(self, identifier: int) -> str:
        return segment_name(SCOPE, STREAM, identifier)

    def scale(self, replaced: list[int], ranges: list[tuple[float, float]]) -> list[int]:
        """New segments first, then the seals, as the controller does it."""
        with self.lock:
            self.epoch += 1
            number = max(identifier & 0xFFFFFFFF for identifier in self.segments) + 1
            created = []
            for index, (low, high) in enumerate(ranges):
                identifier = segment_id(self.epoch, number + index)
                key_range = KeyRange(low, high)
                before = [former for former in replaced if self.segments[former].key_range.overlaps(key_range)]
                self.segments[identifier] = Segment(key_range, before)
                for former in before:
                    self.segments[former].successors.append(identifier)
                created.append(identifier)
            self.active = (self.active - set(replaced)) | set(created)
            for former in replaced:
                self.segments[former].sealed = True
        self._notify()
        return created

    def seal_stream(self) -> None:
        with self.lock:
            self.sealed = True
            for identifier in self.active:
                self.segments[identifier].sealed = True
        self._notify()

    def put(self, identifier: int, *events: bytes) -> None:
        """Events that are there without anybody having written them."""
        with self.lock:
            for event in events:
                self.segments[identifier].data += wire.FRAME_HEADER.pack(0, len(event)) + event
        self._notify()

    def events(self, identifier: int) -> list[bytes]:
        with self.lock:
            return split_events(bytes(self.segments[identifier].data), 0)[0]

    def all_events(self) -> list[bytes]:
        """Every event, predecessors first."""
        return [event for identifier in self.segments for event in self.events(identifier)]

    def drop_connections(self) -> None:
        self.thread.run(self._drop())

    def send_to_all(self, command: wire.WireCommand) -> None:
        """What the store says of its own accord."""
        self.thread.run(self._send_to_all(command))

    def stop_store(self) -> None:
        self.thread.run(self._stop())

    def start_store(self) -> None:
        """On the port of before."""
        self.thread.run(self._listen(self.port))

    def close(self) -> None:
        self.thread.run(self._stop())
        self.thread.close()

    # The controller

    def handle(self, request: httpx.Request) -> httpx.Response:
        with self.lock:
            self.requests.append((request.method, request.url.path))
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            query = {key: value[0] for key, value in parse_qs(request.url.query.decode()).items()}
            body = json.loads(request.content) if request.content else None
            parts = request.url.path.removeprefix(f"/v1/scopes/{SCOPE}/streams/{STREAM}").strip("/").split("/")
            return httpx.Response(200, json=self._answer(parts, query, body))

    def _answer(self, parts: list[str], query: dict[str, str], body: Any) -> dict[str, Any]:
        match parts:
            case ["segments"]:
                shown = [] if self.sealed else [self._view(active) for active in self.active]
                return {"segments": shown, "epoch": self.epoch, "sealed": self.sealed}
            case ["segments", "between"]:
                return self._between(body["from"], body["to"])
            case ["segments", identifier, "successors"]:
                assert query["asRecorded"] == "true", "or a reader of a segment that went would be refused"
                following = self.segments[int(identifier)].successors
                shown = [
                    self._view(follower) | {"predecessors": self.segments[follower].predecessors}
                    for follower in following
                ]
                return {"segments": shown, "sealed": self.sealed and not following}
            case ["segments", identifier, "endpoint"]:
                container = int(identifier) & 7
                return {"host": "127.0.0.1", "port": self.port, "zone": "local", "container": container, "epoch": 0}
            case ["stream-cuts", "check"]:
                beyond = [segment for segment, at in body["cut"].items() if at > len(self.segments[int(segment)].data)]
                problem = invalid_cut(f"{beyond} are beyond the tail") if beyond else None
                return ExplainedCutCheck.of(problem).to_json()
            case ["writers", writer, "position"]:
                position = {int(key): offset for key, offset in body["position"].items()}
                self.notes.append((writer, body["time"], position))
                return {}
            case ["writers", writer]:
                self.removed_writers.append(writer)
                return {}
            case ["stream-cut"]:
                return {"scopeName": SCOPE, "streamName": STREAM, "cut": self._cut(query["at"]), "text": ""}
        raise AssertionError(parts)

    def _view(self, identifier: int) -> dict[str, Any]:
        segment = self.segments[identifier]
        return {
            "segmentId": identifier,
            "name": self.name(identifier),
            "low": segment.key_range.low,
            "high": segment.key_range.high,
            "startOffset": segment.start,
        }

    def _cut(self, at: str) -> dict[str, int]:
        if at == "tail":
            return {str(active): len(self.segments[active].data) for active in self.active}
        first = [number for number, segment in self.segments.items() if not segment.predecessors]
        return {str(number): self.segments[number].start for number in first}

    def _between(self, start: dict[str, int] | None, end: dict[str, int] | None) -> dict[str, Any]:
        start = self._cut("head") if start is None else start
        end = self._cut("tail") if end is None else end
        start = {
            number: len(self.segments[int(number)].data) if offset == -1 else offset for number, offset in start.items()
        }
        waiting, ranges = [int(number) for number in start], {}
        while waiting:
            number = waiting.pop(0)
            segment = self.segments[number]
            stop = end.get(str(number), len(segment.data))
            ranges[number] = self._view(number) | {"startOffset": start.get(str(number), 0), "endOffset": stop}
            if str(number) not in end:
                waiting += [follower for follower in segment.successors if follower not in ranges]
        for number, shown in ranges.items():
            shown["predecessors"] = [other for other in self.segments[number].predecessors if other in ranges]
            shown["successors"] = [other for other in self.segments[number].successors if other in ranges]
        named = {"scopeName": SCOPE, "streamName": STREAM}
        return named | {"segments": list(ranges.values()), "from": start, "to": end}

    # The segment store

    async def _listen(self, port: int) -> None:
        self._changed = asyncio.Condition()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._drop()

    async def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _send_to_all(self, command: wire.WireCommand) -> None:
        for writer in self._writers:
            writer.write(wire.encode(command))

    def _notify(self) -> None:
        self.thread.run(self._notify_all())

    async def _notify_all(self) -> None:
        assert self._changed is not None
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        names: dict[int, str] = {}
        held: set[asyncio.Task[None]] = set()
        try:
            while True:
                type_code, length = wire.decode_header(await reader.readexactly(8))
                command = wire.decode(type_code, memoryview(await reader.readexactly(length)))
                scripted = self.replies.get(type(command))
                reply: wire.WireCommand | None = self.refuse(command)
                if reply is not None:
                    pass
                elif scripted:
                    reply = scripted.pop(0)
                elif isinstance(command, wire.ReadSegment):
                    task = asyncio.get_running_loop().create_task(self._hold(command, writer))
                    held.add(task)
                    task.add_done_callback(held.discard)
                    continue
                else:
                    with self.lock:
                        reply = self._reply(command, names)
                    if isinstance(command, wire.AppendBlockEnd):
                        await self._notify_all()
                if reply is None:
                    return
                writer.write(wire.encode(reply))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            for task in held:
                task.cancel()
            writer.transport.abort()

    def _reply(self, command: Any, names: dict[int, str]) -> wire.WireCommand | None:
        match command:
            case wire.Hello():
                return self.hello
            case wire.KeepAlive():
                return command
            case wire.SetupAppend(request_id, writer_id, name):
                segment = self._segment(name)
                if segment is None:
                    return wire.NoSuchSegment(request_id, name)
                names[writer_id] = name
                return wire.AppendSetup(request_id, name, writer_id, segment.writers.get(writer_id, -(2**63)))
            case wire.AppendBlockEnd():
                return self._append(command, names[command.writer_id])
            case wire.LocateOffset(request_id, name, target):
                return wire.OffsetLocated(request_id, name, target)
            case wire.GetStreamSegmentInfo(request_id, name):
                segment = self._segment(name)
                if segment is None:
                    return wire.NoSuchSegment(request_id, name)
                length, now_us = len(segment.data), time.time_ns() // 1000
                return wire.StreamSegmentInfo(
                    request_id, name, True, segment.sealed, False, 0, length, segment.start, now_us
                )
        raise AssertionError(command)

    def _append(self, command: wire.AppendBlockEnd, name: str) -> wire.WireCommand | None:
        self.appends += 1
        if self.before_append(self.appends):
            return None
        segment = self._segment(name)
        if segment is None:
            return wire.NoSuchSegment(command.request_id, name)
        if segment.sealed:
            return wire.SegmentIsSealed(command.request_id, name, "", len(segment.data))
        last = segment.writers.get(command.writer_id, -(2**63))
        assert command.last_event_number > last, "an append came twice, or out of order"
        assert command.num_events == len(split_events(bytes(command.data), 0)[0])
        segment.data += command.data
        segment.writers[command.writer_id] = command.last_event_number
        if self.after_append(self.appends):
            return None
        return wire.DataAppended(
            command.writer_id, command.last_event_number, last, command.request_id, len(segment.data)
        )

    async def _hold(self, command: wire.ReadSegment, writer: asyncio.StreamWriter) -> None:
        assert self._changed is not None
        reply = self._read(command)
        if reply is None:
            async with self._changed:
                try:
                    async with asyncio.timeout(HOLD_S):
                        while (reply := self._read(command)) is None:
                            await self._changed.wait()
                except TimeoutError:
                    reply = wire.SegmentRead(command.segment, command.offset, True, False, b"", command.request_id)
        writer.write(wire.encode(reply))

    def _read(self, command: wire.ReadSegment) -> wire.WireCommand | None:
        with self.lock:
            self.reads += 1
            segment = self._segment(command.segment)
            if segment is None:
                return wire.NoSuchSegment(command.request_id, command.segment, "", command.offset)
            if command.offset < segment.start:
                return wire.SegmentIsTruncated(command.request_id, command.segment, segment.start, "", command.offset)
            data = bytes(segment.data[command.offset : command.offset + command.suggested_length])
            at_tail = command.offset + len(data) >= len(segment.data)
            end = segment.sealed and at_tail
            if not data and not end:
                return None
            return wire.SegmentRead(command.segment, command.offset, at_tail, end, data, command.request_id)

    def _segment(self, name: str) -> Segment | None:
        for identifier, segment in self.segments.items():
            if self.name(identifier) == name and not segment.deleted:
                return segment
        return None
