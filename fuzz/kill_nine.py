"""kill -9 of a real store process under load, at any moment, also while it recovers; then a check of everything."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuzz.checker import check
from fuzz.connections import Connection, SocketConnection
from fuzz.histories import History
from fuzz.lanes import Lane, Load
from fuzz.randomness import Random
from fuzz.store_process import StoreProcess, store_process
from fuzz.table_lane import TableLane

LANES: Final = 3
PAYLOAD_BYTES_MAX: Final = 30_000
ANSWERS_PER_LIFE: Final = (1, 300)
EARLY_DEATH_S_MAX: Final = 1.5
"""A store that is killed before it serves gets at most this much time."""


def torture(seed: int, *, kills: int) -> int:
    """So many lives under load, then a stop in good order and a check from tier 2 alone; the number of requests.

    Raises:
        WrongStateError, ContentError: something acknowledged was lost, or something else is there.
        LocalStackError: the store does not come up again.
    """
    random = Random(seed)
    settings = {
        "cache_bytes": 64 << 20,
        "journal_file_bytes": 32 << 20,
        "flush_age_s": 0.05,
        "flush_bytes": random.choice([1, 100_000, 1_000_000]),
        "checkpoint_bytes": random.choice([100_000, 1_000_000]),
    }
    history = History()
    lanes: list[Lane | TableLane] = [Lane(f"scope/stream/{number}", Random(random.random())) for number in range(LANES)]
    lanes.append(TableLane("scope/table", Random(random.random())))
    with (
        tempfile.TemporaryDirectory(prefix="headrace-kill-nine-") as directory,
        store_process(Path(directory), settings) as store,
    ):
        for _ in range(kills):
            _die_early(store, random)
            store.start()
            asyncio.run(_one_life(store, lanes, history, random.randint(*ANSWERS_PER_LIFE)))
            store.reap()
        store.start()
        asyncio.run(_check(store, history))
        if not store.stop():
            raise AssertionError(f"seed {seed}: the store did not shut down cleanly")
        store.start()  # memory is empty now: everything comes from tier 2
        asyncio.run(_check(store, history))
    return sum(1 for segment in history.segments for _ in segment.requests())


def _die_early(store: StoreProcess, random: Random) -> None:
    """Perhaps kill it while it starts or recovers, also twice."""
    for _ in range(random.choice((0, 0, 1, 2))):
        store.launch()
        asyncio.run(asyncio.sleep(random.random() * EARLY_DEATH_S_MAX))
        store.kill()
        store.reap()


async def _check(store: StoreProcess, history: History) -> None:
    connection = await SocketConnection.open(store.port)
    (await check(connection, history)).settle(0)
    connection.close()


async def _one_life(store: StoreProcess, lanes: Sequence[Lane | TableLane], history: History, answers: int) -> None:
    await _check(store, history)
    left, connections = answers, list[Connection]()

    def answered() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            store.kill()

    async def connect() -> Connection:
        connections.append(await SocketConnection.open(store.port))
        return connections[-1]

    load = Load(history, connect, lambda: 0, answered, PAYLOAD_BYTES_MAX)
    try:
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(lane.live(load))
    except* ConnectionError:
        if left > 0:
            raise
    for connection in connections:
        connection.close()
