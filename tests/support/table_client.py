"""Short forms of the table commands, on one connection of a raw client."""

from __future__ import annotations

from typing import Any

from store_world import WireClient

from headrace import wire


class TableClient:
    """Commands on the table `name` unless another one is given; `client` has `call` and `send`."""

    def __init__(self, client: WireClient, name: str) -> None:
        self.client = client
        self.name = name

    async def create(self, *, key_length: int = 0) -> None:
        reply = await self.client.call(wire.CreateTableSegment(1, self.name, "", False, key_length))
        assert reply == wire.SegmentCreated(1, self.name), reply

    async def put(self, *changes: tuple[bytes, int, bytes], table: str = "", offset: int = -1) -> Any:
        entries = tuple(wire.TableEntry(key, version, value) for key, version, value in changes)
        return await self.client.call(wire.UpdateTableEntries(3, table or self.name, "", entries, offset))

    async def remove(self, *changes: tuple[bytes, int], table: str = "", offset: int = -1) -> Any:
        keys = tuple(wire.TableKey(key, version) for key, version in changes)
        return await self.client.call(wire.RemoveTableKeys(4, table or self.name, "", keys, offset))

    async def get(self, *keys: bytes, table: str = "") -> list[tuple[bytes, int, bytes]]:
        asked = tuple(wire.TableKey(key) for key in keys)
        reply = await self.client.call(wire.ReadTable(5, table or self.name, "", asked))
        assert isinstance(reply, wire.TableRead), reply
        return [(entry.key, entry.version, bytes(entry.value)) for entry in reply.entries]

    async def values(self, *keys: bytes, table: str = "") -> list[bytes]:
        return [value for _, _, value in await self.get(*keys, table=table)]

    async def info(self, table: str = "") -> wire.TableSegmentInfo:
        reply = await self.client.call(wire.GetTableSegmentInfo(6, table or self.name))
        assert isinstance(reply, wire.TableSegmentInfo), reply
        return reply

    async def delta(self, position: int, count: int, table: str = "") -> wire.TableEntriesDeltaRead:
        reply = await self.client.call(wire.ReadTableEntriesDelta(7, table or self.name, "", position, count))
        assert isinstance(reply, wire.TableEntriesDeltaRead), reply
        return reply

    async def pages(self, count: int) -> list[tuple[bytes, int, bytes]]:
        """Everything, page by page, until one is empty."""
        found: list[tuple[bytes, int, bytes]] = []
        token = b""
        while True:
            page = await self.client.call(wire.ReadTableEntries(8, self.name, "", count, token))
            assert isinstance(page, wire.TableEntriesRead), page
            if not page.entries:
                return found
            assert len(page.entries) <= count
            found += [(entry.key, entry.version, bytes(entry.value)) for entry in page.entries]
            token = bytes(page.continuation_token)

    async def deltas(self, count: int) -> dict[bytes, tuple[int, bytes]]:
        """What one knows who reads everything from the first position on."""
        known, position = {}, 0
        while True:
            page = await self.delta(position, count)
            known.update({entry.key: (entry.version, bytes(entry.value)) for entry in page.entries})
            position = page.last_position
            if page.reached_end:
                return known
