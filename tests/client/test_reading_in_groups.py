"""Readers of a group over everything real but AWS: who reads what, once, across scales, deaths and resets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from itertools import chain

import pytest
from real_cluster import RealCluster, WorkingQueue

from functions import wiring
from headrace.api.segments import Successors
from headrace.client import (
    GroupReaderOptions,
    GroupStream,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ReaderGroup,
    ReaderGroupConfiguration,
    RetentionMode,
    ScalingPolicy,
    StreamCut,
    UnavailableError,
)
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.groups.group_member import GroupMember

SOON = GroupReaderOptions(lease_s=1.0)


@pytest.fixture
def headrace(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """With the streams `orders` (four segments) and `returns` (one)."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(4))
    headrace.admin.update_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))  # so that segments can be merged
    headrace.admin.create_stream("shop", "returns", scaling=ScalingPolicy.fixed(1))
    return headrace


def create(headrace: Headrace, *streams: GroupStream, interval_ms: int = 0, **options: RetentionMode) -> ReaderGroup:
    reads = streams or (GroupStream("shop", "orders"),)
    configuration = ReaderGroupConfiguration(reads, automatic_checkpoint_interval_ms=interval_ms, **options)
    headrace.admin.reader_groups.create("shop", "billing", configuration)
    return headrace.reader_group("shop", "billing")


def write(headrace: Headrace, numbers: range, stream: str = "orders") -> None:
    with headrace.writer("shop", stream) as writer:
        for number in numbers:
            writer.write(f"{number}".encode(), routing_key=f"key-{number % 10}")


def tail(headrace: Headrace, stream: str = "orders") -> GroupStream:
    """The stream up to its present end."""
    return GroupStream("shop", stream, end=headrace.admin.stream_cut("shop", stream))


def drain(group: ReaderGroup, found: list[int], options: GroupReaderOptions | None = None) -> None:
    with group.reader(options=options) as reader:
        found.extend(int(event.event) for event in reader)


def test_one_reader_gets_every_event_once(headrace: Headrace) -> None:
    write(headrace, range(200))
    group = create(headrace, tail(headrace))
    with group.reader("r1") as reader:
        assert reader.name == "r1"
        numbers = [int(event.event) for event in reader]
        assert reader.ended
    assert sorted(numbers) == list(range(200))
    for key in range(10):
        assert [number for number in numbers if number % 10 == key] == list(range(key, 200, 10))
    assert group.readers() == {}
    with group.reader() as late:
        assert late.read_batch() is None


def test_two_readers_share_the_segments(headrace: Headrace) -> None:
    write(headrace, range(400))
    group = create(headrace)
    with group.reader("r1") as first, group.reader("r2") as second:
        numbers: list[int] = []
        while len(numbers) < 400:
            for reader in (first, second):
                batch = reader.read_batch(timeout_s=0.05)
                numbers += map(int, batch.events if batch else [])
        assert sorted(numbers) == list(range(400))
        assert sorted(len(owned) for owned in group.readers().values()) == [2, 2]
        assert not set(first.segments) & set(second.segments)


def test_events_are_in_order_across_scales(headrace: Headrace) -> None:
    """A merged segment is read only when all its predecessors were read, by the same reader or by others."""
    write(headrace, range(100))
    segments = [segment.segment_id for segment in headrace.admin.segments("shop", "orders")]
    headrace.admin.scale_stream("shop", "orders", seal=segments[:2], ranges=[(0.0, 0.5)])
    write(headrace, range(100, 200))
    active = [segment.segment_id for segment in headrace.admin.segments("shop", "orders")]
    headrace.admin.scale_stream("shop", "orders", seal=active[:1], ranges=[(0.0, 0.1), (0.1, 0.5)])
    write(headrace, range(200, 300))
    headrace.admin.seal_stream("shop", "orders")
    group = create(headrace)
    found: list[list[int]] = [[], [], []]
    readers = [threading.Thread(target=drain, args=(group, numbers)) for numbers in found]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sorted(chain(*found)) == list(range(300))
    for numbers in found:
        for key in range(10):
            ours = [number for number in numbers if number % 10 == key]
            assert ours == sorted(ours)


def test_closed_reader_leaves_its_position(headrace: Headrace) -> None:
    write(headrace, range(50), "returns")
    group = create(headrace, tail(headrace, "returns"))
    first: list[int] = []
    with group.reader("r1") as reader:
        for event in reader:
            first.append(int(event.event))
            if len(first) == 20:
                break
    second: list[int] = []
    drain(group, second)
    assert first + second == list(range(50))


def test_event_that_was_not_processed_is_read_again(headrace: Headrace) -> None:
    write(headrace, range(50), "returns")
    group = create(headrace, tail(headrace, "returns"))
    first: list[int] = []

    def work() -> None:
        with group.reader("r1") as reader:
            for event in reader:
                first.append(int(event.event))
                if len(first) == 20:
                    raise RuntimeError("the application fails")

    with pytest.raises(RuntimeError):
        work()
    second: list[int] = []
    drain(group, second)
    assert first[:-1] + second == list(range(50))


def test_name_of_a_reader_is_in_use(headrace: Headrace) -> None:
    group = create(headrace)
    with group.reader("r1"):
        with pytest.raises(IllegalStateError) as used:
            group.reader("r1")
        assert used.value.specific_code == "reader_online"
    with group.reader("r1"):
        assert set(group.readers()) == {"r1"}
    with pytest.raises(InvalidRequestError):
        group.reader("_name")
    with pytest.raises(InvalidRequestError):
        GroupReaderOptions(lease_s=0)
    with pytest.raises(NotFoundError):
        headrace.reader_group("shop", "never-created")


def test_reader_that_is_declared_dead(headrace: Headrace) -> None:
    """Its segments come back at once, from the last checkpoint; it learns of it when it reads on."""
    write(headrace, range(50), "returns")
    group = create(headrace, tail(headrace, "returns"))
    dead = group.reader("r1")
    batch = dead.read_batch()
    assert batch is not None
    assert group.reader_offline("r1")
    assert not group.reader_offline("r1")
    second: list[int] = []
    drain(group, second)
    assert second == list(range(50))
    with pytest.raises(IllegalStateError) as offline:
        dead.read_batch()
    assert offline.value.specific_code == "reader_offline"
    dead.close()


def test_segments_of_a_vanished_reader_come_back(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that no longer renews its lease loses its segments to the others, without anybody's word."""
    write(headrace, range(50), "returns")
    group = create(headrace, tail(headrace, "returns"))
    vanished = group.reader("r1", SOON)
    assert vanished.read_batch() is not None

    async def silent(member: GroupMember) -> None:
        if member.reader == "r1":
            await asyncio.Event().wait()
        await renew(member)

    renew = GroupMember._renew
    monkeypatch.setattr(GroupMember, "_renew", silent)
    second: list[int] = []
    drain(group, second, SOON)
    assert second == list(range(50))
    assert group.readers() == {}


def test_checkpoint_on_request(headrace: Headrace) -> None:
    write(headrace, range(40))
    group = create(headrace)
    stop = threading.Event()
    numbers: list[int] = []

    def work() -> None:
        with group.reader() as reader:
            while not stop.is_set():
                batch = reader.read_batch(timeout_s=0.05)
                numbers.extend(map(int, batch.events if batch else []))

    readers = [threading.Thread(target=work) for _ in range(2)]
    for reader in readers:
        reader.start()
    while len(numbers) < 40:
        time.sleep(0.02)
    checkpoint = group.checkpoint("c1")
    assert checkpoint.name == "c1"
    (cut,) = checkpoint.cuts
    assert cut == headrace.admin.stream_cut("shop", "orders") == group.stream_cuts()[0]
    assert group.lag().bytes_unread == 0
    write(headrace, range(40, 60))
    while len(numbers) < 60:
        time.sleep(0.02)
    lag = group.lag()
    assert (
        lag.bytes_unread
        == lag.bytes_by_stream["shop/orders"]
        == headrace.admin.stream_cut_distance("shop", "orders", cut)
    )
    group.reset()
    while len(numbers) < 80:
        time.sleep(0.02)
    stop.set()
    for reader in readers:
        reader.join()
    assert Counter(numbers) == {**dict.fromkeys(range(40), 1), **dict.fromkeys(range(40, 60), 2)}


def test_checkpoint_that_waits_for_a_reader(headrace: Headrace) -> None:
    group = create(headrace)
    with group.reader("r1"):
        with pytest.raises(UnavailableError) as late:
            group.checkpoint("c1", timeout_s=0.1)
        assert "r1" in late.value.message
        with pytest.raises(InvalidRequestError):
            group.checkpoint("c1")
        for name in ("c2", "c3"):
            with pytest.raises(UnavailableError):
                group.checkpoint(name, timeout_s=0.1)
        with pytest.raises(IllegalStateError) as many:
            group.checkpoint("c4")
        assert many.value.specific_code == "too_many_checkpoints"
        group.cancel_checkpoints()
    assert group.checkpoint("c5").cuts[0] == headrace.admin.stream_cut("shop", "orders", at="earliest")


def test_cut_has_segments_that_were_read_before_a_merge(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two merged segments is read, the other not: the cut covers both, and nothing is lost from there."""
    write(headrace, range(100))
    segments = headrace.admin.segments("shop", "orders")
    headrace.admin.scale_stream(
        "shop", "orders", seal=[segment.segment_id for segment in segments], ranges=[(0.0, 1.0)]
    )
    write(headrace, range(100, 120))
    headrace.admin.seal_stream("shop", "orders")
    group = create(headrace)
    numbers: list[int] = []
    answered: list[int] = []
    ask = AsyncAdmin.successors

    async def only_one(
        admin: AsyncAdmin, scope: str, stream: str, segment: int, *, as_recorded: bool = False
    ) -> Successors:
        if answered:
            await asyncio.Event().wait()
        answered.append(segment)
        return await ask(admin, scope, stream, segment, as_recorded=as_recorded)

    with monkeypatch.context() as patch:
        patch.setattr(AsyncAdmin, "successors", only_one)
        with group.reader("r1") as reader:
            while not numbers or len(reader.segments) == 4:
                batch = reader.read_batch(timeout_s=0.05)
                numbers += map(int, batch.events if batch else [])
    (cut,) = group.checkpoint().cuts
    assert len(cut.positions) == 4
    assert headrace.admin.is_stream_cut_valid("shop", "orders", cut)
    group.reset([cut])
    second: list[int] = []
    drain(group, second)
    assert set(numbers) | set(second) == set(range(120))


@pytest.mark.parametrize("to", ["start", "head", "tail"])
def test_reset(headrace: Headrace, to: str) -> None:
    write(headrace, range(10), "returns")
    start = StreamCut.of("shop", "returns", {0: 9})
    group = create(headrace, GroupStream("shop", "returns", start))
    with group.reader("r1") as reader:
        assert [int(event) for event in reader.read_batch().events] == list(range(1, 10))  # type: ignore[union-attr]
        group.reset(to)  # type: ignore[arg-type]
        write(headrace, range(10, 11), "returns")
        numbers: list[int] = []
        while 10 not in numbers:
            batch = reader.read_batch()
            numbers += map(int, batch.events if batch else [])
        assert numbers == list(range({"start": 1, "head": 0, "tail": 10}[to], 11))
    with pytest.raises(InvalidRequestError):
        group.reset([StreamCut.of("shop", "orders", {0: 0})])


def test_group_of_several_streams(headrace: Headrace) -> None:
    write(headrace, range(30))
    write(headrace, range(30, 60), "returns")
    group = create(headrace, tail(headrace), tail(headrace, "returns"))
    with group.reader("r1") as reader:
        found = [(event.stream, int(event.event)) for event in reader]
    assert sorted(found) == [("orders", n) for n in range(30)] + [("returns", n) for n in range(30, 60)]


def test_released_segment_goes_to_another_reader(headrace: Headrace) -> None:
    group = create(headrace, GroupStream("shop", "returns"))
    with group.reader("r1") as first, group.reader("r2") as second:
        while not first.segments:
            first.read_batch(timeout_s=0.05)
        (segment,) = first.segments
        assert first.release(segment)
        with pytest.raises(InvalidRequestError):
            first.release(segment)
        while not second.segments:
            second.read_batch(timeout_s=0.05)
        assert first.segments == ()


@pytest.mark.parametrize("mode", [RetentionMode.AUTOMATIC, RetentionMode.MANUAL])
def test_position_is_published_for_retention(headrace: Headrace, mode: RetentionMode) -> None:
    write(headrace, range(20), "returns")
    group = create(headrace, GroupStream("shop", "returns"), interval_ms=50, retention=mode)
    end = headrace.admin.stream_cut("shop", "returns")
    with group.reader("r1") as reader:
        assert reader.read_batch() is not None
        if mode is RetentionMode.MANUAL:
            group.publish([end])
        while headrace.admin.subscribers.get("shop", "returns", "shop/billing").offsets != end.offsets:
            reader.read_batch(timeout_s=0.05)


def test_group_survives_a_killed_store(headrace: Headrace, real: RealCluster) -> None:
    write(headrace, range(50), "returns")
    group = create(headrace, tail(headrace, "returns"))
    numbers: list[int] = []
    with group.reader("r1") as reader:
        real.kill_store()
        real.start_store()
        numbers += [int(event.event) for event in reader]
    assert numbers == list(range(50))
