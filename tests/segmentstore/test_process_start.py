"""How a store process starts: it is in the cluster before it reads its journal, and an outage does not end it."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headrace.adapters.disk.journal_disk import DiskJournalFile
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting
from headrace.model.errors import IllegalStateError, UnavailableError
from headrace.segmentstore.container_opening import ContainerOpening
from headrace.segmentstore.log.journal import Journal
from segmentstore_fargate import __main__ as main_module
from segmentstore_fargate import heartbeat as heartbeat_module
from segmentstore_fargate import probe, wiring
from segmentstore_fargate.config import StoreConfig, read_config
from segmentstore_fargate.wiring import SegmentStoreProcess

WAIT_S = 20.0
"""Only turns a hang into a failure."""


class Objects(MemoryChunkStorage):
    def close(self) -> None:
        """Nothing to close."""


class Aws:
    """What the process talks to instead of AWS; `down` is an outage of DynamoDB."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore()
        self.down = False
        self.asked = threading.Event()
        self.renewed = threading.Event()

    def __call__(self, _table: str) -> Any:
        return self

    def _checked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*arguments: Any, **named: Any) -> Any:
            self.asked.set()
            if self.down:
                raise UnavailableError("DynamoDB does not answer")
            return call(*arguments, **named)

        return checked

    def __getattr__(self, name: str) -> Any:
        return self._checked(getattr(self.metadata, name))

    @property
    def lease_version(self) -> int | None:
        found = ClusterRecords(self.metadata).lease("store-0")
        return None if found is None else found.version


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    made = Aws()
    monkeypatch.setattr(wiring, "DynamoMetadataStore", made)
    monkeypatch.setattr(wiring, "S3ChunkStorage", lambda *_: Objects())
    monkeypatch.setattr(wiring, "s3_client", lambda: None)
    monkeypatch.setattr(heartbeat_module, "START_RETRY_S", 0.001)
    return made


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    return read_config(
        {
            "HEADRACE_STORE_ID": "store-0",
            "HEADRACE_DATA_DIR": str(tmp_path),
            "HEADRACE_METADATA_TABLE": "table",
            "HEADRACE_CHUNK_BUCKET": "bucket",
            "HEADRACE_CONTAINER_COUNT": "2",
            "HEADRACE_HEALTH_PORT": "0",
            "HEADRACE_JOURNAL_FILE_BYTES": str(32 << 20),
            "HEADRACE_CACHE_BYTES": str(64 << 20),
        }
    )


def _status(port: int, page: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", page)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_store_has_its_lease_before_it_reads_its_journal(aws, config, monkeypatch):
    """And renews it meanwhile, so that no other store gives up a log that is being read."""
    seen: list[int | None] = []
    honest = Journal.start

    def slow(self: Journal) -> None:
        seen.append(aws.lease_version)
        while seen[0] is not None and (aws.lease_version or 0) < seen[0] + 3:
            aws.asked.clear()
            assert aws.asked.wait(WAIT_S), "the lease is not renewed while the journal is read"
        honest(self)

    async def scenario() -> None:
        process = SegmentStoreProcess(config, {})
        assert (await asyncio.wait_for(process.start(), WAIT_S)).endswith("containers=0,1")
        process.request_stop()
        await process.stop()

    monkeypatch.setattr(Journal, "start", slow)
    monkeypatch.setattr(heartbeat_module, "HEARTBEAT_EVERY_S", 0.001)
    asyncio.run(scenario())
    assert seen == [0]


def test_an_outage_of_the_metadata_store_ends_no_process(aws, config):
    """It waits, alive for whom asks, and serves when DynamoDB answers again."""

    async def scenario() -> None:
        aws.down = True
        process = SegmentStoreProcess(config, {})
        starting = asyncio.ensure_future(process.start())
        for _ in range(3):
            aws.asked.clear()
            assert await asyncio.to_thread(aws.asked.wait, WAIT_S)
        port = process._health.port
        assert await asyncio.to_thread(probe.problems, [port]) == [], "its task must not be replaced"
        assert await asyncio.to_thread(_status, port, "/ready") == 503
        assert not starting.done()
        aws.down = False
        assert (await asyncio.wait_for(starting, WAIT_S)).endswith("containers=0,1")
        assert await asyncio.to_thread(_status, port, "/ready") == 200
        process._store.gate.close()  # as when its lease cannot be renewed
        assert await asyncio.to_thread(probe.problems, [port]) == []
        assert await asyncio.to_thread(_status, port, "/ready") == 503
        process.request_stop()
        await process.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(("listen_after_s", "accepts"), [(WAIT_S, False), (0.0, True)])
def test_port_opens_after_containers_or_the_bound(aws, config, monkeypatch, listen_after_s, accepts):
    """Readers of the Rust client survive a closed port, but not WrongHost in answer to a table request."""
    begun, release = asyncio.Event(), asyncio.Event()
    honest = ContainerOpening.advance

    async def held(self: ContainerOpening) -> None:
        begun.set()
        await release.wait()
        await honest(self)

    async def scenario() -> None:
        process = SegmentStoreProcess(config, {})
        starting = asyncio.ensure_future(process.start())
        await asyncio.wait_for(begun.wait(), WAIT_S)
        lease = ClusterRecords(aws.metadata).lease("store-0")
        assert lease is not None
        if accepts:
            while process._listener._server is None:
                await asyncio.sleep(0)
        with nullcontext() if accepts else pytest.raises(ConnectionRefusedError):
            await _connect(lease.lease.port)
        assert not starting.done()
        release.set()
        await asyncio.wait_for(starting, WAIT_S)
        await _connect(lease.lease.port)
        process.request_stop()
        await process.stop()

    monkeypatch.setattr(wiring, "LISTEN_AFTER_S", listen_after_s)
    monkeypatch.setattr(ContainerOpening, "advance", held)
    asyncio.run(scenario())


async def _connect(port: int) -> None:
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()


def test_a_failed_journal_ends_the_task(aws, config):
    async def scenario() -> None:
        process = SegmentStoreProcess(config, {})
        await asyncio.wait_for(process.start(), WAIT_S)
        process._journal._failure = UnavailableError("the disk is gone")
        (problem,) = await asyncio.to_thread(probe.problems, [process._health.port])
        assert "failing" in problem
        process.request_stop()
        await process.stop()

    asyncio.run(scenario())


def test_a_changed_number_of_containers_is_refused(aws, config):
    """Before the store has a lease, and so before any container is claimed or given up."""
    check_fixed_setting(aws.metadata, FixedSetting.CONTAINERS, 8)

    async def scenario() -> None:
        process = SegmentStoreProcess(config, {})
        with pytest.raises(IllegalStateError, match="began with 8 containers, and is configured for 2"):
            await asyncio.wait_for(process.start(), WAIT_S)
        await process._health.stop()

    asyncio.run(scenario())
    assert aws.lease_version is None


def test_a_journal_that_fails_while_no_client_waits_ends_the_process(aws, config, monkeypatch):
    """It is started again on its volume, before the health check replaces the task and the volume with it."""

    def broken(_self: DiskJournalFile) -> None:
        raise OSError("the disk is gone")

    async def scenario() -> int:
        process = SegmentStoreProcess(config, {})
        await asyncio.wait_for(process.start(), WAIT_S)
        monkeypatch.setattr(DiskJournalFile, "sync", broken)
        process._store.owned[0].container.log.ledger.truncate(10)  # is reported to none
        return await asyncio.wait_for(process.ended(), WAIT_S)

    assert asyncio.run(scenario()) == 1


def test_a_store_that_waits_at_its_start_can_be_stopped(aws, config):
    async def scenario() -> int:
        aws.down = True
        process = SegmentStoreProcess(config, {})
        serving = asyncio.ensure_future(main_module.serve(process, config))
        assert await asyncio.to_thread(aws.asked.wait, WAIT_S)
        process.request_stop()
        return await asyncio.wait_for(serving, WAIT_S)

    assert asyncio.run(scenario()) == 0
