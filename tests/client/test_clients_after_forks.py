"""A child process or a second event loop with a client of another: calls fail at once, and `close` is quiet."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_cluster import Cluster
from scripted_transactions import Transactions

from headrace.client import (
    AsyncHeadrace,
    Headrace,
    IllegalStateError,
    ReaderOptions,
    ReadOrder,
    SegmentRange,
    connect,
    ownership,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

FORKED = "opened before a fork: connect in each process"


def in_child(check: Callable[[], object]) -> None:
    """Runs a check in a forked process; it ends as a program does, so that all its objects are collected."""
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException:  # noqa: BLE001 - the parent fails
            traceback.print_exc()
            os._exit(1)
        sys.stderr.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def refuses(*calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(IllegalStateError, match=FORKED) as refused:
            call()
        assert refused.value.specific_code == "opened_before_fork"


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Headrace]:
    transport = httpx.MockTransport(Transactions(cluster).handle)
    with connect("http://controller", transport=transport, retry_s=1.0) as client:
        yield client


def test_calls_of_a_child_fail_at_once(client: Headrace, cluster: Cluster):
    cluster.put(0, b"event")
    writer = client.writer("s", "t")
    writer.write(b"before", "key").result()
    reader = client.reader("s", "t")
    assert reader.read_batch(10) is not None
    transaction = client.transactional_writer("s", "t").begin()
    in_order = client.reader("s", "t", options=ReaderOptions(order=ReadOrder.TIME))

    def check() -> None:
        refuses(
            lambda: client.admin.epoch_segments("s", "t"),
            lambda: client.writer("s", "t"),
            lambda: client.reader("s", "t"),
            lambda: client.transactional_writer("s", "t"),
            lambda: writer.write(b"x"),
            lambda: writer.write(b"x", "key"),
            lambda: writer.write(bytearray(b"x"), "key"),
            lambda: writer.write_batch([b"x"]),
            lambda: writer.write_batch([b"x"], ["key"]),
            writer.flush,
            lambda: writer.flush(timeout_s=1),
            lambda: writer.note_time(1),
            reader.read_batch,
            lambda: reader.read_batch(timeout_s=1),
            lambda: next(iter(reader)),
            in_order.read_batch,
            reader.time_window,
            lambda: transaction.write(b"x"),
            transaction.commit,
            transaction.abort,
            transaction.state,
        )
        for opened in (writer, reader, in_order, client):
            opened.close()
            opened.close()
        with client:
            pass

    in_child(check)
    writer.write(b"behind", "key").result(30)
    assert {b"before", b"behind"} <= set(cluster.all_events())
    assert client.admin.epoch_segments("s", "t").segments


def test_a_child_waits_for_no_lock_or_acknowledgement(client: Headrace, cluster: Cluster):
    cluster.before_append = lambda _: True
    writer = client.writer("s", "t")
    ack = writer.write(b"x")
    batch = writer.write_batch([b"x", b"y"], ["a", "b"])
    lock = writer._accumulator.changed.lock
    with lock:  # as a thread that writes may hold it
        in_child(
            lambda: refuses(ack.result, lambda: ack.result(1), batch.result, writer.flush, lambda: writer.write(b"y"))
        )
        in_child(writer.close)
    cluster.before_append = lambda _: False
    writer.flush(30)
    assert len(cluster.all_events()) == 3


def test_a_child_keeps_the_writers_of_its_parent(client: Headrace):
    """What a child collected could close sockets that it shares."""
    with client.writer("s", "t") as writer:
        watched = writer._accumulator._watched

        def check() -> None:
            assert any(each is watched for each in ownership._kept)

        in_child(check)


def test_a_child_makes_a_client_of_its_own(client: Headrace, cluster: Cluster):
    writer = client.writer("s", "t")
    writer.write(b"parent").result()

    def check() -> None:
        own = Cluster(1)
        with own.client() as mine, mine.writer("s", "t") as written:
            written.write(b"child").result(30)
        assert own.all_events() == [b"child"]
        own.close()

    in_child(check)
    writer.write(b"parent").result(30)


def test_the_parent_works_on_while_children_end(client: Headrace, cluster: Cluster):
    writer = client.writer("s", "t")
    for number in range(3):
        child = os.fork()
        if child == 0:
            del writer, client
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        writer.write(b"%d" % number, "key").result(30)
    assert sorted(cluster.all_events()) == [b"0", b"1", b"2"]


PROGRAM = """
import os, sys
sys.path.insert(0, {support!r})
from scripted_cluster import Cluster

cluster = Cluster(2)
client = cluster.client()
writer = client.writer("s", "t")
writer.write(b"x", "key").result(30)
if os.fork() == 0:
    {end}
    sys.exit(5)
_, status = os.wait()
writer.write(b"y", "key").result(30)
print(os.waitstatus_to_exitcode(status), len(cluster.all_events()))
client.close()
"""


@pytest.mark.parametrize("end", ["pass", "del writer, client", "client.close()"])
def test_a_child_exits_as_programs_do(end: str):
    """Also when the parent has resolved names with libuv, whose threads the child does not have."""
    support = Path(__file__).resolve().parents[1] / "support"
    program = PROGRAM.format(support=str(support), end=end)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "5 2\n", ended.stderr


def test_blocks_of_a_child_end_quietly_or_say_why(client: Headrace, cluster: Cluster):
    writer = client.transactional_writer("s", "t")
    transaction = writer.begin()

    def fail() -> None:
        with pytest.raises(SystemExit), transaction:
            raise SystemExit

    def succeed() -> None:
        with transaction:
            pass

    in_child(fail)
    in_child(lambda: refuses(succeed))
    transaction.commit()


def pickles(name: str) -> Callable[[Headrace], object]:
    return {
        "client": lambda client: client,
        "admin": lambda client: client.admin,
        "writer": lambda client: client.writer("s", "t"),
        "acknowledgement": lambda client: client.writer("s", "t").write(b"x"),
        "reader": lambda client: client.reader("s", "t"),
        "transactional writer": lambda client: client.transactional_writer("s", "t"),
        "transaction": lambda client: client.transactional_writer("s", "t").begin(),
        "byte stream": lambda client: client.byte_stream("s", "t"),
        "byte writer": lambda client: client.byte_stream("s", "t").writer(),
        "byte reader": lambda client: client.byte_stream("s", "t").reader(),
        "revisioned stream": lambda client: client.revisioned_stream("s", "t"),
        "range reader": lambda client: client.range_reader(SegmentRange("s", "t", 0, 0.0, 1.0, 0, 0)),
        "asynchronous": lambda client: client._core,
    }[name]


NAMES = (
    "client",
    "admin",
    "writer",
    "acknowledgement",
    "reader",
    "transactional writer",
    "transaction",
    "byte stream",
    "byte writer",
    "byte reader",
    "revisioned stream",
    "range reader",
    "asynchronous",
)


@pytest.mark.parametrize("name", NAMES)
def test_objects_of_a_client_say_why_they_cannot_be_pickled(make_cluster: Callable[[int], Cluster], name: str):
    transport = httpx.MockTransport(Transactions(make_cluster(1)).handle)
    with connect("http://controller", transport=transport) as client:
        opened = pickles(name)(client)
        with pytest.raises(IllegalStateError, match="connect in each process") as refused:
            pickle.dumps(opened)
    assert refused.value.specific_code == "not_picklable"


def test_a_second_event_loop_is_refused(cluster: Cluster):
    client = AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle), retry_s=1.0)
    cluster.put(0, b"event")

    async def use() -> tuple[Any, ...]:
        writer, reader = await client.writer("s", "t"), await client.reader("s", "t")
        await writer.write(b"x", "key")
        await writer.flush()
        assert await reader.read_batch(10) is not None
        return writer, reader, await client.writer("s", "t")

    writer, reader, idle = asyncio.run(use())

    async def again() -> None:
        calls = (
            lambda: client.admin.epoch_segments("s", "t"),
            lambda: client.writer("s", "t"),
            reader.read_batch,
            lambda: reader.read_batch(timeout_s=1),
            lambda: writer.write(b"x"),
            lambda: idle.write(b"x"),
            lambda: idle.write_batch([b"x"]),
        )
        for call in calls:
            with pytest.raises(IllegalStateError, match="another event loop"):
                await call()
        for opened in (writer, reader, idle, client):
            await opened.close()

    asyncio.run(again())


def test_what_an_ended_loop_did_not_store_is_told(cluster: Cluster):
    cluster.before_append = lambda _: True
    client = AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle), retry_s=1.0)

    async def use() -> tuple[Any, ...]:
        writer = await client.writer("s", "t")
        ack = await writer.write(b"x", "key")
        await asyncio.sleep(0.01)
        return writer, ack

    writer, ack = asyncio.run(use())

    async def again() -> None:
        for wait in (lambda: ack, writer.flush, lambda: writer.write(b"y")):
            with pytest.raises(IllegalStateError, match="another event loop"):
                await wait()
        await writer.close()

    asyncio.run(again())
