"""A client with one lane of `fuzz`: load until its connection breaks, then a check of everything that it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from fuzz.checker import check
from fuzz.histories import History
from fuzz.inheritance import inherit
from fuzz.lanes import Lane, Load
from fuzz.table_lane import TableLane
from simulation.store_level.connections import RoutedConnection, StoreDirectory
from simulation.world.loop import SimulatedLoop

_RETRY_S: Final = 0.3
_QUIET_S: Final = 0.5
"""After its connections are closed, so that each store knows it."""


class _StoppedError(ConnectionError):
    """The client was told to stop."""


class LaneClient:
    """`when_settled` calls its argument when all stores have processed what they have accepted."""

    def __init__(
        self,
        loop: SimulatedLoop,
        number: int,
        lane: Lane | TableLane,
        stores: StoreDirectory,
        when_settled: Callable[[Callable[[], None]], None],
        payload_bytes_max: int,
    ) -> None:
        self.answers = 0
        self.verified = 0
        self.is_idle = False
        self.violation: str | None = None
        self._process = loop.new_process(f"client-{number}")
        self._lane = lane
        self._history = History()
        self._stores = stores
        self._when_settled = when_settled
        self._payload_bytes_max = payload_bytes_max
        self._connections: list[RoutedConnection] = []
        self._stopped = False
        self._is_lost: Callable[[str], bool] | None = None
        self._process.spawn(self._run())

    def note_loss(self, is_lost: Callable[[str], bool]) -> None:
        """An operator has accepted the loss of a log: segments of which `is_lost` says so begin with what is left.

        The client has no connection to their stores then.
        """
        self._is_lost = is_lost

    def stop(self) -> None:
        """End the load after the next answer. The client checks everything once more, and is idle then."""
        self._stopped = True

    def verify_again(self) -> None:
        """Check everything again."""
        self.is_idle = False
        self._process.spawn(self._run())

    async def _run(self) -> None:
        try:
            while True:
                await self._verify()
                if self._stopped:
                    break
                await self._live()
            self.is_idle = True
        except Exception as error:  # noqa: BLE001 - whatever it is, the store's answers are not what they must be
            self.violation = _described(error)

    async def _live(self) -> None:
        load = Load(self._history, self._connect, lambda: 0, self._answered, self._payload_bytes_max)
        try:
            await self._lane.live(load)
        except* ConnectionError:
            self._close()

    async def _verify(self) -> None:
        """Wait until the store has processed what was in flight, then check, and decide what has happened of it."""
        while True:
            await asyncio.sleep(_QUIET_S)
            settled = asyncio.Event()
            self._when_settled(partial(self._process.call_soon, settled.set))
            await settled.wait()
            try:
                connection = await self._connect()
                if self._is_lost is not None:
                    await inherit(connection, self._history, self._is_lost)
                    self._is_lost = None
                verdict = await check(connection, self._history)
            except ConnectionError:
                self._close()
                await asyncio.sleep(_RETRY_S)
                continue
            verdict.settle(0)
            self.verified += 1
            self._close()
            return

    async def _connect(self) -> RoutedConnection:
        self._connections.append(RoutedConnection(self._stores, self._process))
        return self._connections[-1]

    def _close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _answered(self) -> None:
        self.answers += 1
        if self._stopped:
            raise _StoppedError


def _described(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_described(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"[-600:]
