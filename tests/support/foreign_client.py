"""What the tests have Pravega's own client do, in a process of its own.

The client runs native threads that can panic or block for ever, so each function here is the main function of a child
process: it is given a connection to its parent and the controller's address, and whatever it returns is sent back. The
parent never waits without end: a child that says nothing for `HANG_S` is killed, and its stacks are shown.
"""

from __future__ import annotations

import asyncio
import faulthandler
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

HANG_S = 600
"""Only keeps a broken client from hanging a test run."""

GAVE_UP = ("after all retries", "RetryError")
"""In what the client raises when stores were away for all its attempts."""

_CONTEXT = multiprocessing.get_context("spawn")


class Child:
    """A function of this module at work in a child process."""

    def __init__(
        self, uri: str, function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None
    ) -> None:
        """With an `environment`, which has its credentials, the client authenticates."""
        self._parent, childs_end = _CONTEXT.Pipe()
        told = (childs_end, function, uri, arguments, dict(environment or {}))
        self.process = _CONTEXT.Process(target=_main, args=told, daemon=True)
        self.process.start()
        childs_end.close()

    def hear(self) -> Any:
        """The next thing that the child says, the last of which is what its function returns."""
        if not self._parent.poll(HANG_S):
            self.process.terminate()
            raise AssertionError(f"the client said nothing for {HANG_S} s; its stacks are on stderr")
        kind, what = self._parent.recv()
        assert kind != "raised", what
        return what

    def say(self, what: Any) -> None:
        self._parent.send(what)

    @staticmethod
    def hear_any(children: Sequence[Child]) -> tuple[int, Any]:
        """The index of a child that has said something, and what."""
        said = wait([child._parent for child in children], HANG_S)
        speaker = next((index for index, child in enumerate(children) if child._parent in said), 0)
        return speaker, children[speaker].hear()

    def end(self) -> None:
        """The client's threads are no reason to wait."""
        self.process.kill()
        self.process.join()
        self._parent.close()


def _main(
    pipe: Connection,
    function: Callable[..., Any],
    uri: str,
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
) -> None:
    os.environ.update(environment)
    faulthandler.register(15)  # SIGTERM: before the end, where everybody is
    try:
        import pravega_client

        manager = pravega_client.StreamManager(uri, bool(environment), uri.startswith("tls:"))
        pipe.send(("returned", function(_Talk(pipe), manager, *arguments)))
    except BaseException:  # noqa: BLE001 - panics of native code are no Exceptions
        pipe.send(("raised", traceback.format_exc()))


class _Talk:
    """The child's side of the conversation."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def say(self, what: Any) -> None:
        self._pipe.send(("said", what))

    def hear(self) -> Any:
        return self._pipe.recv()


# Streams


def events_that_s3_acknowledges(talk: _Talk, manager: Any, scope: str, stream: str, count: int) -> dict[str, Any]:
    """A stream whose class is chosen by a tag, as Pravega's protocol allows it, and events of eight routing keys."""
    import pravega_client as client

    policy = client.StreamScalingPolicy.fixed_scaling_policy(2)
    tags = ["headrace.acknowledged-by=s3"]
    created = manager.create_stream_with_policy(scope, stream, policy, client.StreamRetentionPolicy.none(), tags)
    writer = manager.create_writer(scope, stream)
    for number in range(count):
        writer.write_event(f"{number % 8} {number}", routing_key=str(number % 8))
    writer.flush()
    return {"created": created, "tags": list(manager.get_stream_tags(scope, stream))}


def streams_to_their_deletion(talk: _Talk, manager: Any, scope: str) -> dict[str, Any]:
    import pravega_client as client

    policy = client.StreamScalingPolicy.fixed_scaling_policy(3)
    by_rate = client.StreamScalingPolicy.auto_scaling_policy_by_event_rate(100, 2, 4)
    keep = client.StreamRetentionPolicy.by_time(3 * 24 * 3600 * 1000)
    seen: dict[str, Any] = {
        "scope": [manager.create_scope(scope), manager.create_scope(scope)],
        "listed": scope in manager.list_scope(),
        "streams": [
            manager.create_stream(scope, "plain", 2),
            manager.create_stream(scope, "plain", 2),
            manager.create_stream_with_policy(scope, "tagged", policy, keep, ["t1", "t2"]),
            manager.create_stream_with_policy(scope, "by-rate", by_rate, client.StreamRetentionPolicy.none(), None),
        ],
        "names": sorted(manager.list_stream(scope)),
        "tags": [list(manager.get_stream_tags(scope, name)) for name in ("plain", "tagged")],
        "not there": [manager.list_stream("none"), manager.list_stream("")],
        "refused": [
            _refused(manager.create_stream, "none", "plain", 1),
            _refused(manager.create_stream, scope, "_b", 1),
            _refused(manager.delete_stream, scope, "plain"),
            _refused(manager.delete_scope, scope),
        ],
    }
    seen["ended"] = [
        (manager.seal_stream(scope, name), manager.seal_stream(scope, name), manager.delete_stream(scope, name))
        for name in seen["names"]
    ]
    seen["deleted again"] = manager.delete_stream(scope, "plain")
    seen["again"] = manager.create_stream(scope, "plain", 1)
    manager.seal_stream(scope, "plain")
    manager.delete_stream(scope, "plain")
    seen["scope ended"] = [manager.delete_scope(scope), manager.delete_scope(scope), scope in manager.list_scope()]
    return seen


def updates_of_a_stream(talk: _Talk, manager: Any, scope: str, stream: str) -> dict[str, Any]:
    """Another policy and tags, then, when told to go on, none of them, then a stream that is not there."""
    import pravega_client as client

    by_rate = client.StreamScalingPolicy.auto_scaling_policy_by_event_rate(100, 2, 2)
    fixed = client.StreamScalingPolicy.fixed_scaling_policy(2)
    keep = client.StreamRetentionPolicy.by_time(3 * 24 * 3600 * 1000)
    seen: dict[str, Any] = {
        "created": manager.create_stream(scope, stream, 2),
        "updated": manager.update_stream_with_policy(scope, stream, by_rate, keep, ["t2", "t1"]),
        "tags": list(manager.get_stream_tags(scope, stream)),
    }
    talk.say("updated")
    talk.hear()
    seen["again"] = manager.update_stream_with_policy(scope, stream, fixed, client.StreamRetentionPolicy.none(), None)
    seen["no tags"] = list(manager.get_stream_tags(scope, stream))
    seen["refused"] = _refused(manager.update_stream_with_policy, scope, "nothing", fixed, keep, None)
    return seen


def _refused(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - the client has one class for everything
        return True
    return False


def make(talk: _Talk, manager: Any, scope: str, streams: Sequence[str]) -> list[bool]:
    """A scope with streams of two segments."""
    return [manager.create_scope(scope), *(manager.create_stream(scope, stream, 2) for stream in streams)]


def refusals(talk: _Talk, manager: Any, scope: str, stream: str) -> dict[str, str]:
    """What the client says to each call that is not allowed; "" for one that is."""

    def write() -> None:
        writer = manager.create_writer(scope, stream)
        writer.write_event("refused")
        writer.flush()

    calls: dict[str, Callable[[], Any]] = {
        "create_scope": lambda: manager.create_scope("another"),
        "create_stream": lambda: manager.create_stream(scope, "another", 1),
        "get_stream_tags": lambda: manager.get_stream_tags(scope, stream),
        "seal_stream": lambda: manager.seal_stream(scope, stream),
        "delete_stream": lambda: manager.delete_stream(scope, stream),
        "list_stream": lambda: manager.list_stream(scope),
        "create_reader_group": lambda: manager.create_reader_group("refused", scope, stream).create_reader("r"),
        "write": write,
    }
    return {name: _refusal(call) for name, call in calls.items()}


def _refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - panics of native code are no Exceptions
        return repr(error)
    return ""


# Events


def write_events(talk: _Talk, manager: Any, scope: str, stream: str, events: list[tuple[bytes, str | None]]) -> None:
    """Half of them synchronously, half of them on an event loop, for which the client takes text only."""
    writer = manager.create_writer(scope, stream)
    half = len(events) // 2
    for event, key in events[:half]:
        writer.write_event_bytes(event, key)

    async def rest() -> None:
        for event, key in events[half:]:
            await writer.write_event_async(event.decode(), key)

    asyncio.run(rest())
    writer.flush()


def write_on_demand(talk: _Talk, manager: Any, scope: str, stream: str) -> None:
    """Writes and flushes the events it hears of, and says when they are acknowledged; None ends it."""
    writer = manager.create_writer(scope, stream)
    while (events := talk.hear()) is not None:
        for event, key in events:
            writer.write_event_bytes(event, key)
        writer.flush()
        talk.say("flushed")


def write_to_a_sealed_stream(talk: _Talk, manager: Any, scope: str, stream: str) -> tuple[bool, bool]:
    """Whether writing fails after the stream was sealed, and whether making a writer does."""
    writer = manager.create_writer(scope, stream)
    writer.write_event("before")
    writer.flush()
    manager.seal_stream(scope, stream)

    def write() -> None:
        writer.write_event("behind")
        writer.flush()

    return _refused(write), _refused(write)


def read_events(talk: _Talk, manager: Any, scope: str, stream: str, group: str, count: int) -> list[bytes]:
    """`count` events, as one reader of a group hands them out."""
    reader = manager.create_reader_group(group, scope, stream).create_reader("reader")
    return asyncio.run(_read(reader, count))


async def _read(reader: Any, count: int) -> list[bytes]:
    read: list[bytes] = []
    while len(read) < count:
        segment_slice = await reader.get_segment_slice_async()
        if segment_slice is not None:
            read += [bytes(event.data()) for event in segment_slice]
            reader.release_segment(segment_slice)
    return read


def read_at_the_tail(talk: _Talk, manager: Any, scope: str, stream: str, group: str, count: int) -> list[bytes]:
    """Says when it waits at the tail."""
    reader = manager.create_reader_group(group, scope, stream, True).create_reader("reader")

    async def read() -> list[bytes]:
        waiting = asyncio.ensure_future(_read(reader, count))
        await asyncio.sleep(0)
        talk.say("waiting")
        return await waiting

    return asyncio.run(read())


def hand_over(talk: _Talk, manager: Any, scope: str, stream: str, group: str, count: int) -> dict[str, Any]:
    """Two readers: the first reads a part, leaves in the middle of a slice and goes offline, the second the rest."""
    readers = manager.create_reader_group(group, scope, stream)
    first = readers.create_reader("first")

    async def part() -> list[bytes]:
        read: list[bytes] = []
        while len(read) < count // 4:
            segment_slice = await first.get_segment_slice_async()
            if segment_slice is None:
                continue
            for event in segment_slice:
                read.append(bytes(event.data()))
                if len(read) >= count // 4:
                    break
            first.release_segment(segment_slice)
        return read

    seen: dict[str, Any] = {"first": asyncio.run(part())}
    first.reader_offline()
    second = readers.create_reader("second")
    seen["second"] = asyncio.run(_read(second, count - len(seen["first"])))
    second.reader_offline()
    seen["cut"] = dict(readers.get_streamcut().get_segment_offset_map())
    manager.delete_reader_group(group, scope)
    return seen


def read_for_ever(talk: _Talk, manager: Any, scope: str, stream: str, group: str, reader_name: str) -> None:
    """Says the events of each slice as one of several readers of a group."""
    reader = manager.create_reader_group(group, scope, stream).create_reader(reader_name)

    async def read() -> None:
        while True:
            talk.say(await _read(reader, 1))

    asyncio.run(read())


# Bytes


def byte_stream(talk: _Talk, manager: Any, scope: str, stream: str) -> dict[str, Any]:
    manager.create_stream(scope, stream, 1)
    written = bytes(range(256)) * 4096
    out = manager.create_byte_stream(scope, stream)
    for first in range(0, len(written), 65536):
        out.write(written[first : first + 65536])
    out.flush()
    seen: dict[str, Any] = {"ends": [out.current_head_offset(), out.current_tail_offset()]}
    seen["read"] = _read_bytes(out, len(written)) == written
    out.seek(1000, 0)
    seen["sought"] = [out.tell(), _read_bytes(out, 10)]
    out.truncate(5000)
    seen["truncated"] = [out.current_head_offset(), out.current_tail_offset()]
    out.seek(5000, 0)
    seen["behind"] = _read_bytes(out, 3)
    return seen


def read_byte_stream(talk: _Talk, manager: Any, scope: str, stream: str, start: int, count: int) -> dict[str, Any]:
    """Some bytes of a stream that another client has written."""
    opened = manager.create_byte_stream(scope, stream)
    opened.seek(start, 0)
    return {
        "ends": [opened.current_head_offset(), opened.current_tail_offset()],
        "read": _read_bytes(opened, count),
    }


def write_byte_stream(talk: _Talk, manager: Any, scope: str, stream: str, data: bytes) -> None:
    """The first bytes of a stream: the client begins at offset 0, on condition that the stream is empty."""
    opened = manager.create_byte_stream(scope, stream)
    for first in range(0, len(data), 65536):
        opened.write(data[first : first + 65536])
    opened.flush()


def _read_bytes(stream: Any, count: int) -> bytes:
    read = bytearray()
    while len(read) < count:
        buffer = bytearray(count - len(read))
        read += buffer[: stream.readinto(buffer)]
    return bytes(read)


def numbered(keys: int, numbers: Iterable[int]) -> list[tuple[bytes, str | None]]:
    """Events `key number`, with their keys."""
    return [(f"{number % keys} {number}".encode(), str(number % keys)) for number in numbers]


def numbers_by_key(events: Iterable[bytes]) -> dict[str, list[int]]:
    """In the order in which they were read."""
    found: dict[str, list[int]] = {}
    for event in events:
        key, number = event.decode().split()
        found.setdefault(key, []).append(int(number))
    return found


# Transactions


def life_of_transactions(talk: _Talk, manager: Any, scope: str, stream: str, events: int) -> dict[str, Any]:
    """One is committed, one aborted, one found by its id and committed; `scaled` comes in while it is open."""
    writer = manager.create_transaction_writer(scope, stream, 7)
    committed = writer.begin_txn()
    seen: dict[str, Any] = {"open": [committed.is_open()]}
    for number in range(events):
        committed.write_event(f"{number % 5} {number}", str(number % 5))
    committed.commit()
    aborted = writer.begin_txn()
    aborted.write_event("0 999", "0")
    aborted.abort()
    seen["open"] += [committed.is_open(), aborted.is_open()]
    late = writer.begin_txn()
    late.write_event(f"0 {events}", "0")
    talk.say("begun")
    talk.hear()
    found = writer.get_txn(late.get_txn_id())
    seen["open"] += [found.is_open()]
    late.commit()
    seen["open"] += [found.is_open()]
    return seen
