"""Runs the load of `headrace bench`: a thread for each writer and one that reads, over the public client."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.cli.bench_plan import RUN_BYTES, BenchPlan, EventMaker, Verification, due_events
from headrace.cli.latency_histogram import LatencyHistogram

if TYPE_CHECKING:
    from headrace.client import Ack, EventReader, EventWriter, Headrace

PATIENCE_S: Final = 30.0
"""How long the reader waits for events that were acknowledged, from the last one that came."""

_READ_S: Final = 0.2
_JOIN_S: Final = 0.1
_END_S: Final = 2.0
_PAUSE_S_MAX: Final = 0.05
_PAUSE_S_MIN: Final = 0.001
"""Pauses of a writer with a rate. Events that become due during one are one batch."""


@dataclass(slots=True)
class Measured:
    """What a run has measured. Times are from when an event was due."""

    verification: Verification
    acknowledged: LatencyHistogram = field(default_factory=LatencyHistogram)
    end_to_end: LatencyHistogram = field(default_factory=LatencyHistogram)
    written: int = 0
    warm_up: int = 0
    """Events before the clock started, which opened the connections. They are verified, and not measured."""

    write_s: float = 0.0
    """From the first event to the last acknowledgement."""

    @property
    def is_right(self) -> bool:
        return self.verification.is_right(self.written + self.warm_up)


class BenchRun:
    """One run against a stream that exists. Call `run` once, in the thread that gets Ctrl-C."""

    def __init__(self, client: Headrace, scope: str, stream: str, plan: BenchPlan) -> None:
        self._client = client
        self._name = (scope, stream)
        self._plan = plan
        self._run = os.urandom(RUN_BYTES)
        self._filler = os.urandom(plan.event_bytes)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._problem: Exception | None = None
        self._measured = Measured(Verification(self._run, plan, self._filler))
        self._all_written = threading.Event()

    def run(self) -> Measured:
        """Writes and reads until all that was written has come.

        Raises:
            HeadraceError: an event was not acknowledged, or the stream cannot be read.
        """
        with ExitStack() as opened:
            opened.callback(self._stopped.set)
            start = self._client.stream_cut_at(*self._name, "latest")
            reader = opened.enter_context(self._client.reader(*self._name, start=start))
            writers = [opened.enter_context(self._client.writer(*self._name)) for _ in range(self._plan.writers)]
            makers = [
                EventMaker(self._run, number, self._plan.event_bytes, self._filler) for number in range(len(writers))
            ]
            reading = self._start(partial(self._read, reader))
            opened.callback(self._end, reading)
            self._warm_up(writers, makers)
            start_ns = time.monotonic_ns()
            writing = [
                self._start(partial(self._write, writer, maker, start_ns))
                for writer, maker in zip(writers, makers, strict=True)
            ]
            for thread in writing:
                opened.callback(self._end, thread)
            self._wait(writing)
            for writer in writers:
                writer.flush()
            self._measured.write_s = (time.monotonic_ns() - start_ns) / 1e9
            self._all_written.set()
            self._wait([reading])
        return self._measured

    def _warm_up(self, writers: list[EventWriter], makers: list[EventMaker]) -> None:
        for writer, maker in zip(writers, makers, strict=True):
            events, keys = maker.make(self._plan.batch_events, 0)
            writer.write_batch(events, keys)
            self._measured.warm_up += len(events)
        for writer in writers:
            writer.flush()

    def _write(self, writer: EventWriter, maker: EventMaker, start_ns: int) -> None:
        written = 0
        end_ns = start_ns + self._plan.seconds * 1_000_000_000
        while not self._stopped.is_set() and (now_ns := time.monotonic_ns()) < end_ns:
            count, due_ns = due_events(self._plan, start_ns, written, now_ns)
            if not count:
                self._stopped.wait(min(_PAUSE_S_MAX, max(_PAUSE_S_MIN, (due_ns - now_ns) / 1e9)))
                continue
            ack = writer.write_batch(*maker.make(count, due_ns))
            ack.add_done_callback(partial(self._acknowledged, count, due_ns))
            written += count
        with self._lock:
            self._measured.written += written

    def _acknowledged(self, count: int, due_ns: int, ack: Ack) -> None:
        """Runs on the event loop of the client, so in one thread for all writers."""
        if ack.exception() is None:
            self._measured.acknowledged.record((time.monotonic_ns() - due_ns) // 1000, count)

    def _read(self, reader: EventReader) -> None:
        measured, verification = self._measured, self._measured.verification
        deadline_s: float | None = None
        while not self._stopped.is_set():
            if self._all_written.is_set():
                now_s = time.monotonic()
                deadline_s = deadline_s or now_s + PATIENCE_S
                if verification.read >= measured.written + measured.warm_up or now_s > deadline_s:
                    return
            batch = reader.read_batch(_READ_S)
            if batch is None:
                continue
            now_ns = time.monotonic_ns()
            arrival = verification.add(batch.events)
            for due_ns, count in arrival.due_ns:
                if due_ns:
                    measured.end_to_end.record((now_ns - due_ns) // 1000, count)
            if arrival.events:
                deadline_s = None

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as problem:  # noqa: BLE001 - raised in the thread that waits
                self._fail(problem)

        thread = threading.Thread(target=guarded, name="headrace-bench", daemon=True)
        thread.start()
        return thread

    def _fail(self, problem: Exception) -> None:
        with self._lock:
            self._problem = self._problem or problem
        self._stopped.set()

    def _wait(self, threads: list[threading.Thread]) -> None:
        """Waits in short steps, between which Ctrl-C is noticed."""
        for thread in threads:
            while thread.is_alive():
                thread.join(_JOIN_S)
        if self._problem is not None:
            raise self._problem

    def _end(self, thread: threading.Thread) -> None:
        """After an error or Ctrl-C: a writer may wait for room in its buffer, which closing it ends."""
        self._stopped.set()
        thread.join(_END_S)
