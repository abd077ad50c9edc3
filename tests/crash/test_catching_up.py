"""Three real stores: a member that was killed catches up with a log while its writers append as fast as they can."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fuzz import replicated_stores
from fuzz.connections import SocketConnection
from fuzz.replicated_stores import Store, StoreGroup
from fuzz.store_process import StoreProcess
from headrace import wire
from headrace.metadata.cluster_records import ClusterRecords
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import COPIES

SUPPORT = Path(__file__).parent.parent / "support"
LOG = 0
WRITERS = 3
EVENT_BYTES = 128 << 10
IN_FLIGHT = 16
FILE_BYTES = 256 << 20
"""Large files let the log grow before it is truncated: a member that comes back lacks much more than one window."""

NEVER_BYTES = 1 << 40

POLL_S = 0.1


class Writer:
    """Keeps events in flight until it is told to stop. `acknowledged` counts them."""

    def __init__(self, number: int) -> None:
        self.segment = f"scope/stream/{number}.#epoch.0"
        self.acknowledged = 0
        self.is_stopped = False
        self._number = number
        self._event = os.urandom(EVENT_BYTES)
        """Random bytes: the log compresses others, and a window would have all that a member lacks."""

    async def run(self, owner: Store) -> None:
        """Connect again if the store has closed the connection: it may do so with a slow one, as to any client."""
        while True:
            connection = await SocketConnection.open(owner.process.port, owner.process.host)
            with suppress(ConnectionError):
                await self._write(connection)
                return
            connection.close()

    async def _write(self, connection: SocketConnection) -> None:
        await connection.call(wire.CreateSegment(1, self.segment, 0, 0))
        found = await connection.call(wire.SetupAppend(2, self._number, self.segment))
        assert isinstance(found, wire.AppendSetup), found
        self.acknowledged = sent = max(found.last_event_number, self.acknowledged)
        while not self.is_stopped or self.acknowledged < sent:
            while not self.is_stopped and sent < self.acknowledged + IN_FLIGHT:
                sent += 1
                connection.send(wire.AppendBlockEnd(self._number, EVENT_BYTES, self._event, 1, sent, sent))
            reply = await connection.receive()
            assert isinstance(reply, wire.DataAppended), reply
            self.acknowledged = reply.event_number
        info = await connection.call(wire.GetStreamSegmentInfo(3, self.segment))
        assert isinstance(info, wire.StreamSegmentInfo), info
        assert info.write_offset == self.acknowledged * EVENT_BYTES
        connection.close()


def members(group: StoreGroup) -> set[str]:
    """The stores that the record of the log names."""
    log = ContainerLogRecords(group.metadata).read(LOG).log
    return set() if log is None else {group.store_of(member.hex()) for member in log.members}


async def until(condition: Callable[[], bool], *running: asyncio.Future[Any]) -> None:
    """Wait for a state of the stores, however long it takes. What runs meanwhile must not end."""
    while not await asyncio.to_thread(condition):
        for each in running:
            assert not each.done(), each
        await asyncio.sleep(POLL_S)


def owner_of(group: StoreGroup) -> Store:
    claim = ClusterRecords(group.metadata).containers([LOG])[0].claim
    assert claim is not None
    return next(store for store in group.stores if store.store_id == claim.store_id)


async def comes_back(group: StoreGroup) -> None:
    watching = asyncio.ensure_future(group.watch())
    await until(lambda: len(members(group)) == COPIES, watching)
    owner = await asyncio.to_thread(owner_of, group)
    lost = next(store for store in group.stores if store is not owner)
    writers = [Writer(number) for number in range(1, WRITERS + 1)]
    writing: list[asyncio.Future[None]] = [asyncio.ensure_future(writer.run(owner)) for writer in writers]
    try:
        await until(lambda: all(writer.acknowledged for writer in writers), *writing)
        await asyncio.to_thread(lost.kill)
        await until(lambda: lost.store_id not in members(group), watching, *writing)
        await asyncio.to_thread(group.start, lost)
        await until(lambda: len(members(group)) == COPIES, watching, *writing)
    finally:
        for writer in writers:
            writer.is_stopped = True
        await asyncio.gather(*writing)
        watching.cancel()


def slow_stores(environment: Mapping[str, str], directory: Path, _module: str) -> StoreProcess:
    return StoreProcess(environment, directory, "slow_catch_ups")


@pytest.mark.nightly
@pytest.mark.xdist_group("foreign_client")  # it starts many processes: one after the other
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of connections to stores that were killed
def test_killed_member_catches_up_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its share of what is appended must suffice. The writers stop when it is a member again."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    monkeypatch.setattr(replicated_stores, "StoreProcess", slow_stores)
    settings = {"container_count": 1, "checkpoint_bytes": NEVER_BYTES, "journal_file_bytes": FILE_BYTES}
    with replicated_stores.replicated_stores(tmp_path, settings) as group:
        group.start(*(group.add(zone) for zone in "abc"))
        asyncio.run(comes_back(group))
