"""What a stream must hold: each event that was written at most once, each acknowledged one exactly once, in order.

An event names its key and its number among the events of this key. Writers of one key do not share it with others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fuzz.checker import WrongStateError
from fuzz.client_patches import now_us
from fuzz.client_streams import StoredSegment
from fuzz.program_trace import Trace
from headrace.client.writing.awaited_changes import Ack
from headrace.codec.events import split_events

WITHOUT_KEY: Final = "~"
"""The first character of the name of events without a routing key, which have no order."""

_SHOWN: Final = 5


class EventName(NamedTuple):
    """The key of an event, and its number."""

    key: str
    number: int


def event_of(name: EventName, padding_bytes: int) -> bytes:
    return f"{name.key}:{name.number}:".encode() + bytes(padding_bytes)


def name_of(event: bytes | memoryview) -> EventName:
    key, number, _ = bytes(event).split(b":", 2)
    return EventName(key.decode(), int(number))


class EventOrder:
    """Checks that the numbers of each key grow."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def problem(self, name: EventName) -> str | None:
        """Take the next event. Return what is wrong with it."""
        last = self._last.get(name.key, 0)
        if name.number <= last and not name.key.startswith(WITHOUT_KEY):
            return f"event {name.number} of key {name.key} comes after event {last}"
        self._last[name.key] = name.number
        return None


class ClientModel:
    """The events of a program. Whatever is wrong ends the program: `broken` gets the error."""

    def __init__(self, trace: Trace) -> None:
        self.happened: Counter[str] = Counter()
        self.trace = trace
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stored: dict[EventName, int] = {}
        """When each event was stored, in microseconds."""
        self._numbers: Counter[str] = Counter()
        self._order = EventOrder()
        self._must_be_absent: set[EventName] = set()
        self._open: dict[Ack, Sequence[EventName]] = {}

    def report(self, problem: str) -> None:
        """End the program with a problem."""
        self.trace.note(f"problem: {problem}")
        if not self.broken.done():
            self.broken.set_exception(WrongStateError(problem))

    # Writers

    def new_name(self, key: str) -> EventName:
        self._numbers[key] += 1
        return EventName(key, self._numbers[key])

    def written(self, names: Sequence[EventName], ack: Ack) -> None:
        """A call has returned this acknowledgement."""
        self._open[ack] = [*self._open.get(ack, ()), *names]
        ack.add_done_callback(lambda _: self._settled(names, ack))

    def not_written(self, names: Iterable[EventName]) -> None:
        """A call was cancelled, and cannot have written anything."""
        self._must_be_absent.update(names)
        self.check_absent(names)

    def check_absent(self, names: Iterable[EventName]) -> None:
        if found := [name for name in names if name in self.stored]:
            self.report(f"events are stored that must not be: {found[:_SHOWN]}")

    def check_stored(self, names: Iterable[EventName], why: str) -> None:
        if missing := [name for name in names if name not in self.stored]:
            self.report(f"{why}, and events are not stored: {missing[:_SHOWN]}")

    def _settled(self, names: Sequence[EventName], ack: Ack) -> None:
        self._open.pop(ack, None)
        if ack.exception() is None:
            self.happened["acknowledged events"] += len(names)
            self.check_stored(names, "acknowledged")

    def check_settled(self) -> None:
        """Each acknowledgement must be done."""
        for names in self._open.values():
            self.report(f"a closed writer leaves acknowledgements open: {list(names)[:_SHOWN]}")

    # The stores

    def note_stored(self, segment: StoredSegment, data: bytes) -> None:
        """Bytes were appended to a segment."""
        events, end = split_events(data, 0)
        if end != len(data):
            self.report(f"{segment.name} got a part of an event")
        for name in map(name_of, events):
            self.happened["stored events"] += 1
            if name in self.stored:
                self.report(f"{name} is stored twice, now in {segment.name}")
            elif name in self._must_be_absent or name.number > self._numbers[name.key]:
                self.report(f"{name} was not written, and is stored in {segment.name}")
            if problem := self._order.problem(name):
                self.report(f"{segment.name}: {problem}")
            self.stored[name] = now_us()

    # Readers

    def check_read(self, who: str, names: Sequence[EventName]) -> None:
        """A reader of the whole stream must have returned each event once."""
        found = Counter(names)
        expected = Counter(dict.fromkeys(self.stored, 1))
        if found != expected:
            missing, more = list(expected - found)[:_SHOWN], list(found - expected)[:_SHOWN]
            self.report(f"{who} read {len(names)} of {len(self.stored)} events; missing {missing}, too many {more}")
