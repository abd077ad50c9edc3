"""A store that was deposed finds out before it writes to tier 2."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.codec import wire_commands as wire
from headrace.model.errors import FencedError, UnavailableError
from headrace.segmentstore.claim_watch import CLAIM_CHECKS_SKIPPED_MAX

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = 5


def test_a_deposed_container_stops_at_the_next_look_and_the_others_go_on(make_world, run):
    world = make_world(container_count=3)

    async def scenario():
        async with world.running() as running:
            client = await running.connect()
            await client.create(SEGMENT)
            await client.set_up(SEGMENT, WRITER)
            await client.append(WRITER, 1, b"mine")
            await running.store.claims.check()
            assert len(running.store.owned) == 3
            container = running.store.owner_of(SEGMENT).container
            world.claim(container.container)
            await running.store.claims.check()
            assert isinstance(container.failure, FencedError)
            assert container.container not in running.store.owned
            assert len(running.store.owned) == 2
            assert await client.call(wire.AppendBlockEnd(WRITER, 1, b"x", 1, 2, 9)) == wire.WrongHost(9, SEGMENT)

    run(scenario())


def test_looks_are_one_read_for_all_containers_and_rare_while_nothing_happens(make_world, run):
    world = make_world(container_count=3)
    calls = Counter()

    async def scenario():
        async with world.running() as running:
            client, claims = await running.connect(), running.store.claims
            await claims.tick()
            honest = world.metadata.get_many

            def counted(keys):
                calls[len(keys)] += 1
                return honest(keys)

            world.metadata.get_many = counted
            for _ in range(CLAIM_CHECKS_SKIPPED_MAX):
                await claims.tick()
            assert not calls
            await claims.tick()
            assert calls == {3: 1}
            await client.create(SEGMENT)
            await claims.tick()
            assert calls == {3: 2}

    run(scenario())


def test_a_look_that_gets_no_answer_stops_nobody(make_world, run):
    world = make_world(container_count=1)

    async def scenario():
        async with world.running() as running:
            honest = world.metadata.get_many

            def refused(keys):
                raise UnavailableError("not now")

            world.metadata.get_many = refused
            with pytest.raises(UnavailableError):
                await running.store.claims.check()
            world.metadata.get_many = honest
            assert running.store.owned[0].container.failure is None

    run(scenario())
