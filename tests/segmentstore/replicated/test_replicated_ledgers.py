"""Logs with copies on three processes: acknowledgement, takeover, fencing, repair and a clean end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from random import Random

import pytest
from held_disk import HeldDisk
from replicated_world import LOG, append, members, numbered, opened, payloads, replicated_world, until

from headrace.model.container_logs import LogState
from headrace.model.errors import FencedError, InvalidRequestError, UnavailableError

pytestmark = pytest.mark.anyio


async def test_entries_are_on_three_volumes():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        await append(ledger, *numbered(0, 50))
        assert members(world) == {"a", "b", "c"}
        for node in world.nodes.values():
            await until(lambda node=node: node.sessions.log(LOG).durable_end == 50)
        assert ledger.held_bytes == sum(80 + len(each) for each in numbered(0, 50))


async def test_a_lost_volume_loses_no_entry():
    async with replicated_world() as world:
        await append(await opened(world, "a"), *numbered(0, 50))
        await world.destroy(world.nodes["a"])
        ledger = await opened(world, "b")
        assert payloads(ledger) == numbered(0, 50)
        await append(ledger, *numbered(50, 50))
        await world.start("a")
        await until(lambda: len(members(world)) == 3)
        await world.destroy(world.nodes["b"])
        again = await opened(world, "a")  # the replacement, which had nothing
        assert payloads(again) == numbered(0, 100)
        assert payloads(again, 70) == numbered(70, 30)


async def test_one_peer_is_enough_and_none_is_not():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        await append(ledger, b"three")
        await world.stop(world.nodes["b"])
        await append(ledger, b"two")
        disk = world.nodes["c"].disk
        await world.stop(world.nodes["c"])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ledger.append([b"one"], lambda error: done.set_result(None) if error is None else done.set_exception(error))
        await asyncio.wait([done], timeout=0.5)
        assert not done.done()
        await world.start("c", disk)
        await asyncio.wait_for(done, 30)


async def test_a_former_owner_acknowledges_nothing():
    async with replicated_world() as world:
        first = await opened(world, "a")
        await append(first, b"before")
        a, b, c = (world.nodes[name].replica for name in "abc")
        world.network.cut(a, b)
        world.network.cut(a, c)
        outcome: list[Exception | None] = []
        first.append([b"alone"], outcome.append)
        second = await opened(world, "b")
        assert payloads(second) == [b"before"]
        await append(second, b"after")
        assert outcome == []
        world.network.heal(a, b)
        world.network.heal(a, c)
        await until(lambda: outcome)
        assert isinstance(outcome[0], FencedError)
        with pytest.raises(FencedError):
            first.append([b"late"], outcome.append)
        third = await opened(world, "a")
        assert payloads(third) == [b"before", b"after"]


async def test_a_member_that_was_away_catches_up():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        disk = world.nodes["c"].disk
        await world.stop(world.nodes["c"])
        await append(ledger, *(b"%d" % number * 5000 for number in range(200)))
        c = await world.start("c", disk)
        await until(lambda: c.sessions.log(LOG).durable_end == 200 and "c" in members(world))
        await world.destroy(world.nodes["a"])
        assert payloads(await opened(world, "c")) == [b"%d" % number * 5000 for number in range(200)]


async def test_a_silent_member_leaves_and_comes_back():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        disk = world.nodes["c"].disk
        await world.stop(world.nodes["c"])
        await append(ledger, b"one")
        await until(lambda: members(world) == {"a", "b"})
        await append(ledger, b"two")
        await world.start("c", disk)
        await until(lambda: members(world) == {"a", "b", "c"})


async def test_a_log_waits_for_its_members_and_opens_by_itself():
    async with replicated_world() as world:
        world.open_patience_s = 0.3
        await append(await opened(world, "a"), b"kept")
        b, c = world.nodes["b"], world.nodes["c"]
        await world.stop(b)
        await world.stop(c)
        await world.destroy(world.nodes["a"])
        waiting = await world.start("b", b.disk)
        epoch = world.claim(LOG)
        with pytest.raises(UnavailableError, match="cannot be opened"):
            await waiting.ledgers.open(LOG, epoch)
        again = asyncio.ensure_future(waiting.ledgers.open(LOG, epoch))
        await asyncio.wait([again], timeout=1)
        assert not again.done()
        await world.start("c", c.disk)
        assert payloads(await asyncio.wait_for(again, 30)) == [b"kept"]


async def test_a_cancelled_opening_ends_at_the_moment_of_recovery():
    async with replicated_world() as world:
        ledgers, epoch = world.nodes["a"].ledgers, world.claim(LOG)
        opening = asyncio.ensure_future(ledgers.open(LOG, epoch))
        await asyncio.sleep(0)
        ledgers.owned[LOG].recovered.add_done_callback(lambda _: opening.cancel())
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert payloads(await ledgers.open(LOG, epoch)) == []


async def test_a_new_log_waits_for_a_second_copy():
    async with replicated_world("a") as world:
        world.open_patience_s = 0.2
        a = world.nodes["a"]
        epoch = world.claim(LOG)
        with pytest.raises(UnavailableError):
            await a.ledgers.open(LOG, epoch)
        await world.start("b")
        await until(lambda: a.ledgers.owned[LOG].recovered.done())
        await append(await a.ledgers.open(LOG, epoch), b"two copies")


async def test_a_log_that_tier_2_has_leaves_no_entry_behind():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        await append(ledger, *numbered(0, 10))
        await world.nodes["a"].ledgers.forget(LOG)
        stored = world.records.read(LOG).log
        assert stored is not None
        assert (stored.state, stored.next_entry, stored.members) == (LogState.EMPTY, 10, ())
        for node in world.nodes.values():
            await until(
                lambda node=node: (
                    node.sessions.log(LOG).durable_end in (0, 10) and node.sessions.log(LOG).session is None
                )
            )
        with pytest.raises(FencedError):
            ledger.append([b"late"], lambda _error: None)
        again = await opened(world, "b")
        assert (payloads(again), again.next_entry) == ([], 10)
        await append(again, b"new")
        assert payloads(await opened(world, "c")) == [b"new"]


async def test_truncated_entries_are_not_recovered():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        await append(ledger, *numbered(0, 20))
        ledger.truncate(15)
        await append(ledger, b"carries the truncation point")
        await world.destroy(world.nodes["a"])
        assert payloads(await opened(world, "b")) == [*numbered(15, 5), b"carries the truncation point"]


async def test_a_released_log_opens_again_with_everything():
    async with replicated_world() as world:
        node, epoch = world.nodes["a"], world.claim(LOG)
        released: list[str] = []
        ledger = await node.ledgers.open(LOG, epoch)
        ledger.append([b"one"], lambda _error: None, lambda: released.append("one"))
        await node.ledgers.release(LOG)
        assert released == ["one"]
        with pytest.raises(FencedError):
            ledger.append([b"two"], lambda _error: None)
        again = await opened(world, "a")
        assert payloads(again) == [b"one"]
        assert again.held_bytes == 80 + len(b"one")


async def test_parts_are_joined_or_sent_as_they_are():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        large = [bytes([number]) * 100_000 for number in range(3)]
        small = [b"a", b"b", b"c"]
        done: list[Exception | None] = []
        released: list[int] = []
        for number, parts in enumerate((large, small)):
            ledger.append(parts, done.append, lambda number=number: released.append(number))
        await until(lambda: len(done) == 2 and len(released) == 2)
        assert (done, released) == ([None, None], [1, 0])  # what was joined is free at once
        await world.destroy(world.nodes["a"])
        assert payloads(await opened(world, "c")) == [b"".join(large), b"abc"]


async def test_an_entry_that_is_too_large_is_refused():
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        with pytest.raises(InvalidRequestError):
            ledger.append([bytes(ledger.entry_bytes_max + 1)], lambda _error: None)
        await append(ledger, b"fits")


async def test_a_stalled_disk_of_the_owner_delays_nothing():
    """Two peers are enough. The memory of an entry that was not copied is released when the own journal has it."""
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        await append(ledger, b"first")
        held = HeldDisk(world.nodes["a"].disk)
        events: list[str] = []
        ledger.append([bytes(5000)], lambda _error: events.append("done"), lambda: events.append("released"))
        await until(lambda: events == ["done"])
        held.release()
        await until(lambda: events == ["done", "released"])


async def test_hundred_logs_of_three_owners():
    async with replicated_world() as world:
        ledgers = {container: await opened(world, "abc"[container % 3], container) for container in range(100)}
        await asyncio.gather(*(append(each, *numbered(0, 5)) for each in ledgers.values()))
        await world.destroy(world.nodes["b"])
        for container in range(1, 100, 3):
            assert payloads(await opened(world, "c", container)) == numbered(0, 5)


async def test_compressed_entries_come_back_as_they_were_in_order():
    """Large ones are compressed in another thread, and those behind them wait."""
    async with replicated_world() as world:
        world.compresses = True
        for name in "abc":
            await world.destroy(world.nodes[name])
        for name in "abc":
            await world.start(name)
        ledger = await opened(world, "a")
        entries = [
            bytes(10_000),
            Random(1).randbytes(200_000),
            bytes(1 << 20),
            b"small",
            b"text " * 40_000,
            Random(2).randbytes(5_000),
            *(b"%d " % number * 2_000 for number in range(100)),
        ]
        events: list[int] = []
        for number, entry in enumerate(entries):
            assert ledger.next_entry == number
            assert ledger.append([entry], lambda _error, number=number: events.append(number)) == number
        await until(lambda: len(events) == len(entries))
        assert events == list(range(len(entries)))
        await append(ledger, b"last")
        held = world.nodes["b"]
        await until(lambda: held.sessions.log(LOG).durable_end == len(entries) + 1)
        stored = [ledger_entry.payload for ledger_entry in held.journal.reader.ledger(LOG, 0, 0, len(entries))]
        assert [len(payload) < len(entry) for payload, entry in zip(stored[:6], entries, strict=False)] == [
            True, False, True, False, True, False,
        ]  # fmt: skip
        await world.destroy(world.nodes["a"])
        assert payloads(await opened(world, "b")) == [*entries, b"last"]


async def test_large_entries_that_wait_for_encoding_hear_of_failures():
    async with replicated_world() as world:
        world.compresses = True
        await world.start("d")
        ledger = await opened(world, "d")
        outcomes: list[object] = []
        for _ in range(3):
            ledger.append([bytes(1 << 20)], outcomes.append, lambda: outcomes.append("released"))
        writer = world.nodes["d"].ledgers.owned[LOG].writer
        assert writer is not None
        assert (ledger.next_entry, writer.next_entry) == (3, 0), "nothing waits for its encoding"
        world.nodes["d"].ledgers.owned[LOG].end(FencedError("another owner"))
        await until(lambda: len(outcomes) == 6)
        assert sum(isinstance(each, FencedError) for each in outcomes) == 3


async def test_unacknowledged_entries_are_not_kept_in_memory():
    """The own journal has them: members read them from there, and only the callbacks wait."""
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        await append(ledger, b"three")
        for name in "bc":
            await world.stop(world.nodes[name])
        released: list[int] = []
        part = memoryview(_Bytes(bytes(8192)))
        memory = weakref.ref(part.obj)
        ledger.append([part], lambda _error: None, lambda: released.append(1))
        del part
        await until(lambda: released)
        gc.collect()
        assert memory() is None


class _Bytes(bytearray):
    """Bytes that may be referred to weakly."""

    __slots__ = ("__weakref__",)


async def test_log_that_was_forgotten_is_opened_again_by_its_owner():
    """Replicas ignore an OPEN whose number is lower than that of an earlier one of the same epoch."""
    async with replicated_world() as world:
        ledgers, epoch = world.nodes["a"].ledgers, world.claim(LOG)
        await append(await ledgers.open(LOG, epoch), b"one")
        await ledgers.forget(LOG)
        again = await ledgers.open(LOG, epoch)
        assert (payloads(again), again.next_entry) == ([], 1)
        await append(again, b"two")
        await ledgers.release(LOG)
        assert payloads(await opened(world, "b")) == [b"two"]


async def test_member_that_missed_the_end_of_a_log_takes_the_next_one():
    """It has answered OPENs of this epoch with higher numbers, and keeps an entry of the log that has ended."""
    async with replicated_world() as world:
        a, c = world.nodes["a"], world.nodes["c"]
        epoch = world.claim(LOG)
        await append(await a.ledgers.open(LOG, epoch), b"one")
        await until(lambda: c.sessions.log(LOG).durable_end == 1)
        world.network.cut(a.replica, c.replica)
        await a.ledgers.forget(LOG)
        again = await a.ledgers.open(LOG, epoch)
        await append(again, b"two")
        world.network.heal(a.replica, c.replica)
        await until(lambda: c.sessions.log(LOG).durable_end == 2)
        await world.destroy(world.nodes["b"])
        await append(again, b"three")
        assert payloads(await opened(world, "c")) == [b"two", b"three"]
