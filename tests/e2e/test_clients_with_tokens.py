"""Our clients on a stack that wants delegation tokens: programs are as without, and a revoked key disturbs none."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli import main
from headrace.client import (
    GroupStream,
    Headrace,
    ReaderGroupConfiguration,
    ScalingPolicy,
    StateForm,
    TableConfiguration,
    connect,
)
from headrace.local.running import running_stack
from headrace.spark.client_sink import open_sink
from headrace.spark.options import read_options
from headrace.spark.plans import open_plans
from headrace.spark.sink_commits import commit_batch
from headrace.spark.sink_tasks import TaskAttempt, write_task
from headrace.spark.task_reads import read_partition
from headrace.spark.write_options import write_options
from headrace.spark.written_batches import BatchName

EVENTS = [b"event %d" % number for number in range(200)]
KEYS = [f"key {number % 9}" for number in range(200)]
COUNTER: StateForm[int, int] = StateForm(
    lambda state, update: state + update, lambda state: b"%d" % state, int, lambda update: b"%d" % update, int
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    with running_stack(directory, segment_stores=2, tokens=True) as running:
        yield running["endpoints"]["http"]


@pytest.fixture
def client(url: str) -> Iterator[Headrace]:
    with connect(url) as headrace:
        yield headrace


@pytest.fixture
def scope(client: Headrace) -> str:
    name = f"tokens-{secrets.token_hex(4)}"
    client.admin.create_scope(name)
    client.admin.create_stream(name, "orders", scaling=ScalingPolicy.fixed(3))
    client.admin.create_stream(name, "single", scaling=ScalingPolicy.fixed(1))
    return name


def _write(client: Headrace, scope: str) -> None:
    with client.writer(scope, "orders") as writer:
        writer.write_batch(EVENTS, KEYS)


def _all_events(client: Headrace, scope: str, stream: str = "orders") -> list[bytes]:
    with client.reader(scope, stream, end=client.admin.stream_cut(scope, stream)) as reader:
        return sorted(event.event for event in reader)


def test_events_and_ranges(client: Headrace, scope: str, url: str) -> None:
    with client.writer(scope, "orders") as writer:
        writer.write_batch(EVENTS, KEYS)
        writer.note_time(1_000)
        writer.write(bytes(9 << 20), "a large event")
    assert _all_events(client, scope) == sorted([*EVENTS, bytes(9 << 20)])
    assert client.admin.delegation_tokens.demanded
    with connect(url) as other:
        ranges = other.segment_ranges(scope, "orders")
        events: list[bytes] = []
        for part in ranges:
            with other.range_reader(part, read_history_from="segment_store") as reader:
                events += [event.event for event in reader]
        assert sorted(events) == sorted([*EVENTS, bytes(9 << 20)])
        before = datetime.now(UTC) - timedelta(hours=1)
        assert set(other.stream_cut_at(scope, "orders", before).offsets.values()) == {0}
        with other.reader(scope, "orders") as reader:
            assert reader.read_batch(timeout_s=60) is not None
            assert reader.time_window().lower is None


def test_reader_groups(client: Headrace, scope: str, url: str) -> None:
    _write(client, scope)
    configuration = ReaderGroupConfiguration((GroupStream(scope, "orders"),))
    client.admin.reader_groups.create(scope, "billing", configuration)
    with connect(url) as other, other.reader_group(scope, "billing") as group:
        assert group.lag().events_unread == len(EVENTS)
        events: list[bytes] = []
        with group.reader("one") as reader:
            while len(events) < len(EVENTS):
                batch = reader.read_batch(timeout_s=60)
                assert batch is not None
                events += batch.events
        assert sorted(events) == sorted(EVENTS)


@pytest.mark.nightly
def test_transactions(client: Headrace, scope: str, url: str) -> None:
    with connect(url) as other, other.transactional_writer(scope, "orders") as writer:
        kept, dropped = writer.begin(), writer.begin()
        for event, key in zip(EVENTS, KEYS, strict=True):
            kept.write(event, key)
            dropped.write(b"dropped", key)
        kept.commit(wait=True)
        dropped.abort()
    assert _all_events(client, scope) == sorted(EVENTS)


@pytest.mark.nightly
def test_tables(client: Headrace, scope: str, url: str) -> None:
    client.admin.tables.create(scope, "prices", TableConfiguration(2, 4, 0))
    with connect(url) as other, other.key_value_table(scope, "prices") as table:
        version = table.put(b"aaaa", b"1")
        table.replace(b"aaaa", b"2", version)
        table.put(b"bbbb", b"3")
        table.remove(b"bbbb")
        entry = table.get(b"aaaa")
        assert entry is not None
        assert (entry.value, [entry.value for entry in table.entries()]) == (b"2", [b"2"])
    with connect(url) as reading, reading.key_value_table(scope, "prices") as table:
        assert [entry.key.primary for entry in table.entries()] == [b"aaaa"]


@pytest.mark.nightly
def test_byte_streams(client: Headrace, scope: str, url: str) -> None:
    with connect(url) as other, other.byte_stream(scope, "single") as stream:
        with stream.writer() as writer:
            writer.write(b"0123456789")
        assert stream.tail_offset() == 10
        stream.truncate_data_before(3)
        with stream.reader() as reader:
            assert reader.read(7) == b"3456789"


def test_revisioned_streams_and_states(client: Headrace, scope: str, url: str) -> None:
    with connect(url) as other, other.state_synchronizer(scope, "single", COUNTER) as state:
        state.initialize(5)
        for _ in range(3):
            state.update(lambda current: [current])
        assert state.fetch() == 40
        state.compact()
    with connect(url) as reading, reading.state_synchronizer(scope, "single", COUNTER) as state:
        assert state.fetch() == 40


def test_spark_tasks(client: Headrace, scope: str, url: str) -> None:
    """What they do, without Spark: a batch is written in two tasks, committed, planned, and read in tasks."""
    where = {"controller": url, "scope": scope, "stream": "orders"}
    writing = write_options(where, streaming=True)
    sink, batch = open_sink(writing), BatchName.of_query("query", 0, None)
    rows = [
        pa.RecordBatch.from_arrays([pa.array(half, pa.binary())], ["event"]) for half in (EVENTS[:100], EVENTS[100:])
    ]
    reports = [
        write_task(sink, writing, TaskAttempt(batch, number, number), [half], lambda: False)
        for number, half in enumerate(rows)
    ]
    commit_batch(sink, writing, batch, reports, lambda _: None)
    reading = read_options(where)
    with closing(open_plans(reading)) as plans:
        partitions = plans.batch_partitions()
    assert all(planned.token is not None for part in partitions for planned in part if planned.listing is None)
    read = [found for part in partitions for found in read_partition(reading, part)]
    assert sorted(event for found in read for event in found.column("event").to_pylist()) == sorted(EVENTS)


def _revoke_the_key(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Makes a new key, and the one that signs invalid."""
    capsys.readouterr()
    assert main(["token-key", "list", "--file", str(keys)]) == 0
    key_id = capsys.readouterr().out.splitlines()[1].split()[0]
    assert main(["token-key", "rotate", "--file", str(keys)]) == 0
    assert main(["token-key", "revoke", key_id, "--file", str(keys)]) == 0


def test_a7_revoking_a_key_disturbs_no_traffic(
    client: Headrace, scope: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the writer and the reader have other tokens. All events are stored once, and in order."""

    def held() -> set[Any]:
        return {held.token for held in list(client._core.admin.delegation_tokens._held.values())}

    read: list[int] = []
    with client.writer(scope, "single") as writer, client.reader(scope, "single") as reader:
        events, number = iter(reader), 0
        old: set[Any] = set()
        while not old or old & held():
            for _ in range(20):
                writer.write(b"%d" % number)
                number += 1
            writer.flush()
            read += [int(next(events).event) for _ in range(20)]
            if not old:
                old = held()
                _revoke_the_key(directory / "data" / "token-keys.json", capsys)
    assert read == list(range(number))
    assert len(old) == 1
