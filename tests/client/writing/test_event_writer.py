"""Each event is stored once and in order per key, also if connections break, stores restart and segments scale."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable

import httpx
import pytest
from scripted_cluster import Cluster

from headrace import wire
from headrace.client import (
    AsyncHeadrace,
    EventWriter,
    Headrace,
    InvalidRequestError,
    SealedError,
    UnavailableError,
    WriterOptions,
)
from headrace.client.writing import segment_appender
from headrace.model import errors
from headrace.model.limits import EVENT_BYTES_MAX_LARGE

Make = Callable[[int], Cluster]
SMALL_BLOCKS = WriterOptions(block_bytes=200, buffer_bytes=100_000)


def _by_key(events: list[bytes]) -> dict[str, list[int]]:
    """Numbers of events `key:number`, by key, in the order of the list."""
    numbers_by_key: dict[str, list[int]] = defaultdict(list)
    for event in events:
        key, number = event.decode().split(":")
        numbers_by_key[key].append(int(number))
    return dict(numbers_by_key)


def _check_all(cluster: Cluster, keys: int, per_key: int) -> None:
    assert _by_key(cluster.all_events()) == {f"k{key}": list(range(per_key)) for key in range(keys)}


def _write(writer: EventWriter, keys: int, numbers: range) -> None:
    for number in numbers:
        for key in range(keys):
            writer.write(f"k{key}:{number}".encode(), f"k{key}")


def test_events_reach_the_segments_of_their_keys(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        acks = [writer.write(key.encode(), key) for key in ("hello", "key", "key1", "a")]
        writer.flush()
        assert all(ack.done for ack in acks)
        assert writer.acknowledged_events == 4
    # hello is at 0.66, key at 0.84, key1 at 0.69 of the key space
    assert set(cluster.events(1)) >= {b"hello", b"key", b"key1"}
    assert len(cluster.all_events()) == 4


def test_many_events_make_few_appends(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        for number in range(20_000):
            writer.write(b"%d" % number, "one key")
    assert cluster.all_events() == [b"%d" % number for number in range(20_000)]
    assert cluster.appends < 2_000


@pytest.mark.parametrize("options", [WriterOptions(), SMALL_BLOCKS])
def test_batches(make_cluster: Make, options: WriterOptions) -> None:
    cluster = make_cluster(4)
    keys = [f"k{number % 50}" for number in range(30_000)]
    events = [f"{key}:{number // 50}".encode() for number, key in enumerate(keys)]
    with cluster.client() as headrace, headrace.writer("s", "t", options) as writer:
        acks = [
            writer.write_batch(events[first : first + 7_000], keys[first : first + 7_000])
            for first in range(0, 30_000, 7_000)
        ]
        for ack in acks:
            ack.result(timeout_s=30)
        assert writer.acknowledged_events == 30_000
    _check_all(cluster, 50, 600)


def test_batches_with_one_key_no_keys_and_nothing(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        writer.write_batch([b"a", bytearray(b"b"), memoryview(b"c")], "key")
        writer.write_batch([b"%d" % number for number in range(200)])
        writer.write_batch([], "key").result(timeout_s=10)
    assert cluster.events(1)[:3] == [b"a", b"b", b"c"]
    assert len(cluster.all_events()) == 203
    assert 20 < len(cluster.events(0)) < 180  # events without a key are spread


def test_single_events_and_batches_keep_their_order(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t", SMALL_BLOCKS) as writer:
        for number in range(0, 600, 3):
            writer.write(b"k0:%d" % number, "k0")
            writer.write_batch([b"k0:%d" % (number + 1), b"k0:%d" % (number + 2)], ["k0", "k0"])
    _check_all(cluster, 1, 600)


def test_large_and_empty_events(cluster: Cluster) -> None:
    large = bytes(8 * 1024 * 1024)
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        writer.write(b"", "key")
        writer.write(large, "key")
        writer.write(b"after", "key")
        writer.write_batch([b"x", large, b"y"], "key")
    assert cluster.events(1) == [b"", large, b"after", b"x", large, b"y"]


def test_events_that_are_refused(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        too_large = bytes(EVENT_BYTES_MAX_LARGE + 1)
        for refused in (lambda: writer.write(too_large, "k"), lambda: writer.write_batch([b"a", too_large], "k")):
            with pytest.raises(InvalidRequestError) as caught:
                refused()
            assert caught.value.specific_code == "event_too_large"
        with pytest.raises(InvalidRequestError, match="not str"):
            writer.write("text", "k")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="not int"):
            writer.write_batch([5], "k")  # type: ignore[list-item]
        with pytest.raises(InvalidRequestError, match="2 events came with 1"):
            writer.write_batch([b"a", b"b"], ["k"])
        writer.write(b"fine", "k")
    assert cluster.all_events() == [b"fine"]


@pytest.mark.parametrize("seed", range(4))
def test_connections_that_break_lose_and_repeat_nothing(make_cluster: Make, seed: int) -> None:
    cluster = make_cluster(2)
    dice = random.Random(seed)
    cluster.before_append = lambda _: dice.random() < 0.1
    cluster.after_append = lambda _: dice.random() < 0.1
    with cluster.client() as headrace, headrace.writer("s", "t", SMALL_BLOCKS) as writer:
        _write(writer, 5, range(200))
        writer.flush()
    assert cluster.connections > 3
    _check_all(cluster, 5, 200)


def test_a_store_that_is_away_for_a_while(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t", SMALL_BLOCKS) as writer:
        _write(writer, 3, range(10))
        writer.flush()
        cluster.stop_store()
        _write(writer, 3, range(10, 20))
        ack = writer.write(b"k0:20", "k0")
        with pytest.raises(UnavailableError, match="not acknowledged within"):
            ack.result(timeout_s=0.01)
        with pytest.raises(UnavailableError, match="not all events"):
            writer.flush(timeout_s=0.01)
        writer.write(b"k1:20", "k1")
        writer.write(b"k2:20", "k2")
        cluster.start_store()
        ack.result(timeout_s=30)
    _check_all(cluster, 3, 21)


@pytest.mark.parametrize("seed", range(6))
def test_scaling_under_a_writer_keeps_the_order_of_each_key(make_cluster: Make, seed: int) -> None:
    """Splits, merges and a repartition, with connections that break, while events are being written."""
    cluster = make_cluster(2)
    dice = random.Random(seed)
    if seed % 2:
        cluster.before_append = lambda _: dice.random() < 0.05
        cluster.after_append = lambda _: dice.random() < 0.05
    with cluster.client() as headrace, headrace.writer("s", "t", SMALL_BLOCKS) as writer:
        _write(writer, 20, range(30))
        left, middle = cluster.scale([0], [(0.0, 0.25), (0.25, 0.5)])
        _write(writer, 20, range(30, 60))
        (merged,) = cluster.scale([middle, 1], [(0.25, 1.0)])
        _write(writer, 20, range(60, 90))
        successor, _ = cluster.scale([left, merged], [(0.0, 0.6), (0.6, 1.0)])
        cluster.scale([successor], [(0.0, 0.3), (0.3, 0.6)])
        _write(writer, 20, range(90, 120))
        writer.flush()
        assert writer.acknowledged_events == 20 * 120
    _check_all(cluster, 20, 120)


def test_rerouted_events_are_acknowledged_when_all_stored(cluster: Cluster) -> None:
    cluster.stop_store()
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        acks = [writer.write(f"k{number}:0".encode(), f"k{number}") for number in range(40)]
        batch = writer.write_batch([f"k{number}:1".encode() for number in range(40)], [f"k{n}" for n in range(40)])
        called = threading.Event()
        batch.add_done_callback(lambda _: called.set())
        cluster.scale([0, 1], [(0.0, 0.2), (0.2, 0.7), (0.7, 1.0)])
        assert not batch.done
        cluster.start_store()
        batch.result(timeout_s=30)
        for ack in acks:
            ack.result(timeout_s=30)
        assert called.wait(30)
    _check_all(cluster, 40, 2)


def test_a_sealed_stream_ends_the_writer(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        writer.write(b"in time", "k")
        writer.flush()
        cluster.seal_stream()
        ack = writer.write(b"too late", "k")
        with pytest.raises(SealedError):
            ack.result(timeout_s=30)
        assert isinstance(ack.exception(), SealedError)
        with pytest.raises(SealedError, match="s/t is sealed"):
            writer.flush()
        with pytest.raises(SealedError):
            writer.write(b"later", "k")
        with pytest.raises(SealedError):
            writer.write_batch([b"later"], "k")
        writer.close()
        with pytest.raises(SealedError):
            headrace.writer("s", "t")
    assert cluster.all_events() == [b"in time"]


@pytest.mark.parametrize("silent_to", [wire.SetupAppend, wire.AppendBlockEnd])
def test_silent_store_is_asked_over_a_new_connection(
    cluster: Cluster, silent_to: type[wire.WireCommand], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is not answered is waited for shortly: the rest takes its time on a slow machine."""

    def wait(seconds: float) -> None:
        monkeypatch.setattr(segment_appender, "APPEND_TIMEOUT_S", seconds)

    def set_time_out(command: wire.WireCommand) -> None:
        """Called before a command is answered, so for the one that the client sends next."""
        if cluster.connections == 2:
            wait(30.0)
        elif type(command) is before_it:
            wait(0.05)

    wait(30.0)

    before_it = wire.Hello if silent_to is wire.SetupAppend else wire.SetupAppend
    cluster.refuse = set_time_out
    cluster.replies[silent_to] = [wire.KeepAlive()]
    with cluster.client() as headrace, headrace.writer("s", "t") as writer:
        writer.write_batch([b"a", b"b"], "key").result(timeout_s=30)
    assert cluster.all_events() == [b"a", b"b"]
    assert cluster.connections == 2


def test_a_deleted_stream_ends_the_writer(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        for segment in cluster.segments.values():
            segment.deleted = True
        endpoint = cluster.handle(httpx.Request("GET", "http://c/v1/scopes/s/streams/t/segments/1/endpoint"))
        gone = httpx.Response(404, json={"error": {"code": "not_found", "message": "no such stream", "retry": "never"}})
        cluster.answers = [endpoint, gone]
        ack = writer.write(b"late", "key")
        with pytest.raises(errors.NotFoundError, match="was deleted"):
            ack.result(timeout_s=30)
        writer.close()


def test_a_store_that_stays_away_fails_the_events(cluster: Cluster) -> None:
    cluster.stop_store()
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t", WriterOptions(give_up_after_s=0.05))
        with pytest.raises(UnavailableError, match="cannot be reached"):
            writer.write(b"x", "k").result(timeout_s=30)
        writer.close()


def test_a_full_buffer_makes_writers_wait(cluster: Cluster) -> None:
    cluster.stop_store()
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t", WriterOptions(block_bytes=100, buffer_bytes=1_000))
        written = []
        filled = threading.Event()

        def write() -> None:
            for number in range(300):
                writer.write(b"k0:%d" % number, "k0")
                written.append(number)
                if number == 50:
                    filled.set()

        thread = threading.Thread(target=write)
        thread.start()
        assert filled.wait(30)
        assert len(written) < 100  # 1,000 bytes hold at most 80 of these events
        cluster.start_store()
        thread.join(30)
        assert len(written) == 300
        writer.close()
    _check_all(cluster, 1, 300)


def test_writing_from_several_threads(cluster: Cluster) -> None:
    with cluster.client() as headrace, headrace.writer("s", "t", SMALL_BLOCKS) as writer:

        def write(key: int) -> None:
            for number in range(500):
                writer.write(f"k{key}:{number}".encode(), f"k{key}")

        threads = [threading.Thread(target=write, args=(key,)) for key in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _check_all(cluster, 4, 500)


def test_leaving_with_an_exception_does_not_wait(cluster: Cluster) -> None:
    cluster.stop_store()
    acks = []

    def write_and_fail(headrace: Headrace) -> None:
        with headrace.writer("s", "t") as writer:
            acks.append(writer.write(b"x", "k"))
            raise KeyError("of the caller")

    with cluster.client() as headrace, pytest.raises(KeyError):
        write_and_fail(headrace)
    with pytest.raises(UnavailableError, match="closed"):
        acks[0].result(timeout_s=0)


def test_what_is_left_open_is_closed_with_the_client(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        writer, reader = headrace.writer("s", "t"), headrace.reader("s", "t")
        ack = writer.write(b"x", "k")
    assert ack.done
    assert cluster.all_events() == [b"x"]
    writer.close()
    reader.close()
    with pytest.raises(UnavailableError, match="closed"):
        writer.write(b"y", "k")


def test_client_does_not_wait_after_an_exception(cluster: Cluster) -> None:
    cluster.stop_store()

    def write_and_fail() -> None:
        with cluster.client() as headrace:
            headrace.writer("s", "t").write(b"x", "k")
            raise KeyError("of the caller")

    with pytest.raises(KeyError):
        write_and_fail()


def test_a_store_that_stored_half_a_block_is_not_trusted(cluster: Cluster) -> None:
    with cluster.client() as headrace:
        writer = headrace.writer("s", "t")
        cluster.stop_store()
        ack = writer.write_batch([b"a", b"b", b"c"], "key")
        cluster.before_append = lambda number: number == 1
        cluster.start_store()

        honest = cluster._reply

        def set_up_wrongly(command: wire.WireCommand, names: dict[int, str]) -> wire.WireCommand | None:
            reply = honest(command, names)
            if isinstance(command, wire.SetupAppend) and cluster.appends:
                return wire.AppendSetup(command.request_id, command.segment, command.writer_id, 2)
            return reply

        cluster._reply = set_up_wrongly
        with pytest.raises(errors.CorruptError, match="not the last event of a block"):
            ack.result(timeout_s=30)
        writer.close()


@pytest.mark.anyio
async def test_asynchronous_writer_stores_in_order(cluster: Cluster) -> None:
    options = WriterOptions(block_bytes=100, buffer_bytes=1_000)
    async with (
        AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle)) as headrace,
        await headrace.writer("s", "t", options) as writer,
    ):
        await (await writer.write(b"k0:0", "k0"))
        for number in range(1, 300):
            await writer.write(b"k0:%d" % number, "k0")
        await writer.flush()
        ack = await writer.write_batch([b"k1:0", b"k1:1"], "k1")
        await asyncio.gather(ack, ack)
        assert writer.acknowledged_events == 302
    assert _by_key(cluster.all_events()) == {"k0": list(range(300)), "k1": [0, 1]}


@pytest.mark.anyio
@pytest.mark.parametrize("batches", [False, True])
async def test_a_loop_of_writes_lets_the_event_loop_run(cluster: Cluster, batches: bool) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with (
        AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle)) as headrace,
        await headrace.writer("s", "t", WriterOptions(block_bytes=100, buffer_bytes=100_000)) as writer,
    ):
        await (await writer.write(b"k0:0", "k0"))
        others = asyncio.create_task(count_turns())
        for number in range(1, 300):
            event = b"k0:%d" % number
            await (writer.write_batch([event], "k0") if batches else writer.write(event, "k0"))
        assert turns > 300 * len(event) // 100 // 2
        others.cancel()
        await writer.flush()
    assert _by_key(cluster.all_events()) == {"k0": list(range(300))}


@pytest.mark.anyio
@pytest.mark.parametrize("buffer_bytes", [1_000, 100_000])
async def test_calls_at_once_keep_their_order(cluster: Cluster, buffer_bytes: int) -> None:
    """Also when the earlier one gives the event loop a turn because a block is full."""
    async with (
        AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle)) as headrace,
        await headrace.writer("s", "t", WriterOptions(block_bytes=200, buffer_bytes=buffer_bytes)) as writer,
    ):
        for first in (0, 1000):
            await asyncio.gather(*(writer.write(f"k:{number}".encode(), "k") for number in range(first, first + 1000)))
        await writer.flush()
    assert _by_key(cluster.all_events()) == {"k": list(range(2000))}
