"""What `ports.chunk_storage` promises, on every implementation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.model.errors import AlreadyExistsError, InvalidRequestError, NotFoundError
from headrace.ports.chunk_storage import ChunkStorage

pytestmark = pytest.mark.anyio

DATA = bytes(range(256)) * 1000


async def test_an_object_is_its_parts_joined(chunk_storage: ChunkStorage):
    parts = [DATA[:1], memoryview(DATA)[1:70_000], b"", bytearray(DATA[70_000:])]
    await chunk_storage.put("a/1", parts)
    assert await chunk_storage.read("a/1", 0, len(DATA)) == DATA
    for position, length in [(0, 1), (255, 70_000), (len(DATA) - 1, 1), (69_999, 2), (5, 0)]:
        assert await chunk_storage.read("a/1", position, length) == DATA[position : position + length]


async def test_a_name_is_given_once(chunk_storage: ChunkStorage):
    await chunk_storage.put("a", [b"first"])
    with pytest.raises(AlreadyExistsError):
        await chunk_storage.put("a", [b"second"])
    assert await chunk_storage.read("a", 0, 5) == b"first"
    await chunk_storage.delete(["a"])
    await chunk_storage.put("a", [b"third"])
    assert await chunk_storage.read("a", 0, 5) == b"third"


async def test_of_many_creators_one_wins(chunk_storage: ChunkStorage):
    outcomes = await asyncio.gather(*[chunk_storage.put("a", [b"%d" % n]) for n in range(6)], return_exceptions=True)
    winners = [n for n, outcome in enumerate(outcomes) if outcome is None]
    assert len(winners) == 1
    assert all(isinstance(outcome, AlreadyExistsError) for outcome in outcomes if outcome is not None)
    assert await chunk_storage.read("a", 0, 1) == b"%d" % winners[0]


async def test_empty_objects_exist(chunk_storage: ChunkStorage):
    await chunk_storage.put("a", [])
    assert [(chunk.name, chunk.length) for chunk in await chunk_storage.list("a")] == [("a", 0)]
    with pytest.raises(NotFoundError):
        await chunk_storage.read("a", 0, 1)


@pytest.mark.parametrize(("position", "length"), [(0, 11), (9, 2), (10, 1), (11, 1), (1 << 40, 1)])
async def test_bytes_that_are_not_there_are_not_found(chunk_storage: ChunkStorage, position: int, length: int):
    await chunk_storage.put("a", [b"0123456789"])
    with pytest.raises(NotFoundError):
        await chunk_storage.read("a", position, length)
    with pytest.raises(NotFoundError):
        await chunk_storage.read("b", position, length)


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, -1)])
async def test_ranges_that_are_none_are_refused(chunk_storage: ChunkStorage, position: int, length: int):
    with pytest.raises(InvalidRequestError):
        await chunk_storage.read("a", position, length)


async def test_an_object_needs_a_name(chunk_storage: ChunkStorage):
    with pytest.raises(InvalidRequestError):
        await chunk_storage.put("", [b"x"])


async def test_delete_takes_many_and_forgives_the_absent(chunk_storage: ChunkStorage):
    names = [f"a/{n}" for n in range(7)]
    await asyncio.gather(*[chunk_storage.put(name, [b"x"]) for name in names])
    await chunk_storage.delete([*names[2:], "a/none"])
    await chunk_storage.delete([])
    assert [chunk.name for chunk in await chunk_storage.list("")] == names[:2]
    await chunk_storage.delete(names)
    assert await chunk_storage.list("") == []


async def test_list_goes_by_prefix_order_and_page(chunk_storage: ChunkStorage):
    names = sorted(["a", "a/1", "a/10", "a/2", "b/1", "ä"], key=str.encode)
    await asyncio.gather(*[chunk_storage.put(name, [b"x" * len(name)]) for name in names])

    async def listed(prefix: str, **options: Any) -> list[str]:
        return [chunk.name for chunk in await chunk_storage.list(prefix, **options)]

    assert await listed("") == names
    assert await listed("a/") == ["a/1", "a/10", "a/2"]
    assert await listed("a/", after="a/1") == ["a/10", "a/2"]
    assert await listed("", after="a/10", limit=2) == ["a/2", "b/1"]
    assert await listed("a/", after="a/2") == []
    assert await listed("c") == []
    chunks = await chunk_storage.list("b")
    assert [(entry.name, entry.length) for entry in chunks] == [("b/1", 3)]
    assert chunks[0].last_modified_ms > 1_700_000_000_000
    with pytest.raises(InvalidRequestError):
        await chunk_storage.list("", limit=0)
