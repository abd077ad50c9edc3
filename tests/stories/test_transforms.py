"""Transforms on a local stack: each event counts once, whatever ends their processes."""

from __future__ import annotations

import asyncio
import inspect
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.client import (
    AsyncHeadrace,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    KeyRange,
    NotFoundError,
    ScalingPolicy,
    SealedError,
    StreamCut,
    TransformOptions,
)
from headrace.client.administration.transactions_admin import AsyncTransactionsAdmin

KEYS = 7
AT_ONCE = TransformOptions(commit_every_s=0)


def copy(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
    return [(event, event.split(b":")[0].decode()) for event in events]


@pytest.fixture
def streams(headrace_client: Headrace, headrace_scope: str) -> Callable[[int], str]:
    """Creates `in` with so many events, `<key>:<number>` with growing numbers, and `out`. Returns the scope."""

    def made(events: int) -> str:
        for stream, segments in (("in", 3), ("out", 2)):
            headrace_client.admin.create_stream(headrace_scope, stream, scaling=ScalingPolicy.fixed(segments))
        write(headrace_client, headrace_scope, range(events))
        return headrace_scope

    return made


def write(headrace: Headrace, scope: str, numbers: range) -> None:
    with headrace.writer(scope, "in") as writer:
        for number in numbers:
            writer.write(f"{number % KEYS}:{number}".encode(), str(number % KEYS))


def tail(headrace: Headrace, scope: str, stream: str = "in") -> StreamCut:
    return headrace.admin.stream_cut(scope, stream, at="latest")


def written(headrace: Headrace, scope: str, count: int) -> list[int]:
    """The numbers in `out`, sorted, when there are so many: commits become visible a moment later."""
    found: dict[str, list[int]] = defaultdict(list)
    with headrace.reader(scope, "out") as reader:
        while sum(map(len, found.values())) < count:
            batch = reader.read_batch()
            assert batch is not None
            for event in batch.events:
                key, number = event.decode().split(":")
                found[key].append(int(number))
        assert reader.read_batch(timeout_s=1) is None
    for numbers in found.values():
        assert numbers == sorted(numbers), "the events of a key are in their order"
    return sorted(number for numbers in found.values() for number in numbers)


def test_each_event_counts_once_over_many_runs(headrace_client: Headrace, streams: Callable[[int], str]):
    scope = streams(500)
    sizes = []
    for run in range(3):
        done = headrace_client.transform(
            f"{scope}/in", copy, into=f"{scope}/out", name="copy", end=tail(headrace_client, scope), options=AT_ONCE
        )
        assert done.commits == 0 or done.commits >= 1 < done.events
        sizes.append((done.events, done.results))
        if run == 0:
            write(headrace_client, scope, range(500, 700))
    assert sizes == [(500, 500), (200, 200), (0, 0)]
    assert written(headrace_client, scope, 700) == list(range(700))


def test_order_of_keys_outlasts_scales(headrace_client: Headrace, streams: Callable[[int], str]):
    scope = streams(300)
    thirds = [KeyRange(0, 0.3), KeyRange(0.3, 0.8), KeyRange(0.8, 1)]
    for stream, segments, ranges in (("in", 3, thirds), ("out", 2, thirds)):
        headrace_client.admin.scale_stream(scope, stream, seal=range(segments), ranges=ranges, wait=True)
    write(headrace_client, scope, range(300, 600))
    headrace_client.admin.seal_stream(scope, "in")
    done = headrace_client.transform(f"{scope}/in", copy, into=f"{scope}/out", name="copy", options=AT_ONCE)
    assert done.events == 600
    assert written(headrace_client, scope, 600) == list(range(600))


PROGRAM = """
import sys, time
from headrace.client import StreamCut, TransformOptions, connect

url, scope, positions = sys.argv[1:]

def copy(events):
    time.sleep(0.01)
    return [(event, event.split(b":")[0].decode()) for event in events]

with connect(url) as headrace:
    end = StreamCut(scope, "in", tuple(eval(positions)))
    print("ready", flush=True)
    headrace.transform(
        f"{scope}/in", copy, into=f"{scope}/out", name="copy", end=end,
        options=TransformOptions(commit_every_s=0.02, events_per_commit=40),
    )
    print("done", flush=True)
"""


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.nightly)], ids=["four_kills", "fifty_kills"])
def test_kills_leave_no_gap_and_no_repetition(
    headrace_url: str, headrace_client: Headrace, streams: Callable[[int], str], kills: int
):
    """Each process is killed at another moment of its work; the last one ends by itself."""
    scope, chance = streams(20), random.Random(7)
    events = 20
    for kill in range(kills + 1):
        write(headrace_client, scope, range(events, events + 300))
        events += 300
        end = tail(headrace_client, scope)
        command = [sys.executable, "-c", PROGRAM, headrace_url, scope, repr(end.positions)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if kill == kills:
                assert process.stdout.readline() == "done\n"
                break
            time.sleep(chance.random() * 0.5)
            process.kill()
    assert written(headrace_client, scope, events) == list(range(events))


def test_of_two_processes_one_is_refused(headrace_client: Headrace, streams: Callable[[int], str]):
    scope = streams(100)
    asked, free = threading.Event(), threading.Event()

    def slow(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
        asked.set()
        free.wait()
        return copy(events)

    def run(handler: Any) -> Any:
        end = tail(headrace_client, scope)
        return headrace_client.transform(
            f"{scope}/in", handler, into=f"{scope}/out", name="copy", end=end, options=AT_ONCE
        )

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, slow)
        try:
            asked.wait()
            assert run(copy).events == 100
        finally:
            free.set()
        with pytest.raises(IllegalStateError, match="only one can run") as refused:
            first.result()
    assert refused.value.specific_code == "transform_overtaken"
    assert written(headrace_client, scope, 100) == list(range(100))


def test_a_process_that_comes_late_is_refused(
    headrace_client: Headrace, streams: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
):
    """It is paused before it begins its transaction. So the other process could not abort that one."""
    scope, honest = streams(100), AsyncTransactionsAdmin.create
    asked, free = threading.Event(), threading.Event()

    async def paused(self: Any, *arguments: Any, **options: Any) -> Any:
        if not asked.is_set():
            asked.set()
            await asyncio.to_thread(free.wait)
        return await honest(self, *arguments, **options)

    def run() -> Any:
        rarely = TransformOptions(commit_every_s=3_600)
        return headrace_client.transform(f"{scope}/in", copy, into=f"{scope}/out", name="copy", end=end, options=rarely)

    monkeypatch.setattr(AsyncTransactionsAdmin, "create", paused)
    end = tail(headrace_client, scope)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(run)
        try:
            asked.wait()
            assert run().commits == 1
        finally:
            free.set()
        with pytest.raises(IllegalStateError, match="only one can run"):
            late.result()
    assert written(headrace_client, scope, 100) == list(range(100))


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_lost_answer_of_a_commit_is_not_another_process(
    headrace_client: Headrace, streams: Callable[[int], str], monkeypatch: pytest.MonkeyPatch, lost: str
):
    """The client repeats its request, and is told that the epoch was committed before: by itself."""
    scope, honest = streams(100), AsyncTransactionsAdmin.commit_all

    async def twice(self: Any, *arguments: Any, **options: Any) -> Any:
        if lost == "answer":
            await honest(self, *arguments, **options)
        return await honest(self, *arguments, **options)

    monkeypatch.setattr(AsyncTransactionsAdmin, "commit_all", twice)
    end = tail(headrace_client, scope)
    done = headrace_client.transform(f"{scope}/in", copy, into=f"{scope}/out", name="copy", end=end, options=AT_ONCE)
    assert (done.events, done.results) == (100, 100)
    assert written(headrace_client, scope, 100) == list(range(100))


def test_an_aborted_transaction_is_written_again(headrace_client: Headrace, streams: Callable[[int], str]):
    """As after a pause that was longer than the lease."""
    scope, calls = streams(100), 0

    def unlucky(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
        nonlocal calls
        calls += 1
        if calls == 1:
            transactions = headrace_client.admin.transactions
            assert transactions.abort_labelled(scope, "out", "copy/") == 1
        return copy(events)

    end = tail(headrace_client, scope)
    done = headrace_client.transform(f"{scope}/in", unlucky, into=f"{scope}/out", name="copy", end=end, options=AT_ONCE)
    assert (done.events, done.results) == (100, 100)
    assert written(headrace_client, scope, 100) == list(range(100))


def test_an_error_of_the_handler_leaves_nothing(headrace_client: Headrace, streams: Callable[[int], str]):
    scope = streams(100)

    def broken(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
        raise ValueError("no invoice")

    end = tail(headrace_client, scope)
    with pytest.raises(ValueError, match="no invoice"):
        headrace_client.transform(f"{scope}/in", broken, into=f"{scope}/out", name="copy", end=end)
    assert headrace_client.admin.transactions.list_open(scope, "out", label_prefix="copy/") == [] or all(
        each.state == "ABORTING"
        for each in headrace_client.admin.transactions.list_open(scope, "out", label_prefix="copy/")
    )
    assert tail(headrace_client, scope, "out").positions == ((0, 0), (1, 0))


def test_a_handler_that_stops_an_iteration_is_an_error(headrace_client: Headrace, streams: Callable[[int], str]):
    """As with `next` of an iterator that is empty: a future does not take this error."""
    scope = streams(10)

    def empty(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
        return [next(iter(()))]

    end = tail(headrace_client, scope)
    with pytest.raises(RuntimeError, match="the handler raised StopIteration"):
        headrace_client.transform(f"{scope}/in", empty, into=f"{scope}/out", name="copy", end=end)


def test_events_without_results_are_not_read_again(headrace_client: Headrace, streams: Callable[[int], str]):
    scope, seen = streams(50), 0

    async def count(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
        nonlocal seen
        seen += len(events)
        await asyncio.sleep(0)
        return []

    for _ in range(2):
        end = tail(headrace_client, scope)
        headrace_client.transform(f"{scope}/in", count, into=f"{scope}/out", name="count", end=end, options=AT_ONCE)
    assert seen == 50


def test_the_start_is_chosen_once(headrace_client: Headrace, streams: Callable[[int], str]):
    """The first run begins at the tail, and fails before it has committed anything."""
    scope = streams(10)
    options = TransformOptions(commit_every_s=0, start="latest")

    def broken(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
        raise ValueError("not yet")

    def run(handler: Any) -> Any:
        end = tail(headrace_client, scope)
        return headrace_client.transform(
            f"{scope}/in", handler, into=f"{scope}/out", name="copy", end=end, options=options
        )

    assert run(broken).events == 0
    write(headrace_client, scope, range(10, 15))
    with pytest.raises(ValueError, match="not yet"):
        run(broken)
    write(headrace_client, scope, range(15, 20))
    assert run(copy).events == 10
    assert written(headrace_client, scope, 10) == list(range(10, 20))


def test_retention_keeps_what_is_unread(headrace_client: Headrace, streams: Callable[[int], str]):
    scope = streams(30)
    middle = tail(headrace_client, scope)
    headrace_client.transform(f"{scope}/in", copy, into=f"{scope}/out", name="copy", end=middle, options=AT_ONCE)
    write(headrace_client, scope, range(30, 60))
    (subscriber,) = headrace_client.admin.subscribers.list(scope, "in")
    assert (subscriber.subscriber, subscriber.offsets) == ("copy", middle.offsets)


def test_retention_keeps_where_the_next_run_begins(headrace_client: Headrace, streams: Callable[[int], str]):
    """A run without events may go on to other segments. It commits nothing, so the run after it begins before them."""
    scope = streams(30)
    thirds = [KeyRange(0, 0.3), KeyRange(0.3, 0.8), KeyRange(0.8, 1)]

    def run() -> int:
        end = tail(headrace_client, scope)
        return headrace_client.transform(
            f"{scope}/in", copy, into=f"{scope}/out", name="copy", end=end, options=AT_ONCE
        ).events

    assert run() == 30
    headrace_client.admin.scale_stream(scope, "in", seal=range(3), ranges=thirds, wait=True)
    assert run() == 0
    (subscriber,) = headrace_client.admin.subscribers.list(scope, "in")
    published = StreamCut.of(scope, "in", subscriber.offsets)
    headrace_client.admin.truncate_stream(scope, "in", published, wait=True)
    write(headrace_client, scope, range(30, 40))
    assert run() == 10
    assert written(headrace_client, scope, 40) == list(range(40))


def test_wrong_uses_are_refused(headrace_client: Headrace, streams: Callable[[int], str]):
    scope = streams(5)
    end = tail(headrace_client, scope)

    def transform(source: str = f"{scope}/in", handler: Any = copy, into: str = f"{scope}/out", name: str = "c") -> Any:
        return headrace_client.transform(source, handler, into=into, name=name, end=end, options=AT_ONCE)

    with pytest.raises(InvalidRequestError, match="write <scope>/<stream>"):
        transform(source="in")
    late: Coroutine[Any, Any, list[bytes]] = asyncio.sleep(0, [])
    with pytest.raises(InvalidRequestError, match="async def"):
        transform(handler=lambda _events: late)
    assert inspect.getcoroutinestate(late) == inspect.CORO_CLOSED, "Python does not warn that it was never awaited"
    with pytest.raises(NotFoundError):
        transform(into=f"{scope}/none")
    with pytest.raises(InvalidRequestError):
        TransformOptions(events_per_commit=0)
    transform()
    headrace_client.admin.create_stream(scope, "other", scaling=ScalingPolicy.fixed(1))
    with pytest.raises(InvalidRequestError, match=f"transform c reads {scope}/in, not {scope}/other"):
        transform(source=f"{scope}/other")
    with headrace_client.transactional_writer(scope, "out") as writer:
        transaction = writer.begin()
        transaction.detach()
        commit_all = headrace_client.admin.transactions.commit_all
        commit_all(scope, "out", [transaction.id], writer="spark", epoch=1, note="{}")
    with pytest.raises(InvalidRequestError, match="is not a transform"):
        transform(name="spark")
    headrace_client.admin.seal_stream(scope, "out")
    with pytest.raises(SealedError):
        transform(name="late")


def test_a_cancelled_transform_aborts(headrace_url: str, headrace_client: Headrace, streams: Callable[[int], str]):
    scope = streams(5)

    async def main() -> None:
        written = asyncio.Event()

        async def handler(events: Sequence[bytes]) -> list[tuple[bytes, str | None]]:
            written.set()
            return copy(events)

        async with AsyncHeadrace(headrace_url) as headrace:
            options = TransformOptions(commit_every_s=3_600)
            task = asyncio.create_task(
                headrace.transform(f"{scope}/in", handler, into=f"{scope}/out", name="copy", options=options)
            )
            await written.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    opened = headrace_client.admin.transactions.list_open(scope, "out", label_prefix="copy/")
    assert [each.state for each in opened if each.state == "OPEN"] == []
