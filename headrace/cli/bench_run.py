"""The load of `headrace bench`: what it writes, how it checks what comes back, and its threads.

An event says which run, writer and key it is of, its number among those of the key, and when it was due. So the reader
knows how long it took, and whether it came once and in order. What is remembered is one number for each key. A thread
for each writer and one that reads use the public client.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX

if TYPE_CHECKING:
    from headrace.client import Ack, EventReader, EventWriter, Headrace


_SUB_BITS: Final = 6
"""A power of two has 2 ** 6 buckets, which give the precision."""

_BITS_MAX: Final = 42
MICROSECONDS_MAX: Final = (1 << _BITS_MAX) - 1
"""Fifty days. Longer durations count as this one."""


class LatencyHistogram:
    """Counts durations in microseconds, in a fixed amount of memory: percentiles are exact to 1.6 percent.

    One thread records at a time.
    """

    def __init__(self) -> None:
        self.count = 0
        self.max_us = 0
        self._counts = [0] * (_bucket(MICROSECONDS_MAX) + 1)

    def record(self, microseconds: int, count: int = 1) -> None:
        """Counts a duration `count` times. Negative ones, of a clock that was set, count as 0."""
        value = min(max(0, microseconds), MICROSECONDS_MAX)
        self._counts[_bucket(value)] += count
        self.count += count
        self.max_us = max(self.max_us, value)

    def percentile_us(self, percent: float) -> int | None:
        """The duration that so many percent of the values do not exceed, by nearest rank; None without values."""
        if not self.count:
            return None
        rank = max(1, -(-self.count * percent // 100))
        passed = 0
        for bucket, count in enumerate(self._counts):
            passed += count
            if passed >= rank:
                return min(_highest(bucket), self.max_us)
        return self.max_us


def _bucket(value: int) -> int:
    """Values below 128 have a bucket each; above, 64 buckets share a power of two."""
    shift = max(0, value.bit_length() - _SUB_BITS - 1)
    return (shift << _SUB_BITS) + (value >> shift)


def _highest(bucket: int) -> int:
    """The highest value of a bucket."""
    shift = max(0, (bucket >> _SUB_BITS) - 1)
    return ((bucket - (shift << _SUB_BITS) + 1) << shift) - 1


_HEADER: Final = struct.Struct(">8sHHQq")
"""Run, writer, key, number among the events of the key, and when it was due in nanoseconds of the monotonic clock."""

RUN_BYTES: Final = 8
EVENT_BYTES_MIN: Final = _HEADER.size
SECONDS_MAX: Final = 86_400
WRITERS_MAX: Final = 64
RATE_MAX: Final = 10_000_000
SEGMENTS_MAX: Final = 100
KEYS_PER_WRITER: Final = 16

BATCH_EVENTS_MAX: Final = 100
BATCH_BYTES_MAX: Final = 128 * 1024
"""What one call of the writer takes at most. All its events count from when the first was due."""

NS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How much is written. `rate` is in events per second of all writers together; None: as fast as possible.

    Raises:
        InvalidRequestError: a value is out of bounds.
    """

    event_bytes: int
    seconds: int
    writers: int
    rate: float | None
    segments: int

    def __post_init__(self) -> None:
        _check("--event-bytes", self.event_bytes, EVENT_BYTES_MIN, EVENT_BYTES_MAX)
        _check("--seconds", self.seconds, 1, SECONDS_MAX)
        _check("--writers", self.writers, 1, WRITERS_MAX)
        _check("--segments", self.segments, 1, SEGMENTS_MAX)
        if self.rate is not None and not 0 < self.rate <= RATE_MAX:
            raise InvalidRequestError(f"--rate is {self.rate:g}: it must be above 0 and at most {RATE_MAX}")

    @property
    def batch_events(self) -> int:
        """Events in the largest batch."""
        return max(1, min(BATCH_EVENTS_MAX, BATCH_BYTES_MAX // self.event_bytes))

    @property
    def interval_ns(self) -> float | None:
        """The time between two events of one writer; None: as fast as possible."""
        return None if self.rate is None else NS_PER_S * self.writers / self.rate


def _check(option: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidRequestError(f"{option} is {value}: it must be from {lowest} to {highest}")


class Due(NamedTuple):
    """Events to write now: how many, and when the first one was due."""

    events: int
    due_ns: int


def due_events(plan: BenchPlan, start_ns: int, written: int, now_ns: int) -> Due:
    """What one writer writes at `now_ns` that has written `written` events since `start_ns`.

    With a rate it is what was due, so that a writer that was held up catches up, and the delay counts.
    """
    if plan.interval_ns is None:
        return Due(plan.batch_events, now_ns)
    due_ns = start_ns + int(written * plan.interval_ns)
    if due_ns > now_ns:
        return Due(0, due_ns)
    return Due(min(plan.batch_events, 1 + int((now_ns - due_ns) / plan.interval_ns)), due_ns)


class EventMaker:
    """Makes the events of one writer, in the turn of its keys."""

    def __init__(self, run: bytes, writer: int, event_bytes: int, filler: bytes) -> None:
        self._run = run
        self._writer = writer
        self._filler = filler[: event_bytes - _HEADER.size]
        self._made = 0

    def make(self, count: int, due_ns: int) -> tuple[list[bytes], list[str]]:
        """The next events and their routing keys."""
        events, keys = [], []
        for number in range(self._made, self._made + count):
            turn, key = divmod(number, KEYS_PER_WRITER)
            events.append(_HEADER.pack(self._run, self._writer, key, turn, due_ns) + self._filler)
            keys.append(f"{self._run.hex()}-{self._writer}-{key}")
        self._made += count
        return events, keys


class Arrival(NamedTuple):
    """Events of the run in a batch: how many there were, and when how many of them were due."""

    events: int
    due_ns: Sequence[tuple[int, int]]


class Verification:
    """Checks that the events of a run come once, in the order of their keys and unchanged."""

    def __init__(self, run: bytes, plan: BenchPlan, filler: bytes) -> None:
        self._run = run
        self._keys = plan.writers * KEYS_PER_WRITER
        self._filler = filler[: plan.event_bytes - _HEADER.size]
        self._next = [0] * self._keys
        self.read = 0
        self.repeated = 0
        """Events behind the place of their key: they came twice, or too late."""
        self.skipped = 0
        """Events whose successors of the same key came without them."""
        self.damaged = 0

    def add(self, events: Sequence[bytes]) -> Arrival:
        """Checks events that came one after the other. Those of other runs and of other programs do not count."""
        count = 0
        due: list[tuple[int, int]] = []
        for event in events:
            if event[:RUN_BYTES] != self._run:
                continue
            count += 1
            if len(event) < _HEADER.size or event[_HEADER.size :] != self._filler:
                self.damaged += 1
                continue
            _, writer, key, number, due_ns = _HEADER.unpack_from(event)
            if not self._is_in_order(writer * KEYS_PER_WRITER + key, number):
                continue
            if due and due[-1][0] == due_ns:
                due[-1] = (due_ns, due[-1][1] + 1)
            else:
                due.append((due_ns, 1))
        self.read += count
        return Arrival(count, due)

    def _is_in_order(self, key: int, number: int) -> bool:
        if key >= self._keys:
            self.damaged += 1
            return False
        expected = self._next[key]
        if number < expected:
            self.repeated += 1
            return False
        self.skipped += number - expected
        self._next[key] = number + 1
        return True

    def missing(self, written: int) -> int:
        """How many of the events that were written have not come, as far as `read` tells."""
        return max(0, written - (self.read - self.repeated))

    def is_right(self, written: int) -> bool:
        """Whether all events that were written have come once, in order and unchanged."""
        return self.read == written and not (self.repeated or self.skipped or self.damaged)


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
