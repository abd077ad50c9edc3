"""How a store process starts: it is in the cluster before it reads its journal, and an outage does not end it."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from store_process import PROCESS_WAIT_S as WAIT_S

from headrace.adapters.disk import DiskJournalFile
from headrace.adapters.system_clock import SystemClock
from headrace.metadata.cluster_records import ClusterRecords, write_lease, write_map
from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting
from headrace.model import containers
from headrace.model.cluster import ContainerMap, StoreLease, registered
from headrace.model.containers import ContainerClaim
from headrace.model.errors import CorruptError, FencedError, IllegalStateError, UnavailableError
from headrace.model.log_classes import ContainerLayout
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.owned_container import ContainerOpening
from segmentstore_fargate import __main__ as main_module
from segmentstore_fargate import health as settled_module
from segmentstore_fargate import heartbeat as heartbeat_module
from segmentstore_fargate import probe, wiring
from segmentstore_fargate.config import StoreConfig
from segmentstore_fargate.layout import mark_settled, was_settled
from segmentstore_fargate.minute_metrics import MinuteReport
from segmentstore_fargate.registration import claim_free_container
from segmentstore_fargate.restart_policy import JOURNAL_FAILED
from segmentstore_fargate.wiring import SegmentStoreProcess

pytestmark = pytest.mark.anyio


def _status(port: int, page: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", page)
    status = connection.getresponse().status
    connection.close()
    return status


async def _problems(process: SegmentStoreProcess, config: StoreConfig) -> list[str]:
    """What the health check of the store's task finds."""
    return await asyncio.to_thread(probe.problems, [replace(config, health_port=process._health.port)])


async def test_a_store_has_its_lease_before_it_reads_its_journal(aws, config, monkeypatch):
    """And renews it meanwhile, so that no other store gives up a log that is being read."""
    seen: list[int | None] = []
    honest = Journal.start

    def slow(self: Journal) -> None:
        seen.append(aws.lease_version)
        while seen[0] is not None and (aws.lease_version or 0) < seen[0] + 3:
            aws.asked.clear()
            assert aws.asked.wait(WAIT_S), "the lease is not renewed while the journal is read"
        honest(self)

    monkeypatch.setattr(Journal, "start", slow)
    monkeypatch.setattr(heartbeat_module, "HEARTBEAT_EVERY_S", 0.001)
    process = SegmentStoreProcess(config, {})
    assert (await asyncio.wait_for(process.start(), WAIT_S)).endswith("containers=0,1")
    process.request_stop()
    await process.stop()
    (version,) = seen
    assert version is not None


async def test_an_outage_of_the_metadata_store_ends_no_process(aws, config, monkeypatch):
    """It waits, alive for whom asks, and serves when DynamoDB answers again."""

    aws.down = True
    process = SegmentStoreProcess(config, {})
    starting = asyncio.ensure_future(process.start())
    for _ in range(3):
        aws.asked.clear()
        assert await asyncio.to_thread(aws.asked.wait, WAIT_S)
    port = process._health.port
    assert await asyncio.to_thread(probe.dead_processes, [port]) == []
    assert await asyncio.to_thread(_status, port, "/ready") == 503
    assert not starting.done()
    aws.down = False
    assert (await asyncio.wait_for(starting, WAIT_S)).endswith("containers=0,1")
    assert await asyncio.to_thread(_status, port, "/ready") == 200
    await _until(lambda: was_settled(config.data_dir, 0))
    monkeypatch.setattr(process._store.gate, "extend", lambda until_s: None)  # a heartbeat may be under way
    process._store.gate.close()  # as when its lease cannot be renewed
    assert await _problems(process, config) == []
    assert await asyncio.to_thread(_status, port, "/ready") == 503
    process.request_stop()
    await process.stop()


@pytest.mark.parametrize(("listen_after_s", "accepts"), [(WAIT_S, False), (0.0, True)])
async def test_port_opens_after_containers_or_the_bound(aws, config, monkeypatch, listen_after_s, accepts):
    """Readers of the Rust client survive a closed port, but not WrongHost in answer to a table request."""
    begun, release = asyncio.Event(), asyncio.Event()
    honest = ContainerOpening.advance

    async def held(self: ContainerOpening) -> None:
        begun.set()
        await release.wait()
        await honest(self)

    monkeypatch.setattr(wiring, "LISTEN_AFTER_S", listen_after_s)
    monkeypatch.setattr(ContainerOpening, "advance", held)
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


async def _connect(port: int) -> None:
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def _running(config: StoreConfig) -> AsyncIterator[SegmentStoreProcess]:
    """A process that has not necessarily started when it is given."""
    process = SegmentStoreProcess(config, {})
    serving = asyncio.ensure_future(main_module.serve(process, config))
    try:
        await _until(lambda: process._health.port > 0)
        yield process
    finally:
        process.request_stop()
        assert await asyncio.wait_for(serving, WAIT_S) == 0


async def _all_in_tier_2(config: StoreConfig, directory: Path) -> None:
    """A store on another volume has served the containers, and has left."""
    former = replace(config, data_dir=directory, journal_dir=directory / "journal")
    async with _running(former) as process:
        await _until(lambda: process._serves)


async def test_a_store_is_well_once_it_has_settled(aws, config, tmp_path_factory, monkeypatch):
    """A deployment waits for it. From then on neither an outage nor a restart during one lets its task be replaced."""
    monkeypatch.setattr(wiring, "TICK_S", 0.001)
    for name in ("RETRY_FIRST_S", "RETRY_MAX_S"):
        monkeypatch.setattr(containers, name, 0.001)

    await _all_in_tier_2(config, tmp_path_factory.mktemp("former"))
    aws.objects.down = True
    async with _running(config) as process:
        await _until(lambda: process._started)
        (problem,) = await _problems(process, config)
        assert problem == "process 0 has not served all containers that are its own yet"
        aws.objects.down = False
        await _until(lambda: was_settled(config.data_dir, 0))
        assert await _problems(process, config) == []
        aws.down = True
        process._store.gate.close()
        assert await _problems(process, config) == []
        aws.down = False
    shutil.rmtree(config.journal_dir)  # so that S3 is needed
    aws.down = aws.objects.down = True
    async with _running(config) as process:
        aws.asked.clear()
        assert await asyncio.to_thread(aws.asked.wait, WAIT_S)
        assert await _problems(process, config) == [], "DynamoDB is away"
        aws.down = False
        await _until(lambda: process._started)
        assert await asyncio.to_thread(_status, process._health.port, "/ready") == 503
        assert await _problems(process, config) == [], "S3 is away"


async def test_a_store_that_waits_for_another_is_not_settled(aws, config, monkeypatch):
    """The map gives it a container that a living store has not handed over yet."""
    monkeypatch.setattr(wiring, "TICK_S", 0.001)
    records, now_ms = ClusterRecords(aws.metadata), SystemClock().now_ms()
    peer = registered(StoreLease("store-9", "127.0.0.1", 9, "local", 100, "disk-9", "", 3_600_000), None, now_ms)
    records.store.write(write_lease(peer, None))
    (free,) = records.containers([1])
    assert claim_free_container(records, free, ContainerClaim("store-9", "127.0.0.1", 9, "local"), now_ms) is not None
    given = ContainerMap(stores={0: "store-0", 1: "store-0"})

    records.store.write(write_map(given, None))
    async with _running(config) as process:
        await _until(lambda: process._started)
        await process._tick()
        assert process._membership is not None
        assert process._membership.missing == [1]
        assert "has not served all" in (await _problems(process, config))[0]
        assert await asyncio.to_thread(_status, process._health.port, "/health") == 200
        mark_settled(config.data_dir, 0)  # before a restart on this volume
        assert await _problems(process, config) == []


def test_each_process_of_a_store_has_to_settle(config):
    configs = [replace(config, process=process) for process in range(2)]
    config.data_dir.mkdir(exist_ok=True)
    for settled in range(3):
        found = probe.unsettled_processes(configs)
        assert found == [
            f"process {process} has not served all containers that are its own yet" for process in range(settled, 2)
        ]
        mark_settled(config.data_dir, settled)


async def test_a_volume_that_does_not_take_the_note_is_asked_again(aws, config, monkeypatch, caplog):
    refused: list[int] = []

    def failing(data_dir: Path, process: int) -> None:
        if len(refused) < 2:
            refused.append(process)
            raise OSError("no room")
        mark_settled(data_dir, process)

    monkeypatch.setattr(settled_module, "mark_settled", failing)

    async with _running(config):
        await _until(lambda: was_settled(config.data_dir, 0))
    assert refused == [0, 0]
    assert "event=settled_not_noted" in caplog.text


async def test_a_failed_journal_ends_the_task(aws, config):
    process = SegmentStoreProcess(config, {})
    await asyncio.wait_for(process.start(), WAIT_S)
    await _until(lambda: was_settled(config.data_dir, 0))
    process._journal._failure = UnavailableError("the disk is gone")
    (problem,) = await _problems(process, config)
    assert "failing" in problem
    process.request_stop()
    await process.stop()


async def test_a_changed_number_of_containers_is_refused(aws, config):
    """Before the store has a lease, and so before any container is claimed or given up."""
    check_fixed_setting(aws.metadata, FixedSetting.CONTAINERS, 8)

    process = SegmentStoreProcess(config, {})
    with pytest.raises(IllegalStateError, match="was started with 8 containers and is now configured for 2"):
        await asyncio.wait_for(process.start(), WAIT_S)
    await process._health.stop()
    assert aws.lease_version is None


async def test_journal_failure_without_waiting_client_ends_the_process(aws, config, monkeypatch):
    """It is started again on its volume, before the health check replaces the task and the volume with it."""

    def broken(_self: DiskJournalFile, _position: int, _parts: Sequence[bytes]) -> None:
        raise OSError("the disk is gone")

    process = SegmentStoreProcess(config, {})
    await asyncio.wait_for(process.start(), WAIT_S)
    monkeypatch.setattr(DiskJournalFile, "write_durably", broken)
    process._store.owned[0].container.log.ledger.truncate(10)  # is reported to none
    assert (await asyncio.wait_for(process.ended(), WAIT_S)) == JOURNAL_FAILED


@pytest.mark.parametrize(
    ("error", "code"), [(OSError("EIO"), JOURNAL_FAILED), (CorruptError("rot"), JOURNAL_FAILED), (FencedError("no"), 2)]
)
async def test_exit_code_tells_of_an_unusable_journal(aws, config, monkeypatch, error, code):
    """The supervisor counts these exits, and replaces the volume after the third if other stores have copies."""

    def unusable(_self: Journal) -> None:
        raise error

    monkeypatch.setattr(Journal, "start", unusable)
    assert await asyncio.wait_for(main_module._serve(config), WAIT_S) == code


async def test_a_store_that_waits_at_its_start_can_be_stopped(aws, config):
    aws.down = True
    process = SegmentStoreProcess(config, {})
    serving = asyncio.ensure_future(main_module.serve(process, config))
    assert await asyncio.to_thread(aws.asked.wait, WAIT_S)
    process.request_stop()
    assert (await asyncio.wait_for(serving, WAIT_S)) == 0


def test_threads_hand_the_interpreter_over_soon(monkeypatch: pytest.MonkeyPatch):
    """Else the event loop waits for the threads that write to S3, 5 ms at a time."""
    monkeypatch.setattr(main_module.os, "environ", {})
    before_s = sys.getswitchinterval()
    try:
        assert main_module.main() == 2  # it is not configured
        assert sys.getswitchinterval() == pytest.approx(main_module.SWITCH_INTERVAL_S)
    finally:
        sys.setswitchinterval(before_s)


async def test_s3_clients_of_a_process_share_a_session(aws, config, monkeypatch):
    """Each session reads the models of S3, a megabyte of JSON, and asks for credentials of its own."""
    sessions: list[object] = []
    monkeypatch.setattr(wiring, "s3_client", sessions.append)
    with_s3 = replace(config, classes=ContainerLayout(2, 1))
    SegmentStoreProcess(with_s3, {})._disk.close()
    tier_two, logs = sessions
    assert tier_two is logs is not None


async def test_a_store_reports_from_its_start_to_its_end(aws, config, monkeypatch, capsys):
    """As JSON only: on a laptop its log is text for people."""
    monkeypatch.setattr(MinuteReport, "rest_s", lambda _: 0.01)
    silent = SegmentStoreProcess(replace(config, metrics_service="headrace-store-1"), {})
    assert silent._minute_report is None
    silent._disk.close()
    config = replace(config, metrics_service="headrace-store-1", log_format="json")
    process = SegmentStoreProcess(config, {})
    lines: list[dict[str, float]] = []

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.01)
                reported = [line for line in capsys.readouterr().err.splitlines() if '"_aws"' in line]
                lines.extend(map(json.loads, reported))

    await asyncio.wait_for(process.start(), WAIT_S)
    await until(lambda: any(line["Ready"] == 1 for line in lines))
    process.request_stop()
    await process.stop()
    assert process._minute_report is not None
    assert not process._minute_report._task.is_running
    assert {line["Service"] for line in lines} == {"headrace-store-1"}
    assert {"Acks", "FlushLagSeconds", "UnflushedRatio", "Connections", "StorageErrors"} <= lines[0].keys()
