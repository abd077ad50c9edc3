"""Load on one table after another: batches of updates and removals with and without conditions, one at a time."""

from __future__ import annotations

from typing import Final

from fuzz.checker import WrongStateError
from fuzz.connections import Connection
from fuzz.histories import Batch, Outcome, Request, TableHistory
from fuzz.lanes import Load
from fuzz.randomness import Random
from headrace import wire

_KEYS: Final = 40
_BATCHES: Final = (5, 60)
_CHANGES_MAX: Final = 6
_ELSEWHERE: Final = 1 << 50
"""A version that no entry has."""


class TableLane:
    """As `Lane`, for tables whose names begin with `prefix`."""

    def __init__(self, prefix: str, random: Random) -> None:
        self._prefix = prefix
        self._random = random
        self._generation = 0

    async def live(self, load: Load) -> None:
        connection = await load.connect()
        while True:
            table = self._table(load) or await self._create(load, connection)
            for _ in range(self._random.randint(*_BATCHES)):
                await self._change(load, connection, table)
            if self._random.random() < 0.5:
                table.delete = Request(load.position())
                command = wire.DeleteTableSegment(1, table.name, False)
                await self._ask(load, connection, command, table.delete, wire.SegmentDeleted)
            if self._random.random() < 0.3 or table.delete is None:
                self._generation += 1

    def _table(self, load: Load) -> TableHistory | None:
        name = f"{self._prefix}.{self._generation}"
        for table in reversed(load.history.tables):
            if table.name == name:
                gone = table.delete is not None and table.delete.outcome() is Outcome.DONE
                return None if gone or table.create.outcome() is not Outcome.DONE else table
        return None

    async def _create(self, load: Load, connection: Connection) -> TableHistory:
        table = TableHistory(f"{self._prefix}.{self._generation}", Request(load.position()))
        load.history.tables.append(table)
        command = wire.CreateTableSegment(1, table.name)
        await self._ask(load, connection, command, table.create, wire.SegmentCreated)
        return table

    async def _change(self, load: Load, connection: Connection, table: TableHistory) -> None:
        random = self._random
        keys = [b"key-%d" % number for number in random.sample(range(_KEYS), random.randint(1, _CHANGES_MAX))]
        versions = dict.fromkeys(keys, wire.NO_VERSION)
        if random.random() < 0.5:
            versions = await self._versions(connection, table, keys)
            if random.random() < 0.3:
                versions[random.choice(keys)] = _ELSEWHERE  # so nothing of the batch must happen
        removes = random.random() < 0.25
        values = [random.randbytes(random.randint(0, load.payload_bytes_max)) for _ in keys]
        batch = Batch(load.position())
        batch.changes = dict.fromkeys(keys) if removes else dict(zip(keys, values, strict=True))
        table.batches.append(batch)
        refusals = (wire.TableKeyBadVersion, wire.TableKeyDoesNotExist)
        if removes:
            wanted = tuple(wire.TableKey(key, versions[key]) for key in keys)
            removal = wire.RemoveTableKeys(1, table.name, "", wanted)
            await self._ask(load, connection, removal, batch, wire.TableKeysRemoved, *refusals)
            return
        entries = tuple(wire.TableEntry(key, versions[key], value) for key, value in zip(keys, values, strict=True))
        update = wire.UpdateTableEntries(1, table.name, "", entries)
        reply = await self._ask(load, connection, update, batch, wire.TableEntriesUpdated, *refusals)
        if isinstance(reply, wire.TableEntriesUpdated):
            batch.versions = dict(zip(keys, reply.versions, strict=True))
        if isinstance(reply, wire.TableEntriesUpdated) == (_ELSEWHERE in versions.values()):
            raise WrongStateError(f"an update of {table.name} with versions {versions} was answered {reply}")

    async def _versions(self, connection: Connection, table: TableHistory, keys: list[bytes]) -> dict[bytes, int]:
        command = wire.ReadTable(2, table.name, "", tuple(wire.TableKey(key) for key in keys))
        reply = await connection.call(command)
        if not isinstance(reply, wire.TableRead):
            raise WrongStateError(f"a read of {table.name} was answered {reply}")
        return {key: entry.version for key, entry in zip(keys, reply.entries, strict=True)}

    async def _ask(
        self,
        load: Load,
        connection: Connection,
        command: wire.WireCommand,
        request: Request,
        done: type[wire.WireCommand],
        *refused: type[wire.WireCommand],
    ) -> wire.WireCommand:
        reply = await connection.call(command)
        if not isinstance(reply, (done, *refused)):
            raise WrongStateError(f"{str(command)[:300]} was answered {reply}")
        request.answer(load.position(), done=isinstance(reply, done))
        load.answered()
        return reply
