"""A program that ends without closing its writers: its events are stored, or it is told how many are not."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import httpx
import pytest
from scripted_cluster import Cluster
from scripted_transactions import Transactions

from headrace.client import AsyncHeadrace, connect

SUPPORT = Path(__file__).resolve().parents[1] / "support"

PROGRAM = """
import atexit, sys
sys.path.insert(0, {support!r})
shown = []
atexit.register(lambda: print(*shown[0]()))  # registered first, so it runs last
import httpx
from scripted_cluster import Cluster
from headrace.client.writing import unflushed
cluster = Cluster(2)
shown.append(lambda: (len(cluster.all_events()),))
"""


def ran(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    text = PROGRAM.format(support=str(SUPPORT)) + textwrap.dedent(program)
    return subprocess.run([sys.executable, *options, "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "write",
    [
        "for n in range(20_000): writer.write(b'%06d' % n, str(n))",
        "writer.write_batch([b'%06d' % n for n in range(20_000)], [str(n) for n in range(20_000)])",
        "writer.write_batch([b'x'] * 20_000); del writer, client",
        "writer.write_batch([b'x'] * 20_000); sys.exit(0)",
    ],
)
def test_events_are_stored_though_no_writer_is_closed(write: str):
    ended = ran(f"client = cluster.client(); writer = client.writer('s', 't')\n{write}")
    assert (ended.returncode, ended.stdout) == (0, "20000\n"), ended.stderr


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_names_are_resolved_at_the_exit_too(loop: str):
    """asyncio's loop resolves them in a pool of threads, which takes no more work by then."""
    program = f"""
        if "{loop}" == "asyncio": sys.modules["uvloop"] = None
        answer = cluster._answer
        cluster._answer = lambda *asked: answer(*asked) | ({{"host": "localhost"}} if "endpoint" in asked[0] else {{}})
        writer = cluster.client().writer("s", "t")
        for number in range(100): writer.write(b"x", str(number))
    """
    ended = ran(program)
    assert (ended.returncode, ended.stdout) == (0, "100\n"), ended.stderr


def test_a_warning_names_the_writer_and_its_events():
    program = """
        cluster.before_append = lambda _: True
        unflushed.EXIT_FLUSH_S = 0.0
        writer = cluster.client().writer("s", "t")
        for number in range(7): writer.write(b"x")
    """
    ended = ran(program, "-W", "always::ResourceWarning")
    assert ended.stdout == "0\n"
    assert "ResourceWarning: the writer of s/t was not closed: 7 events" in ended.stderr
    assert "event=writer_not_closed stream='s/t' events=7" in ended.stderr
    assert "event=events_not_acknowledged stream='s/t' events=7" in ended.stderr


@pytest.mark.parametrize("end", ["", "del writer"])
def test_lost_events_are_reported_once(end: str):
    """At the exit, and not again when the writer is collected."""
    program = f"""
        import asyncio
        from headrace.client import AsyncHeadrace
        unflushed.EXIT_FLUSH_S = 0.0
        cluster.before_append = lambda _: True
        client = AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle))
        async def write():
            writer = await client.writer("s", "t")
            for number in range(7): await writer.write(b"x")
            return writer
        writer = asyncio.run(write())
        {end}
    """
    ended = ran(program, "-W", "always::ResourceWarning")
    assert ended.stderr.count("event=events_not_acknowledged") == 1, ended.stderr
    assert ended.stderr.count("7 events are not acknowledged") == 1, ended.stderr


def test_events_that_failed_unseen_are_reported():
    program = """
        writer = cluster.client().writer("s", "t")
        cluster.seal_stream()
        ack = writer.write(b"x")
        while not ack.done: pass
    """
    ended = ran(program)
    assert "event=events_not_acknowledged stream='s/t' events=1" in ended.stderr


@pytest.mark.parametrize("end", ["writer.close()", "client.close()", "writer.flush()"])
def test_a_closed_or_flushed_writer_is_not_reported(end: str):
    program = f"""
        client = cluster.client()
        writer = client.writer("s", "t")
        for number in range(100): writer.write(b"x")
        {end}
    """
    ended = ran(program, "-W", "always::ResourceWarning")
    assert (ended.stdout, ended.stderr) == ("100\n", "")


def test_a_block_that_fails_does_not_wait_at_the_exit():
    program = """
        cluster.before_append = lambda _: True
        with cluster.client() as client, client.writer("s", "t") as writer:
            writer.write(b"x")
            raise SystemExit(3)
    """
    ended = ran(program)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_a_child_of_multiprocessing_flushes_too():
    program = """
        import multiprocessing
        controller_and_store = cluster

        def work():
            own = Cluster(2)
            writer = own.client().writer("s", "t")
            writer.write_batch([b"x"] * 5000)
            multiprocessing.util.Finalize(None, lambda: print(len(own.all_events()), flush=True), exitpriority=-1)

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start(); child.join()
        assert child.exitcode == 0
    """
    ended = ran(program)
    assert ended.stdout == "5000\n0\n", ended.stderr


def test_byte_writers_and_transactions_are_flushed_as_well():
    program = """
        from scripted_transactions import Transactions
        controller = Transactions(cluster)
        from headrace.client import connect
        client = connect("http://c", transport=httpx.MockTransport(controller.handle))
        transaction = client.transactional_writer("s", "t").begin()
        transaction.write_batch([b"x"] * 5000)
    """
    ended = ran(program)
    assert ended.stdout == "5000\n", ended.stderr


def test_events_of_an_ended_loop_are_reported(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
):
    cluster.before_append = lambda _: True

    async def write() -> None:
        client = AsyncHeadrace("http://controller", transport=httpx.MockTransport(cluster.handle))
        writer = await client.writer("s", "t")
        for _ in range(5):
            await writer.write(b"x")

    warnings.simplefilter("always", ResourceWarning)
    with caplog.at_level(logging.ERROR, "headrace.client"):
        asyncio.run(write())
        gc.collect()
    assert "event=events_not_acknowledged stream='s/t' events=5" in caplog.messages
    assert any("the writer of s/t was not closed: 5 events" in str(warning.message) for warning in recwarn)


def test_counts_follow_scales_and_failures(cluster: Cluster):
    with cluster.client() as client, client.writer("s", "t") as writer:
        accumulator = writer._accumulator
        assert accumulator.unacknowledged_events() == 0
        cluster.scale(list(cluster.active), [(0.0, 1.0)])
        writer.write_batch([b"x"] * 100, [str(number) for number in range(100)])
        writer.flush()
        assert (accumulator.unacknowledged_events(), accumulator.failed_events) == (0, 0)
        cluster.seal_stream()
        ack = writer.write_batch([b"x"] * 3)
        with pytest.raises(Exception, match="sealed"):
            ack.result(30)
        assert (accumulator.unacknowledged_events(), accumulator.failed_events) == (0, 3)


def test_a_detached_transaction_is_not_reported(cluster: Cluster, caplog: pytest.LogCaptureFixture):
    gc.collect()  # the writers that other tests left open are reported before
    caplog.clear()
    controller = Transactions(cluster)
    with (
        connect("http://controller", transport=httpx.MockTransport(controller.handle)) as client,
        client.transactional_writer("s", "t") as writer,
    ):
        transaction = writer.begin()
        transaction.write(b"x")
        transaction.detach()
        del transaction
    gc.collect()
    assert not caplog.messages
