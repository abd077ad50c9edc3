"""The process around the engine: configuration, claims, health."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import stat
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

from headrace.adapters import leaf_secrets, log_lines, token_keys
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.deployment_defaults import TOKENS_VARIABLE
from headrace.metadata.cluster_records import claim_sort, decode_claim
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import InvalidRequestError, UnavailableError
from headrace.ports.metadata_store import Key
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from segmentstore_fargate import config, health, probe
from segmentstore_fargate.config import read_config
from segmentstore_fargate.health import HealthServer, json_answer
from segmentstore_fargate.layout import mark_settled, volume_id
from segmentstore_fargate.registration import (
    TASK_ARN_LABEL,
    TASK_REVISION_LABEL,
    OwnTask,
    claim_if_unchanged,
    own_task,
)
from segmentstore_fargate.task_identity import with_store_id

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = {
    "HEADRACE_STORE_ID": "store-1",
    "HEADRACE_DATA_DIR": "/data",
    "HEADRACE_METADATA_TABLE": "table",
    "HEADRACE_CHUNK_BUCKET": "bucket",
}


def test_a_store_takes_every_nth_container():
    config = read_config({**REQUIRED, "HEADRACE_STORE_INDEX": "1", "HEADRACE_STORE_COUNT": "3"})
    assert config.containers == (1, 4, 7)
    assert config.listen_port == 0
    assert config.listen_host == "127.0.0.1"


def test_what_is_set_is_what_counts():
    settings = {
        "HEADRACE_OBJECT_BYTES": "1",
        "HEADRACE_STORAGE_RETRY_MAX_S": "2.5",
        "HEADRACE_SNAPSHOT_EVERY_S": "3",
        "HEADRACE_GARBAGE_EVERY_S": "4",
        "HEADRACE_GARBAGE_GRACE_S": "10",
        "HEADRACE_IDLE_SEGMENT_S": "5",
        "HEADRACE_SEGMENTS_KEPT": "6",
        "HEADRACE_COMPACTION_BYTES_PER_S": "0",
        "HEADRACE_TABLE_MEMORY_BYTES": str(7 << 20),
        "HEADRACE_TABLE_CACHE_BYTES": str(8 << 20),
        "HEADRACE_CONNECTIONS_MAX": "9",
        "HEADRACE_CONNECTIONS_PER_ADDRESS_MAX": "8",
        "HEADRACE_RESERVED_NETWORKS": "10.0.0.0/25, 10.0.1.0/25",
        "HEADRACE_ZONE_NETWORKS": "use1-az1=10.0.0.0/25",
    }
    found = read_config({**REQUIRED, **settings})
    limits, tables = found.limits, found.table_limits
    assert (limits.object_bytes_max, limits.retry_max_s, limits.snapshot_every_s) == (1, 2.5, 3)
    assert (limits.sweep_every_s, limits.object_grace_s) == (4, 10)
    assert (limits.idle_segment_s, limits.idle_segments_kept, limits.compaction_bytes_per_s) == (5, 6, 0)
    assert (tables.all_tails_memory_bytes, tables.cached_blocks_bytes) == (7 << 20, 8 << 20)
    assert (found.connections_max, found.connections_per_address_max) == (9, 8)
    assert found.reserved_networks == (IPv4Network("10.0.0.0/25"), IPv4Network("10.0.1.0/25"))
    assert found.zone_networks.zone_of("10.0.0.1") == "use1-az1"
    usual = read_config(REQUIRED)
    assert (usual.limits, usual.table_limits) == (StorageLimits(), TableLimits())


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_missing_variable_is_named(missing):
    with pytest.raises(InvalidRequestError, match=f"{missing} is missing"):
        read_config({name: value for name, value in REQUIRED.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_CACHE_BYTES", "1000"),
        ("HEADRACE_CACHE_BYTES", "lots"),
        ("HEADRACE_STORE_INDEX", "1"),
        ("HEADRACE_LISTEN_PORT", "65536"),
        ("HEADRACE_HEALTH_PORT", "65536"),
        ("HEADRACE_CONTAINER_COUNT", "0"),
        ("HEADRACE_FLUSH_AGE_S", "-1"),
        ("HEADRACE_FLUSH_AGE_S", "nan"),
        ("HEADRACE_LOG_LEVEL", "LOUD"),
        ("HEADRACE_OBJECT_BYTES", "0"),
        ("HEADRACE_SEGMENTS_KEPT", "-1"),
        ("HEADRACE_TABLE_MEMORY_BYTES", "1"),
        ("HEADRACE_CONNECTIONS_MAX", "0"),
        ("HEADRACE_CONNECTIONS_PER_ADDRESS_MAX", "0"),
        ("HEADRACE_RESERVED_NETWORKS", "10.0.0.1/25"),
        ("HEADRACE_ZONE_NETWORKS", "10.0.0.0/25"),
        ("HEADRACE_PROCESSES", "0"),
        ("HEADRACE_PROCESSES", "9"),
        ("HEADRACE_PROCESS", "1"),
        ("HEADRACE_CAPACITY", "0"),
        ("HEADRACE_TAKE_OVER_AFTER_S", "soon"),
    ],
)
def test_a_wrong_variable_is_named(name, value):
    with pytest.raises(InvalidRequestError, match=name):
        read_config({**REQUIRED, name: value})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"HEADRACE_LISTEN_PORT": "100", "HEADRACE_HEALTH_PORT": "101"}, "HEADRACE_HEALTH_PORT"),
        ({"HEADRACE_LISTEN_PORT": "65535"}, "HEADRACE_LISTEN_PORT"),
        ({"HEADRACE_CACHE_BYTES": str(100 << 20)}, "HEADRACE_CACHE_BYTES"),
    ],
)
def test_what_is_too_little_for_two_processes_is_named(settings, named):
    read_config({**REQUIRED, **settings})
    with pytest.raises(InvalidRequestError, match=named):
        read_config({**REQUIRED, **settings, "HEADRACE_PROCESSES": "2"})


async def test_the_probe_asks_every_process():
    servers = [HealthServer({"/health": PAGES[page]}) for page in ("/well", "/ill")]
    for server in servers:
        await server.start("127.0.0.1", 0)
    well, ill = (server.port for server in servers)
    assert await asyncio.to_thread(probe.dead_processes, [well]) == []
    found = await asyncio.to_thread(probe.dead_processes, [well, ill])
    for server in servers:
        await server.stop()
    assert found == [f'port {ill}: {{"status": "starting"}}']
    (gone,) = await asyncio.to_thread(probe.dead_processes, [well])
    assert "ConnectionRefusedError" in gone


async def test_a_settled_store_whose_process_restarts_is_not_replaced(tmp_path):
    """Its volume may be needed. The supervisor decides that, and ends the task if it is not."""
    server = HealthServer({"/health": PAGES["/ill"]})
    await server.start("127.0.0.1", 0)
    config = replace(read_config(REQUIRED), data_dir=tmp_path, health_port=server.port)
    mark_settled(tmp_path, 0)
    assert await asyncio.to_thread(probe.problems, [config]) == [f'port {server.port}: {{"status": "starting"}}']
    await server.stop()
    assert await asyncio.to_thread(probe.problems, [config]) == []
    unsettled = replace(config, process=1)
    assert len(await asyncio.to_thread(probe.problems, [unsettled])) == 2


def test_a_probe_that_is_not_told_a_port_finds_a_problem(monkeypatch, capsys):
    for name, value in REQUIRED.items():
        monkeypatch.setenv(name, value)
    assert probe.main() == 1
    assert "HEADRACE_HEALTH_PORT" in capsys.readouterr().err


def test_the_manual_and_the_module_list_every_variable():
    documented = config.__doc__.partition("| variable |")[2].partition("\n\n")[0]
    manual = (ROOT / "docs" / "operating" / "configuration.md").read_text()
    assert documented in manual, "copy the table of segmentstore_fargate/config.py"
    tree = syntax_tree(Path(config.__file__).read_text())
    read = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert set(re.findall(r"HEADRACE_\w+", documented)) == {
        *(name for name in read if re.fullmatch(r"HEADRACE_\w+", name)),
        *(TOKENS_VARIABLE, token_keys.KEYS_FILE, token_keys.KEYS_SECRET),
        *(leaf_secrets.MODE, leaf_secrets.FILE, leaf_secrets.SECRET, leaf_secrets.NAME),
        *(log_lines.LEVEL_VARIABLE, log_lines.FORMAT_VARIABLE),
    }


def test_each_claim_deposes_the_one_before():
    store = MemoryMetadataStore()
    first = ContainerClaim("store-0", "10.0.0.1", 1, "local")
    second = ContainerClaim("store-1", "10.0.0.2", 2, "local")
    assert [claim_if_unchanged(store, 3, first, None), claim_if_unchanged(store, 3, second, 0)] == [0, 1]
    record = store.get(Key(CLUSTER_PARTITION, claim_sort(3)))
    assert record is not None
    assert (decode_claim(record.body), record.version) == (second, 1)


def test_one_of_two_concurrent_claims_of_a_container_wins():
    store = MemoryMetadataStore()
    first = ContainerClaim("store-0", "10.0.0.1", 1, "local")
    second = ContainerClaim("store-1", "10.0.0.2", 2, "local")
    assert [claim_if_unchanged(store, 3, first, None), claim_if_unchanged(store, 3, second, None)] == [0, None]
    assert [claim_if_unchanged(store, 3, second, 0), claim_if_unchanged(store, 3, first, 0)] == [1, None]


async def test_a_task_knows_itself_on_ecs_only():
    assert own_task({}) is None
    told = {
        "Networks": [{"IPv4Addresses": ["10.0.0.7"]}],
        "Labels": {TASK_ARN_LABEL: "arn:aws:ecs:r:1:task/headrace/x", TASK_REVISION_LABEL: "12"},
    }
    assert await _own_task_of(told) == OwnTask("10.0.0.7", "arn:aws:ecs:r:1:task/headrace/x", 12)
    with pytest.raises(UnavailableError):
        await _own_task_of({"Networks": []})


TASK = OwnTask("10.0.0.7", "arn:aws:ecs:us-east-1:1:task/headrace/0a1b2c3d4e5f60718293a4b5c6d7e8f9", 3)
ON_ECS = {"ECS_CONTAINER_METADATA_URI_V4": "http://169.254.170.2/v4/x", "HEADRACE_ZONE": "use1-az4"}


def test_each_task_is_a_store_of_its_own():
    named = with_store_id(ON_ECS, lambda _: TASK)
    assert named == {**ON_ECS, "HEADRACE_STORE_ID": "use1-az4-0a1b2c3d"}


def test_a_store_is_named_when_ecs_tells_its_task():
    answers, pauses = [UnavailableError("not yet"), UnavailableError("not yet"), TASK], []

    def ask(_environment: object) -> OwnTask:
        answer = answers.pop(0)
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    assert with_store_id(ON_ECS, ask, pauses.append)["HEADRACE_STORE_ID"] == "use1-az4-0a1b2c3d"
    assert len(pauses) == 2


@pytest.mark.parametrize("environment", [{}, {"HEADRACE_STORE_ID": "store-0"}, {**ON_ECS, "HEADRACE_STORE_ID": "s"}])
def test_a_store_keeps_the_name_that_it_was_given(environment):
    assert with_store_id(environment, lambda _: pytest.fail("ECS was asked")) == environment


def test_the_probe_needs_no_name_and_does_not_ask_ecs(monkeypatch, capsys, tmp_path):
    """It would fail while ECS does not answer, and the task would be replaced."""
    unnamed = {name: value for name, value in REQUIRED.items() if name != "HEADRACE_STORE_ID"}
    for name, value in {**unnamed, **ON_ECS, "HEADRACE_DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HEADRACE_STORE_ID", raising=False)
    assert probe.main() == 1
    shown = capsys.readouterr().err
    assert "HEADRACE_STORE_ID" not in shown
    assert "has not served" in shown


async def _own_task_of(told: dict[str, object]) -> OwnTask | None:
    server = HealthServer({"/v4": lambda: json_answer(True, told)})
    await server.start("127.0.0.1", 0)
    try:
        variable = {"ECS_CONTAINER_METADATA_URI_V4": f"http://127.0.0.1:{server.port}/v4"}
        return await asyncio.to_thread(own_task, variable)
    finally:
        await server.stop()


def test_a_volume_keeps_its_name(tmp_path):
    assert [volume_id(tmp_path, "first"), volume_id(tmp_path, "second")] == ["first", "first"]
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["volume-id"]


def test_name_of_a_volume_is_durable_before_it_is_used(tmp_path, monkeypatch):
    """Else a power failure leaves an empty name, or none: the store would wait for the lease of its former process."""
    steps: list[str] = []
    honest_sync, honest_rename = os.fsync, os.rename

    def sync(descriptor: int) -> None:
        steps.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        honest_sync(descriptor)

    def rename(source: Path, target: Path) -> None:
        steps.append("rename")
        honest_rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    assert volume_id(tmp_path, "first") == "first"
    assert steps == ["sync file", "rename", "sync directory"]


def test_volume_whose_name_was_lost_gets_another_one(tmp_path):
    (tmp_path / "volume-id").touch()
    assert [volume_id(tmp_path, "first"), volume_id(tmp_path, "second")] == ["first", "first"]


PAGES = {
    "/well": lambda: json_answer(True, {"containers": [1]}),
    "/ill": lambda: json_answer(False, {"status": "starting"}),
}


async def _ask(request: bytes) -> bytes:
    server = HealthServer(PAGES)
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = b""
    with suppress(ConnectionResetError):  # closed with bytes of ours unread
        answer = await reader.read()
    writer.close()
    await server.stop()
    return answer


@pytest.mark.parametrize(
    ("request_bytes", "status", "content"),
    [
        (b"GET /well HTTP/1.1\r\n\r\n", b"200", b'{"containers": [1]}'),
        (b"GET /well?a=b HTTP/1.1\r\n\r\n", b"200", b'{"containers": [1]}'),
        (b"GET /ill HTTP/1.1\r\n\r\n", b"503", b'{"status": "starting"}'),
        (b"HEAD /well HTTP/1.1\r\n\r\n", b"200", b""),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404", b'{"error": "only GET /ill, /well are served here"}'),
        (b"POST /well HTTP/1.1\r\n\r\n", b"404", b'{"error": "only GET /ill, /well are served here"}'),
        (b"\xff\xfe\r\n\r\n", b"404", b'{"error": "only GET /ill, /well are served here"}'),
    ],
)
async def test_pages(request_bytes, status, content):
    head, _, body = (await _ask(request_bytes)).partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert body == content


async def test_a_request_that_is_too_long_is_not_answered():
    assert await _ask(b"GET /well HTTP/1.1\r\nx: " + b"y" * health.REQUEST_BYTES_MAX) == b""


async def test_few_may_ask_at_once(monkeypatch):
    monkeypatch.setattr(health, "CONNECTIONS_MAX", 0)
    assert await _ask(b"GET /well HTTP/1.1\r\n\r\n") == b""
