"""What `headrace bench` writes, and how it checks what comes back. Pure: no clock, no client.

An event says which run, writer and key it is of, its number among those of the key, and when it was due. So the
reader knows how long it took, and whether it came once and in order. What is remembered is one number for each key.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_BYTES_MAX

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
