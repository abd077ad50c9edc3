"""A deployment is restored to an earlier time, with real store processes: what was in tier 2 then is there again.

Between that time and the restore streams are written, scaled and deleted, and stores delete what is unused. The restore
is carried out by the command, as the manual has it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import killed_restore
import pytest
from held_reader import held_reader
from killed_restore import KILLED
from restoring_stack import RestoringStack, restoring_stack

from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.adapters.dynamodb.record_item import create_table
from headrace.adapters.s3.chunk_storage import S3ChunkStorage
from headrace.adapters.s3.client import s3_client
from headrace.adapters.system_clock import SystemClock
from headrace.cli import main
from headrace.client import (
    GroupStream,
    Headrace,
    IllegalStateError,
    ReaderGroupConfiguration,
    RetentionMode,
    ScalingPolicy,
    TableConfiguration,
    UnavailableError,
    connect,
)
from headrace.local.resources import aws_client, aws_environment
from headrace.metadata.reader_group import ReaderGroupRecords
from headrace.metadata.segment_ends import SegmentEnds
from headrace.model.log_classes import LogClass
from headrace.restore.applying import container_layout
from headrace.restore.groups import GroupStates

SCOPE = "drill"
COPY = "copy"
FAST = {"HEADRACE_GARBAGE_EVERY_S": "1", "HEADRACE_GARBAGE_GRACE_S": "1", "HEADRACE_FLUSH_AGE_S": "0.3"}
SLOW = {"HEADRACE_FLUSH_AGE_S": "6"}
EVENTS_OF_GROUP = 10
HELD = "held"
"""A group whose reader never leaves it."""
KEYS = 5
EVENTS = 20
WAIT_S = 90.0
POLL_S = 0.25

Written = dict[str, list[int]]
"""Numbers by routing key, in their order."""


@dataclass
class Drill:
    """The stack, its client, and what its streams had at the time of the copy."""

    stack: RestoringStack
    headrace: Headrace
    streams: list[str]
    then: dict[str, Written] = field(default_factory=dict)
    at_ms: int = 0
    next_number: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def some(self, first: int = 0) -> list[str]:
        """About a dozen streams, or half of fewer ones, from the one with this number on."""
        return self.streams[first :: max(2, len(self.streams) // 12)]

    def write(self, stream: str, count: int = EVENTS) -> None:
        """Write events with ascending numbers for each key."""
        first = self.next_number[stream]
        with self.headrace.writer(SCOPE, stream) as writer:
            for number in range(first, first + count):
                for key in range(KEYS):
                    writer.write(f"{key} {number}".encode(), routing_key=str(key))
        self.next_number[stream] += count

    def commit(self, stream: str) -> None:
        """Write one number for each key in a transaction."""
        number = self.next_number[stream]
        with self.headrace.transactional_writer(SCOPE, stream) as writer:
            transaction = writer.begin()
            for key in range(KEYS):
                transaction.write(f"{key} {number}".encode(), routing_key=str(key))
            transaction.commit(wait=True)
        self.next_number[stream] += 1

    def scale(self, stream: str) -> None:
        """Split the first segment."""
        segment = self.headrace.admin.segments(SCOPE, stream)[0]
        low, high = segment.key_range.low, segment.key_range.high
        middle = (low + high) / 2
        ranges = [(low, middle), (middle, high)]
        self.headrace.admin.scale_stream(SCOPE, stream, seal=[segment.segment_id], ranges=ranges)

    def read(self, stream: str) -> Written:
        """All events from the head to the tail, by key."""
        numbers_by_key: Written = defaultdict(list)
        tail = self.headrace.admin.stream_cut(SCOPE, stream, at="latest")
        with self.headrace.reader(SCOPE, stream, start="earliest", end=tail) as reader:
            for event in reader:
                key, number = event.event.decode().split()
                numbers_by_key[key].append(int(number))
        return dict(numbers_by_key)

    def await_tier_2(self) -> None:
        """Wait until tier 2 has all bytes of all streams."""
        _until(lambda: all(map(self._is_flushed, self.streams)))

    def _is_flushed(self, stream: str) -> bool:
        tail = self.headrace.admin.stream_cut(SCOPE, stream, at="latest")
        ends = SegmentEnds(DynamoMetadataStore(self.stack.state["table"]))
        return all(ends.end(SCOPE, stream, segment) >= offset for segment, offset in tail.positions)


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)


def _versions(state: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """All versions and all delete markers of the bucket."""
    pages = list(
        aws_client("s3", state["endpoints"]["aws"])
        .get_paginator("list_object_versions")
        .paginate(Bucket=state["bucket"])
    )
    return (
        [each for page in pages for each in page.get("Versions", ())],
        [each for page in pages for each in page.get("DeleteMarkers", ())],
    )


def _copy_table(state: dict[str, Any], name: str) -> None:
    dynamodb = aws_client("dynamodb", state["endpoints"]["aws"])
    create_table(name, dynamodb)
    for page in dynamodb.get_paginator("scan").paginate(TableName=state["table"], ConsistentRead=True):
        for item in page["Items"]:
            dynamodb.put_item(TableName=name, Item=item)


def _restore(state: dict[str, Any], *arguments: str) -> list[str]:
    return ["restore", *arguments, "--metadata-table", state["table"], "--bucket", state["bucket"]]


def _apply_arguments(drill: Drill) -> list[str]:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(drill.at_ms / 1000))
    state = drill.stack.state
    return _restore(state, "apply", "--table", COPY, "--at", at, "--yes", "--functions-stopped")


def _prepare(drill: Drill) -> None:
    """What the deployment has at the time of the copy."""
    headrace = drill.headrace
    headrace.admin.create_scope(SCOPE, exist_ok=True)
    for number, stream in enumerate(drill.streams):
        headrace.admin.create_stream(SCOPE, stream, scaling=ScalingPolicy.fixed(1 + number % 3), exist_ok=True)
        drill.write(stream)
    for stream in drill.some():
        drill.scale(stream)
        drill.write(stream)
    for stream in drill.some():
        drill.commit(stream)


def _use_afterwards(drill: Drill) -> None:
    """What a restored deployment must still do with its streams."""
    for stream in drill.some():
        drill.write(stream, 3)
    drill.scale(drill.streams[0])
    drill.write(drill.streams[0], 3)


@pytest.mark.parametrize(
    ("stores", "streams", "s3_containers"), [(1, 12, 0), pytest.param(3, 100, 2, marks=pytest.mark.nightly)]
)
def test_restored_deployment_has_what_it_had(
    tmp_path: Path, stores: int, streams: int, s3_containers: int, monkeypatch: pytest.MonkeyPatch
):
    with (
        restoring_stack(tmp_path, segment_stores=stores, s3_containers=s3_containers, environment=FAST) as stack,
        connect(stack.url) as headrace,
    ):
        for name, value in aws_environment(stack.state["endpoints"]["aws"]).items():
            monkeypatch.setenv(name, value)
        drill = Drill(stack, headrace, [f"stream-{number}" for number in range(streams)])
        if s3_containers:
            headrace.admin.create_scope(SCOPE)
            headrace.admin.create_stream(SCOPE, "in-s3", scaling=ScalingPolicy.fixed(3), acknowledged_by=LogClass.S3)
            drill.write("in-s3")
            drill.streams.append("in-s3")
        _prepare(drill)
        _prepare_more(drill)
        with held_reader(stack.url, SCOPE, HELD, "worker", EVENTS_OF_GROUP):
            _begin_checkpoint(drill)
            left_open = _copy_with_open_transaction(drill)
        numbers = dict(drill.next_number)
        _use_before_the_restore(drill)
        _until(lambda: any("/packed/" in each["Key"] for each in _versions(stack.state)[1]))
        assert main(_apply_arguments(drill)) == 1, "stores are running"
        stack.stop_work()
        before, _ = _versions(stack.state)
        _until(lambda: main(_apply_arguments(drill)) == 0)
        assert main(_restore(stack.state, "verify")) == 0
        after, _ = _versions(stack.state)
        assert {each["VersionId"] for each in before} <= {each["VersionId"] for each in after}
        stack.start_work()

        assert "too-late" not in {each.stream for each in headrace.admin.list_streams(SCOPE)}
        assert {stream: drill.read(stream) for stream in drill.streams} == drill.then
        with headrace.key_value_table(SCOPE, "stock") as table:
            entry = table.get(b"bern")
            assert entry is not None
            assert entry.value == b"then"
        with contextlib.suppress(IllegalStateError):  # its lease may have run out
            headrace.admin.transactions.commit(SCOPE, drill.streams[3], left_open)  # its last events may be lost
        _until(lambda: headrace.admin.transactions.get(SCOPE, drill.streams[3], left_open).state == "ABORTED")
        assert _read_in_group(drill) == EVENTS_OF_GROUP
        drill.next_number.update(numbers)
        _use_afterwards(drill)
        drill.write(drill.streams[5], 3)
        _all_is_delivered(drill, [drill.streams[4], drill.streams[5]])
        for stream in drill.some():
            for key, found in drill.read(stream).items():
                then = drill.then[stream].get(key, [])
                assert found == [*then, *range(numbers[stream], drill.next_number[stream])]
        names = [each["Key"] for each in _versions(stack.state)[0]]
        assert len(names) == len(set(names)), "a name was used twice"


def _prepare_more(drill: Drill) -> None:
    """A truncated stream, a table, and a reader group."""
    headrace, truncated = drill.headrace, drill.streams[1]
    headrace.admin.truncate_stream(SCOPE, truncated, headrace.admin.stream_cut(SCOPE, truncated, at="latest"))
    drill.write(truncated)
    headrace.admin.tables.create(SCOPE, "stock", TableConfiguration(partition_count=2, primary_key_length=4))
    with headrace.key_value_table(SCOPE, "stock") as table:
        table.put(b"bern", b"then")
    reads = ReaderGroupConfiguration((GroupStream(SCOPE, drill.streams[4]),), RetentionMode.AUTOMATIC)
    headrace.admin.reader_groups.create(SCOPE, "mail", reads)
    assert _read_in_group(drill) == EVENTS_OF_GROUP
    both = ReaderGroupConfiguration(tuple(GroupStream(SCOPE, each) for each in drill.streams[4:6]))
    headrace.admin.reader_groups.create(SCOPE, HELD, both)


def _begin_checkpoint(drill: Drill) -> None:
    """A checkpoint that waits for the reader, which will never take part in it."""
    with drill.headrace.reader_group(SCOPE, HELD) as group, pytest.raises(UnavailableError, match="not complete"):
        group.checkpoint("waiting", timeout_s=0.1)
    _until(lambda: _tiered_readers(drill) == ("worker",))


def _tiered_readers(drill: Drill) -> tuple[str, ...]:
    """The readers of the group as tier 2 knows it, with the checkpoint that waits for them."""
    store = DynamoMetadataStore(drill.stack.state["table"])
    chunks = S3ChunkStorage(drill.stack.state["bucket"], s3_client())
    try:
        states = GroupStates(store, chunks, SystemClock(), container_layout(store))
        found = states.load(ReaderGroupRecords(store).get(SCOPE, HELD).group)
    finally:
        chunks.close()
    return found.state.readers if found is not None and found.state.checkpoints.is_ongoing else ()


def _all_is_delivered(drill: Drill, streams: list[str]) -> None:
    """The reader of before had no position in the group, so its successor gets all events, those of now included."""
    wanted: Counter[str] = Counter()
    for stream in streams:
        wanted.update(f"{key} {number}" for key, numbers in drill.read(stream).items() for number in numbers)
    with drill.headrace.reader_group(SCOPE, HELD) as group, group.reader("worker") as reader:
        read = Counter(event.event.decode() for event in itertools.islice(reader, wanted.total()))
    assert read == wanted


def _copy_with_open_transaction(drill: Drill) -> str:
    """Copy the table while a transaction is open, which is committed afterwards. Returns its id."""
    with drill.headrace.transactional_writer(SCOPE, drill.streams[3]) as writer:
        left_open = writer.begin()
        left_open.write(b"0 -1", routing_key="0")
        left_open.flush()
        drill.await_tier_2()
        drill.then = {stream: drill.read(stream) for stream in drill.streams}
        _copy_table(drill.stack.state, COPY)
        drill.at_ms = int(time.time() * 1000)
        left_open.commit(wait=True)
        return left_open.id


def _use_before_the_restore(drill: Drill) -> None:
    """What happens after the copy, and is discarded."""
    headrace, deleted = drill.headrace, drill.streams[2]
    with headrace.key_value_table(SCOPE, "stock") as table:
        table.put(b"bern", b"later")
    for stream in drill.some(1):
        drill.scale(stream)
        drill.write(stream)
    drill.commit(drill.streams[0])
    headrace.admin.seal_stream(SCOPE, deleted)
    headrace.admin.delete_stream(SCOPE, deleted)
    headrace.admin.create_stream(SCOPE, "too-late", scaling=ScalingPolicy.fixed(1))
    drill.write("too-late")


def _read_in_group(drill: Drill) -> int:
    """Read some events in the reader group, and leave it."""
    with drill.headrace.reader_group(SCOPE, "mail") as group, group.reader("worker") as reader:
        return sum(1 for _ in itertools.islice(reader, EVENTS_OF_GROUP))


KILLS = (1, 2, 3, 12, 30, 60, 90)
"""The changes before which the process of a restore ends, each in a run of its own."""


def test_killed_restore_discards_what_only_logs_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tier 2 is behind at the time of the copy, and the process of the restore is killed again and again."""
    with restoring_stack(tmp_path, segment_stores=1, environment=SLOW) as stack, connect(stack.url) as headrace:
        for name, value in aws_environment(stack.state["endpoints"]["aws"]).items():
            monkeypatch.setenv(name, value)
        drill = Drill(stack, headrace, [f"stream-{number}" for number in range(4)])
        _prepare(drill)
        drill.await_tier_2()
        safe = {stream: drill.read(stream) for stream in drill.streams}
        for stream in drill.streams:
            drill.write(stream)
        drill.scale(drill.streams[1])
        drill.write(drill.streams[1])
        drill.commit(drill.streams[2])
        headrace.admin.create_stream(SCOPE, "young", scaling=ScalingPolicy.fixed(2))
        drill.streams.append("young")
        drill.write("young")
        with _stopped_stores(stack.state):
            _copy_table(stack.state, COPY)
            drill.at_ms = int(time.time() * 1000)
        known = dict(drill.next_number)
        for stream in drill.streams:
            drill.scale(stream)
            drill.write(stream)
        headrace.admin.seal_stream(SCOPE, drill.streams[0])
        headrace.admin.delete_stream(SCOPE, drill.streams[0])
        stack.stop_work()
        kept = {each["VersionId"] for each in _versions(stack.state)[0]}
        codes = [_killed_apply(drill, KILLS[0], until_begun=True), *(_killed_apply(drill, each) for each in KILLS[1:])]
        assert set(codes) <= {0, KILLED}
        if 0 not in codes:
            assert main(_apply_arguments(drill)) == 0
        assert main(_restore(stack.state, "verify")) == 0
        assert kept <= {each["VersionId"] for each in _versions(stack.state)[0]}
        stack.start_work()

        found = {stream: drill.read(stream) for stream in drill.streams}
        for stream in drill.streams:
            for key, numbers in found[stream].items():
                assert numbers == list(range(len(numbers)))
                assert len(safe.get(stream, {}).get(key, [])) <= len(numbers) <= known[stream]
        drill.next_number.update(known)
        _use_afterwards(drill)
        for stream in drill.some():
            for key, numbers in drill.read(stream).items():
                before = found[stream].get(key, [])
                assert numbers == [*before, *range(known[stream], drill.next_number[stream])]
        names = [each["Key"] for each in _versions(stack.state)[0]]
        assert len(names) == len(set(names)), "a name was used twice"


@contextlib.contextmanager
def _stopped_stores(state: dict[str, Any]) -> Iterator[None]:
    """Stores stand still, so that the copy is of one moment."""
    pids = [store["pid"] for store in state["segmentStores"]]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _killed_apply(drill: Drill, number: int, *, until_begun: bool = False) -> int:
    """The exit code of a restore that is killed at a change. With `until_begun` it waits for the leases to run out."""
    program = str(Path(killed_restore.__file__))
    command = [sys.executable, program, str(number), *_apply_arguments(drill)]
    codes: list[int] = []

    def has_begun() -> bool:
        codes.append(subprocess.run(command, check=False).returncode)
        return codes[-1] != 1

    if until_begun:
        _until(has_begun)
    else:
        has_begun()
    return codes[-1]
