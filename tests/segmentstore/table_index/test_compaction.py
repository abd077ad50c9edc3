"""Tables get shorter: what stays, who is told, and when a head may go."""

from __future__ import annotations

import pytest
from small_tables import ANY, NONE, SMALL, TABLE, container_of_table, resident, tiering, upkeep_done
from store_world import World
from table_client import TableClient

from headrace import wire
from headrace.model.errors import ThrottledError

pytestmark = pytest.mark.anyio


async def test_small_tables_get_no_index_objects_after_many_updates(small_world: World):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        versions = dict.fromkeys([b"a", b"b", b"c"], NONE)
        async with tiering(running):
            for number in range(400):
                each = b"abc"[number % 3 : number % 3 + 1]
                reply = await tables.put((each, versions[each], b"%0200d" % number))
                (versions[each],) = reply.versions
                if number % 50 == 0:  # on a busy machine the table would become too long to stay without an index
                    await upkeep_done(running)
        await upkeep_done(running)
        info = await tables.info()
        assert info.entry_count == 3
        assert info.start_offset > 0
        assert info.length - info.start_offset <= 2 * SMALL.compaction_segment_bytes
        assert small_world.chunks.calls == []
        assert {each: found for each, found, _ in await tables.pages(2)} == versions


async def test_compaction_keeps_versions_and_restarts_delta_readers(small_world: World):
    async with small_world.running(graceful=False) as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        (version,) = (await tables.put((b"kept", ANY, b"forever"))).versions
        middle = (await tables.delta(0, 10)).last_position
        assert not (await tables.delta(0, 10)).should_clear
        for number in range(200):
            await tables.put((b"busy", ANY, b"%0200d" % number))
        await upkeep_done(running)
        await upkeep_done(running)
        info = await tables.info()
        assert info.start_offset > middle
        assert await tables.get(b"kept") == [(b"kept", version, b"forever")]
        for position in (0, middle):
            page = await tables.delta(position, 10)
            assert page.should_clear
            assert {entry.key for entry in page.entries} == {b"kept", b"busy"}
        assert not (await tables.delta(info.start_offset, 10)).should_clear
        assert isinstance(await tables.put((b"kept", version, b"changed")), wire.TableEntriesUpdated)
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        assert await tables.values(b"kept", b"busy") == [b"changed", b"%0200d" % 199]


async def test_head_is_truncated_only_when_tier_2_has_newer_entries(small_world: World):
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        await tables.put((b"busy", ANY, b"old"), (b"kept", ANY, b"old"))
        await running.flush()
        for number in range(200):
            await tables.put((b"busy", ANY, b"%0200d" % number))
        await running.until(lambda: resident(running).task is None)
        held = resident(running)
        assert held.upkeep._truncations
        assert (await tables.info()).start_offset == 0
        await upkeep_done(running)
        assert (await tables.info()).start_offset > 0


async def test_truncation_that_was_refused_is_tried_again(small_world: World, monkeypatch: pytest.MonkeyPatch):
    """The log may have no room for it at first."""
    async with small_world.running() as running:
        tables = TableClient(await running.connect(), TABLE)
        await tables.create()
        container = running.store.owned[container_of_table(small_world)].container
        truncate, refused = container.truncate, []

        async def refuse_once(name: str, offset: int) -> None:
            if not refused:
                refused.append(offset)
                raise ThrottledError("the log is full")
            await truncate(name, offset)

        monkeypatch.setattr(container, "truncate", refuse_once)
        for number in range(200):
            await tables.put((b"busy", ANY, b"%0200d" % number))
        await upkeep_done(running)
        assert (await tables.info()).start_offset >= refused[0] > 0
