"""Load on a deployment whose stores come and go: lanes that go on at the next owner, each with a history of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from fuzz.checker import WrongStateError, check, writer_id
from fuzz.connections import Connection
from fuzz.histories import Append, History, Outcome, Request, SegmentHistory, WriterHistory, block_bytes
from fuzz.lanes import Lane, Load
from fuzz.randomness import Random
from fuzz.routed_connections import RoutedConnection, Router
from fuzz.table_lane import TableLane
from headrace import wire
from headrace.model.names import container_of_segment
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore

PAYLOAD_BYTES_MAX: Final = 2_000
STEADY_BYTES: Final = 100
STEADY_EVERY_S: Final = 0.02
LANES: Final = 2
PATIENCE_S: Final = 90.0
"""Far beyond what any takeover takes: it only turns a hang into a failure."""

_RETRY_S: Final = 0.05
_POLL_S: Final = 0.05


class Acknowledgements:
    """When each container acknowledged a change, in seconds of the clock."""

    def __init__(self, container_count: int, clock: Clock) -> None:
        self._clock = clock
        self.times_s: list[list[float]] = [[] for _ in range(container_count)]

    def note(self, container: int) -> None:
        self.times_s[container].append(self._clock.monotonic_s())

    @property
    def counts(self) -> list[int]:
        return [len(times_s) for times_s in self.times_s]

    def longest_pauses_s(self, since_s: float) -> list[float]:
        """Per container, the longest time between two acknowledgements, of which the second came after `since_s`."""
        return [
            max((after - before for before, after in itertools.pairwise(times_s) if after > since_s), default=0.0)
            for times_s in self.times_s
        ]


class SteadyLane:
    """One writer that appends to one segment of a container, one block at a time, at a steady pace."""

    def __init__(self, container: int, container_count: int) -> None:
        names = (f"steady/stream/{number}.#epoch.0" for number in itertools.count())
        self.name = next(name for name in names if container_of_segment(name, container_count) == container)

    async def live(self, load: Load) -> None:
        """Until its owner is gone: raises ConnectionError then."""
        connection = await load.connect()
        writer = await self._writer(load, connection)
        setup = await connection.call(wire.SetupAppend(1, writer_id(writer.tag), self.name))
        if not isinstance(setup, wire.AppendSetup):
            raise WrongStateError(f"{self.name}: {setup}")
        number = max(setup.last_event_number, -1) + 1
        while True:
            append = Append(load.position(), number=number, payload_bytes=STEADY_BYTES)
            writer.appends.append(append)
            data = block_bytes(writer.tag, append)
            command = wire.AppendBlockEnd(writer_id(writer.tag), len(data), data, 1, number, 2)
            reply = await connection.call(command)
            if not isinstance(reply, wire.DataAppended) or reply.event_number != number:
                raise WrongStateError(f"block {number} of {self.name} was answered {reply}")
            append.answer(load.position(), done=True)
            append.end = reply.current_segment_write_offset
            load.answered()
            number += 1
            await asyncio.sleep(STEADY_EVERY_S)

    async def _writer(self, load: Load, connection: Connection) -> WriterHistory:
        segments = load.history.segments
        if not segments or segments[-1].create.outcome() is not Outcome.DONE:
            segment = SegmentHistory(self.name, Request(load.position()))
            segment.writers.append(WriterHistory(load.history.new_tag(), segment))
            segments.append(segment)
            reply = await connection.call(wire.CreateSegment(1, self.name, 0, 0))
            if not isinstance(reply, wire.SegmentCreated):
                raise WrongStateError(f"the creation of {self.name} was answered {reply}")
            segment.create.answer(load.position(), done=True)
        return segments[-1].writers[0]


class AnyLane(Protocol):
    async def live(self, load: Load) -> None:
        """Until its owner is gone: raises ConnectionError, or a group of them, then."""
        ...


def all_lanes(container_count: int, random: Random) -> list[AnyLane]:
    """Every container has a steady writer; other lanes do everything else that a store can be asked."""
    lanes: list[AnyLane] = [SteadyLane(container, container_count) for container in range(container_count)]
    lanes += [Lane(f"scope/stream/{number}", Random(random.random())) for number in range(LANES)]
    lanes.append(TableLane("scope/table", Random(random.random())))
    return lanes


class ReplicatedLoad:
    """Lanes that continue at the next owner when theirs is gone, each with a history of its own."""

    def __init__(self, metadata: MetadataStore, container_count: int, lanes: Sequence[AnyLane], clock: Clock) -> None:
        self.acknowledged = Acknowledgements(container_count, clock)
        self._router = Router(metadata, container_count, self.acknowledged.note)
        self._clock = clock
        self._answers = 0
        self._steady = [lane.name for lane in lanes if isinstance(lane, SteadyLane)]
        self._lanes = [(lane, History()) for lane in lanes]
        self._tasks: list[asyncio.Task[None]] = []
        self._live_lanes = 0

    @property
    def requests(self) -> int:
        """The number of requests that were answered."""
        return self._answers

    def steady_segment(self, container: int) -> str:
        """The segment of the steady writer of a container."""
        return self._steady[container]

    async def start(self) -> None:
        """Begin, or go on after `break_off`: everything is checked before that."""
        self._tasks = [asyncio.create_task(self._router.run())]
        self._tasks += [asyncio.create_task(self._go_on(lane, history)) for lane, history in self._lanes]

    async def break_off(self) -> None:
        """End at once. The stores must be dead: what is under way could happen later.

        Raises:
            WrongStateError, ContentError: a lane found something wrong.
        """
        self.raise_failure()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def check(self) -> None:
        """Check every lane while there is no load. Raises WrongStateError, ContentError."""
        following = asyncio.create_task(self._router.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                for _, history in self._lanes:
                    while not await self._is_checked(history):
                        await asyncio.sleep(_RETRY_S)
        finally:
            following.cancel()

    async def progress(self, more: int = 10, containers: Sequence[int] | None = None) -> None:
        """Wait until these containers, or all, have acknowledged so many more changes."""
        counts = self.acknowledged.counts
        wanted = {each: counts[each] + more for each in (range(len(counts)) if containers is None else containers)}
        await self._until_none(
            lambda: [each for each, count in wanted.items() if self.acknowledged.counts[each] < count],
            f"containers acknowledged fewer than {more} changes",
        )

    async def all_live(self) -> None:
        """Wait until no lane checks its history, of which tier 2 alone may have the beginning."""
        await self._until_none(lambda: range(self._live_lanes, len(self._lanes)), "lanes check their histories")

    async def _until_none(self, waiting: Callable[[], Sequence[int]], what: str) -> None:
        end_s = self._clock.monotonic_s() + PATIENCE_S
        while left := waiting():
            self.raise_failure()
            if self._clock.monotonic_s() > end_s:
                raise WrongStateError(f"{what} in {PATIENCE_S} s: {list(left)}")
            await asyncio.sleep(_POLL_S)

    def raise_failure(self) -> None:
        """Raise what ended a lane, if anything did."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _go_on(self, lane: AnyLane, history: History) -> None:
        while True:
            if await self._is_checked(history):
                await self._live(lane, history)
            await asyncio.sleep(_RETRY_S)

    async def _is_checked(self, history: History) -> bool:
        """Check and settle a history. False if an owner went away meanwhile."""
        connection = await self._router.connect()
        try:
            (await check(connection, history)).settle(0)
        except ConnectionError:
            return False
        finally:
            connection.close()
        return True

    async def _live(self, lane: AnyLane, history: History) -> None:
        """Until an owner goes away."""
        opened: list[RoutedConnection] = []
        self._live_lanes += 1

        async def connect() -> Connection:
            opened.append(await self._router.connect())
            return opened[-1]

        try:
            await lane.live(Load(history, connect, lambda: 0, self._note_answer, PAYLOAD_BYTES_MAX))
        except* ConnectionError:
            await asyncio.sleep(0)
        finally:
            self._live_lanes -= 1
            for connection in opened:
                connection.close()
        # Up to Python 3.12 a task group that fails swallows a cancellation that comes while its tasks end.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    def _note_answer(self) -> None:
        self._answers += 1
