"""Chunk storage in memory that loses answers, refuses requests, and lets PUTs arrive much later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.model.errors import AlreadyExistsError, ThrottledError, UnavailableError
from headrace.ports.chunk_storage import StoredObject

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Fate(Enum):
    """What happens to a PUT. LATE: the caller gets no answer, and the request arrives when the test delivers it."""

    DONE = "done"
    ANSWER_LOST = "answer lost"
    CONFLICT = "409"
    UNAVAILABLE = "503"
    LATE = "late"
    HELD = "held"
    """The caller waits until the test lets the request arrive."""


class UnreliableChunks:
    """`fate` is asked for each PUT, `fails` for each other request, `turns` for how long a request is under way."""

    def __init__(
        self,
        fate: Callable[[str], Fate] = lambda _name: Fate.DONE,
        fails: Callable[[], bool] = lambda: False,
        turns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.stored = MemoryChunkStorage()
        self.fate = fate
        self.fails = fails
        self.turns = turns
        self.puts: list[str] = []
        self.late: deque[tuple[str, bytes]] = deque()
        self.held: deque[asyncio.Future[None]] = deque()
        self.deleted: list[str] = []

    async def put(self, name: str, parts: Sequence[Buffer]) -> None:
        self.puts.append(name)
        fate = self.fate(name)
        await self._travel()
        match fate:
            case Fate.CONFLICT:
                raise ThrottledError(f"creating {name}: 409")
            case Fate.UNAVAILABLE:
                raise UnavailableError(f"creating {name}: 503")
            case Fate.LATE:
                self.late.append((name, b"".join(parts)))
                raise UnavailableError(f"creating {name}: no answer")
            case Fate.HELD:
                arrival = asyncio.get_running_loop().create_future()
                self.held.append(arrival)
                await arrival
        await self.stored.put(name, parts)
        await self._travel()
        if fate is Fate.ANSWER_LOST:
            raise UnavailableError(f"creating {name}: no answer")

    async def read(self, name: str, position: int, length: int) -> bytes:
        await self._ask()
        return await self.stored.read(name, position, length)

    async def delete(self, names: Sequence[str]) -> None:
        await self._ask()
        self.deleted += names
        await self.stored.delete(names)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[StoredObject]:
        await self._ask()
        return await self.stored.list(prefix, after=after, limit=limit)

    async def deliver(self, random: Random | None = None) -> None:
        """Let one late PUT arrive: the oldest, or any."""
        if self.late:
            if random is not None:
                self.late.rotate(random.randrange(len(self.late)))
            name, content = self.late.popleft()
            with suppress(AlreadyExistsError):
                await self.stored.put(name, [content])

    def let_arrive(self) -> None:
        """Let the oldest PUT that is held arrive."""
        self.held.popleft().set_result(None)

    async def names(self, prefix: str = "") -> dict[str, int]:
        """The lengths of the objects."""
        return {each.name: each.length for each in await self.stored.list(prefix)}

    async def _ask(self) -> None:
        await self._travel()
        if self.fails():
            raise UnavailableError("no answer")

    async def _travel(self) -> None:
        for _ in range(self.turns()):
            await asyncio.sleep(0)
