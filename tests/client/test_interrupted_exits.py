"""Ctrl-C while the client closes, once or again and again: it goes on without waiting, and its thread ends."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from keyboard_interrupts import is_interrupted, is_signalled
from scripted_cluster import Cluster

from headrace.client import EventWriter, Headrace, closing, loop_thread
from headrace.client import headrace as headrace_module
from headrace.client.loop_thread import LoopThread
from headrace.client.synchronous import synchronous_bases
from headrace.model.errors import IllegalStateError

CALLS_MAX = 100


class Interrupted:
    """Interrupts the calls of the client's loop with some of the numbers: when they have begun, or are done."""

    def __init__(self, client: Headrace, numbers: range, *, done: bool) -> None:
        self.calls = self.interrupts = 0
        self._numbers, self._done = numbers, done
        self._loop, self._run = client._thread._loop, client._thread.run
        client._thread.run = self.run  # type: ignore[method-assign]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if number not in self._numbers:
            return self._run(coroutine)
        self.interrupts += 1
        if self._done:
            self._run(coroutine)
        else:
            begun = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._run(asyncio.sleep(0))
            begun.cancel()
        raise KeyboardInterrupt(self.interrupts)


def opened(cluster: Cluster) -> tuple[Headrace, list[EventWriter]]:
    cluster.put(0, b"event")
    client = cluster.client()
    writers = [client.writer("s", "t"), client.writer("s", "t")]
    reader = client.reader("s", "t", start="earliest")
    assert reader.read_batch(timeout_s=10) is not None
    for writer in writers:
        writer.write(b"event", "key")
    return client, writers


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("often", [1, 2, CALLS_MAX])
def test_each_interrupt_of_a_close_is_survived(cluster: Cluster, often: int, done: bool) -> None:
    for first in range(CALLS_MAX):
        client, writers = opened(cluster)
        interrupted = Interrupted(client, range(first, first + often), done=done)
        last = 0
        try:
            client.close()
        except KeyboardInterrupt as interrupt:
            (last,) = interrupt.args
        assert last == interrupted.interrupts
        assert not client._thread._thread.is_alive()
        assert all(writer.closed for writer in writers)
        client.close()
        if not interrupted.interrupts:
            break
    assert 4 < first < CALLS_MAX - 1


def test_second_interrupt_ends_the_wait_for_acknowledgements(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    client, writers = opened(cluster)
    flushed: list[EventWriter] = []

    def flush(writer: EventWriter) -> None:
        flushed.append(writer)
        raise KeyboardInterrupt(len(flushed))

    monkeypatch.setattr(EventWriter, "flush", flush)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert flushed == writers[:1]
    assert not client._thread._thread.is_alive()
    assert all(writer.closed for writer in writers)


def test_interrupt_after_an_error_of_the_block_is_raised(cluster: Cluster) -> None:
    client, _ = opened(cluster)
    Interrupted(client, range(1), done=True)
    error = ValueError()
    with pytest.raises(KeyboardInterrupt):
        client.__exit__(ValueError, error, None)
    assert not client._thread._thread.is_alive()


def test_thread_ends_wherever_its_close_is_interrupted() -> None:
    for at in range(CALLS_MAX):
        thread = LoopThread(asyncio.new_event_loop())
        was_interrupted = is_interrupted(thread.close, at, loop_thread, threading)
        thread.close()
        assert thread._loop.is_closed()
        assert not thread._thread.is_alive()
        if not was_interrupted:
            break
    assert 0 < at < CALLS_MAX - 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_second_close_finishes_an_interrupted_one(cluster: Cluster) -> None:
    for at in count():
        client, writers = opened(cluster)
        was_interrupted = is_interrupted(client.close, at, closing, headrace_module, loop_thread, synchronous_bases)
        client.close()
        assert not client._thread._thread.is_alive(), f"at place {at}"
        assert all(writer.closed for writer in writers), f"at place {at}"
        if not was_interrupted:
            break
    assert at > 2


def test_callback_cannot_close_the_client(cluster: Cluster) -> None:
    client, _ = opened(cluster)
    codes: list[str] = []
    has_ended = threading.Event()

    def callback() -> None:
        with pytest.raises(IllegalStateError) as raised:
            client.close()
        codes.append(raised.value.specific_code)
        has_ended.set()

    client._thread._loop.call_soon_threadsafe(callback)  # as that of an acknowledgement
    assert has_ended.wait(20), "it waits for itself"
    assert codes == ["own_thread"]
    client.close()


def test_two_threads_may_close_at_the_same_time(cluster: Cluster) -> None:
    for _ in range(20):
        client, _ = opened(cluster)
        with ThreadPoolExecutor(2) as pool:
            for closed in [pool.submit(client.close) for _ in range(2)]:
                closed.result()
        assert not client._thread._thread.is_alive()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("raises", [False, True])
def test_signal_handler_may_close_during_a_close(cluster: Cluster, raises: bool) -> None:
    for at in count():
        client, writers = opened(cluster)

        def handler(client: Headrace = client) -> None:
            client.close()
            if raises:
                sys.exit()

        was_signalled, was_raised = True, False
        try:
            was_signalled = is_signalled(
                client.close, at, handler, closing, headrace_module, loop_thread, synchronous_bases
            )
        except SystemExit:
            was_raised = True
        assert was_raised == (raises and was_signalled), f"at place {at}"
        if was_raised:
            client.close()  # as after an interrupt
        assert not client._thread._thread.is_alive(), f"at place {at}"
        assert all(writer.closed for writer in writers), f"at place {at}"
        if not was_signalled:
            break
    assert at > 2
    gc.collect()  # Python complains about coroutines that the exits left
