"""Two real stores: one dies or is stopped while others write and read; nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import botocore.session
import pytest

from headrace import wire
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.tcp.store_calls import locate_by_claims
from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.cluster import StoreState
from headrace.model.errors import UnavailableError
from headrace.model.names import container_of_segment

pytestmark = pytest.mark.anyio

WAIT_S = 60.0
PAUSE_S = 0.05
CONTAINERS = 4
WRITER = 7
EVENT_BYTES = 200


def segment_of(container: int) -> str:
    names = (f"scope/stream/{number}.#epoch.0" for number in range(1000))
    return next(name for name in names if container_of_segment(name, CONTAINERS) == container)


def event(number: int) -> bytes:
    return b"%08d" % number + bytes(EVENT_BYTES - 8)


class Lost(Exception):
    """The store does not have the container, or is gone."""


class Client:
    """Finds the owner of one segment in the claims, as every client does, and asks again when it has moved."""

    def __init__(self, metadata: DynamoMetadataStore, container: int) -> None:
        self._locate = locate_by_claims(metadata)
        self._container = container
        self.segment = segment_of(container)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, command: wire.WireCommand) -> wire.WireCommand:
        """Raises Lost: connect anew."""
        try:
            if self._connection is None:
                found = await asyncio.to_thread(self._locate, self._container)
                self._connection = await asyncio.open_connection(found.host, found.port)
                await self._exchange(wire.Hello(17, 5))
            reply = await self._exchange(command)
        except (OSError, asyncio.IncompleteReadError, UnavailableError, TimeoutError) as error:
            reply = error
        if isinstance(reply, wire.WrongHost | wire.ErrorMessage | Exception):
            self.close()
            await asyncio.sleep(PAUSE_S)
            raise Lost(repr(reply))
        return reply

    async def until_answered(self, command: wire.WireCommand) -> wire.WireCommand:
        while True:
            try:
                return await self.call(command)
            except Lost:
                continue

    def close(self) -> None:
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _exchange(self, command: wire.WireCommand) -> wire.WireCommand:
        assert self._connection is not None
        reader, writer = self._connection
        writer.write(wire.encode(command))
        type_code, length = wire.decode_header(await asyncio.wait_for(reader.readexactly(8), WAIT_S))
        return wire.decode(type_code, memoryview(await asyncio.wait_for(reader.readexactly(length), WAIT_S)))


class Traffic:
    """A writer and a reader of one segment in each container, over all that happens to the stores."""

    def __init__(self, metadata: DynamoMetadataStore) -> None:
        self._metadata = metadata
        self.acknowledged = [0] * CONTAINERS
        self.read = [b""] * CONTAINERS
        self._ends, self._written = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for container in range(CONTAINERS):
            client = Client(self._metadata, container)
            await client.until_answered(wire.CreateSegment(1, client.segment, 0, 0))
            client.close()
        self._tasks = [
            asyncio.ensure_future(work(each)) for each in range(CONTAINERS) for work in (self._write, self._read)
        ]

    async def progress(self, more: int = 30) -> None:
        """Every container has acknowledged so many more."""
        wanted = [count + more for count in self.acknowledged]
        while any(have < want for have, want in zip(self.acknowledged, wanted, strict=True)):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(PAUSE_S)

    async def end(self) -> None:
        """What was read is what was written, once and in order, and nothing acknowledged is missing."""
        self._ends.set()
        await asyncio.gather(*self._tasks[::2])
        self._written.set()  # a reader that stopped before would miss the last acknowledgement
        await asyncio.gather(*self._tasks)
        for container in range(CONTAINERS):
            data, count = self.read[container], self.acknowledged[container]
            assert len(data) >= count * EVENT_BYTES
            assert data == b"".join(event(number) for number in range(1, len(data) // EVENT_BYTES + 1))

    async def _write(self, container: int) -> None:
        client = Client(self._metadata, container)
        number: int | None = None  # of the last stored event, once that is known
        while not self._ends.is_set():
            try:
                if number is None:
                    ready = await client.call(wire.SetupAppend(2, WRITER, client.segment))
                    assert isinstance(ready, wire.AppendSetup), ready
                    number = max(0, ready.last_event_number)
                    assert number >= self.acknowledged[container], "a writer is told that an event is gone"
                append = wire.AppendBlockEnd(WRITER, EVENT_BYTES, event(number + 1), 1, number + 1, 3)
                reply = await client.call(append)
                assert isinstance(reply, wire.DataAppended), reply
                self.acknowledged[container] = number = reply.event_number
            except Lost:
                number = None
        client.close()

    async def _read(self, container: int) -> None:
        client, parts, length = Client(self._metadata, container), [], 0
        while not self._written.is_set() or length < self.acknowledged[container] * EVENT_BYTES:
            read = wire.ReadSegment(client.segment, length, 1 << 20, "", 4)
            reply = await self._unless_all_is_read(client.until_answered(read), container, length)
            if reply is None:
                break
            assert isinstance(reply, wire.SegmentRead), reply
            parts.append(bytes(reply.data))
            length += len(reply.data)
        self.read[container] = b"".join(parts)
        client.close()

    async def _unless_all_is_read(
        self, call: Coroutine[object, object, wire.WireCommand], container: int, length: int
    ) -> wire.WireCommand | None:
        """The reply; None if all is written and was read before: a read at the tail would wait for more, for long."""
        reply, written = asyncio.ensure_future(call), asyncio.ensure_future(self._written.wait())
        await asyncio.wait((reply, written), return_when=asyncio.FIRST_COMPLETED)
        written.cancel()
        if reply.done() or length < self.acknowledged[container] * EVENT_BYTES:
            return await reply
        reply.cancel()
        return None


@pytest.fixture
def two_stores(make_store, tmp_path: Path) -> Callable[..., list]:
    def make(**settings: object) -> list:
        return [
            make_store(
                store_id=f"store-{index}",
                store_index=index,
                store_count=2,
                container_count=CONTAINERS,
                data_dir=tmp_path / f"data-{index}",
                **settings,
            )
            for index in range(2)
        ]

    return make


@pytest.fixture
def metadata(aws_environment) -> DynamoMetadataStore:
    session = botocore.session.Session()
    session.set_credentials("test", "test")
    client = session.create_client(
        "dynamodb", endpoint_url=aws_environment["AWS_ENDPOINT_URL"], region_name="us-east-1"
    )
    return DynamoMetadataStore(aws_environment["HEADRACE_METADATA_TABLE"], client)


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(PAUSE_S)

    await asyncio.wait_for(poll(), WAIT_S)


def owners(metadata: DynamoMetadataStore) -> list[str]:
    """Who has claimed each container."""
    return [state.claim.store_id for state in ClusterRecords(metadata).containers(range(CONTAINERS)) if state.claim]


async def test_killed_store_recovers_its_containers_from_its_disk(two_stores, metadata) -> None:
    first, second = two_stores(flush_age_s=3600)  # what is acknowledged is on one disk only
    first.start()
    second.start()
    assert (first.containers, second.containers) == ([0, 2], [1, 3])

    traffic = Traffic(metadata)
    await traffic.start()
    await traffic.progress()
    await asyncio.to_thread(second.kill)
    await asyncio.to_thread(second.start)
    await traffic.progress()
    await traffic.end()
    assert second.containers == [1, 3]
    assert owners(metadata) == ["store-0", "store-1", "store-0", "store-1"]
    assert [first.stop(), second.stop()] == [0, 0]


@pytest.mark.nightly
async def test_stopped_store_hands_over_and_gets_some_containers_again(two_stores, metadata, tmp_path) -> None:
    first, second = two_stores(flush_age_s=3600, log_level="INFO")
    first.start()
    second.start()

    traffic = Traffic(metadata)
    await traffic.start()
    await traffic.progress()
    assert await asyncio.to_thread(second.stop) == 0
    await until(lambda: owners(metadata) == ["store-0"] * CONTAINERS)
    lease = ClusterRecords(metadata).lease("store-1")
    assert lease is not None
    assert lease.lease.state is StoreState.LEFT
    await traffic.progress()
    await asyncio.to_thread(second.start)
    await until(lambda: sorted(owners(metadata)) == ["store-0", "store-0", "store-1", "store-1"])
    await traffic.progress()
    await traffic.end()
    assert (tmp_path / "store.log").read_text().count("event=handed_over") == 2
    assert [second.stop(), first.stop()] == [0, 0]
    first.start()
    assert first.containers == [0, 1, 2, 3]
    assert first.stop() == 0
