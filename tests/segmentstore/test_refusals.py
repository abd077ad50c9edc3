"""S3 answers, but refuses: the store keeps what it has, tries again, and says so."""

from __future__ import annotations

import logging

import pytest
from botocore.exceptions import ClientError
from segment_writes import WRITER, created_segment
from store_world import World

from headrace import wire
from headrace.adapters.s3.chunk_storage import failure
from headrace.model.errors import InvalidRequestError
from headrace.ports.metadata_store import Write, metadata_store_refused

pytestmark = pytest.mark.anyio

SEGMENT = "scope/stream/0.#epoch.0"
REFUSALS = ["AccessDenied", "BadDigest", "ExpiredToken", "IncompleteBody", "RequestTimeTooSkewed", "SomethingNew"]


@pytest.fixture
def world(make_world: type[World]):
    return make_world(container_count=1)


def refusal(code):
    answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    return failure("asking for it", ClientError(answer, "Anything"))


def refusing(world: World, operation, code):
    """Every such call is refused until what is returned is called."""
    honest = getattr(world.chunks, operation)

    async def refuse(*_arguments, **_options):
        raise refusal(code)

    setattr(world.chunks, operation, refuse)
    return lambda: setattr(world.chunks, operation, honest)


@pytest.mark.parametrize("code", REFUSALS)
async def test_refused_put_is_repeated_until_it_succeeds(world: World, caplog, code):
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"one")
        container = running.store.owned[0].container
        grant = refusing(world, "put", code)
        world.clock.advance(2e6)
        await running.until(lambda: container.metrics.storage_refusals >= 3)
        await client.append(WRITER, 1, b"two")
        assert container.failure is None
        assert await client.read_all(SEGMENT) == b"onetwo"
        grant()
        await running.flush()
        assert container.metadata.segments[SEGMENT].is_stored
        assert await client.read_all(SEGMENT) == b"onetwo"
    alarms = [record for record in caplog.records if record.getMessage().startswith("event=storage_refused")]
    assert len(alarms) >= 3
    assert {record.levelno for record in alarms} == {logging.ERROR}
    assert all(f"cause={code} " in record.getMessage() for record in alarms)


async def test_refusal_by_the_metadata_store_is_repeated(world: World, caplog):
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"one")
        container = running.store.owned[0].container
        honest = world.metadata.write

        def refuse(*_writes: Write) -> None:
            raise metadata_store_refused("a write", "KMSAccessDeniedException")

        world.metadata.write = refuse  # type: ignore[method-assign]
        world.clock.advance(2e6)
        await running.until(lambda: container.metrics.storage_refusals >= 3)
        await client.append(WRITER, 1, b"two")
        assert container.failure is None
        world.metadata.write = honest  # type: ignore[method-assign]
        await running.flush()
        assert container.metadata.segments[SEGMENT].is_stored
        assert await client.read_all(SEGMENT) == b"onetwo"
    assert any("cause=KMSAccessDeniedException" in record.getMessage() for record in caplog.records)


async def test_refusal_without_a_kind_of_its_own_is_repeated(world: World):
    async with world.running() as running:
        await created_segment(running, SEGMENT, b"one")
        container = running.store.owned[0].container
        honest = world.chunks.put

        async def refuse(*_arguments: object) -> None:
            raise InvalidRequestError("the object is too large")

        world.chunks.put = refuse  # type: ignore[method-assign]
        world.clock.advance(2e6)
        await running.until(lambda: container.metrics.storage_refusals >= 3)
        assert container.failure is None
        world.chunks.put = honest  # type: ignore[method-assign]
        await running.flush()


async def test_refused_deletion_is_repeated(world: World):
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"data")
        container = running.store.owned[0].container
        await running.flush()
        await client.call(wire.DeleteSegment(3, SEGMENT))
        await running.until(lambda: not container.metadata.deletions)
        grant = refusing(world, "delete", "AccessDenied")
        world.clock.advance(world.limits.sweep_every_s + world.limits.object_grace_s)
        await running.until(lambda: container.metrics.storage_refusals >= 2)
        assert container.failure is None
        grant()
        world.clock.advance(world.limits.sweep_every_s)
        await running.until(lambda: not world.metadata.query("objects/container-0000", limit=9).records)


async def test_refused_read_gets_an_error_and_has_no_other_effect(world: World):
    async with world.running() as running:
        client = await created_segment(running, SEGMENT, b"data")
        container = running.store.owned[0].container
        await running.flush()
        container.metadata.segments[SEGMENT].index.release_all()
        grant = refusing(world, "read", "ExpiredToken")
        reply = await client.call(wire.ReadSegment(SEGMENT, 0, 100, "", 4))
        assert isinstance(reply, wire.ErrorMessage), reply
        assert container.failure is None
        grant()
        assert await (await running.connect()).read_all(SEGMENT) == b"data"
