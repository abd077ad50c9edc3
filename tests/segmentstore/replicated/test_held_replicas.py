"""What replicas hold and drop, and defects of one log or one journal that must not reach others."""

from __future__ import annotations

import asyncio

import pytest
from recorded_links import AnswersKept, open_message
from replicated_world import LOG, append, members, opened, payloads, replicated_world, until

from headrace.codec.log_record_header import RecordKind
from headrace.metadata.cluster_records import write_snapshot_pointer
from headrace.metadata.container_log import StoredLog, container_log_key
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import UnavailableError
from headrace.ports.metadata_store import Create, Delete
from headrace.segmentstore.log.journal.pending_records import PendingRecord, ignore

pytestmark = pytest.mark.anyio


async def test_what_no_log_needs_is_dropped():
    """A member that was removed while it was away gets no DROP. It looks at the record itself."""
    async with replicated_world() as world:
        ledger = await opened(world, "a")
        await append(ledger, b"one")
        disk = world.nodes["c"].disk
        await world.stop(world.nodes["c"])
        await world.nodes["a"].ledgers.forget(LOG)
        c = await world.start("c", disk)
        assert not c.sessions.log(LOG).is_empty
        await c.sessions.drop_unneeded(world.records, idle_s=1e9)
        assert not c.sessions.log(LOG).is_empty
        await c.sessions.drop_unneeded(world.records, idle_s=0)
        assert c.sessions.log(LOG).is_empty
        await until(lambda: LOG not in c.journal.index)
        again = await opened(world, "c")
        await append(again, b"two")
        await c.sessions.drop_unneeded(world.records, idle_s=0)
        await world.destroy(world.nodes["a"])
        assert payloads(await opened(world, "b")) == [b"two"]


async def test_log_whose_record_has_vanished_is_not_discarded():
    """A record that is gone must not make replicas forget entries: a backup of the table may have it."""
    async with replicated_world() as world:
        await append(await opened(world, "a"), b"one")
        (stored,) = world.metadata.get_many([container_log_key(LOG)])
        assert stored is not None
        world.metadata.write(Delete(stored.key, None))
        b = world.nodes["b"]
        epoch = world.claim(LOG)
        with pytest.raises(UnavailableError, match="record has vanished"):
            await b.ledgers.open(LOG, epoch)
        world.metadata.write(Create(stored.key, stored.body, stored.version))
        assert payloads(await b.ledgers.open(LOG, epoch)) == [b"one"]


async def test_entries_from_before_a_snapshot_are_no_vanished_log():
    """A journal with one copy may have the past of a container that went on elsewhere. There was no record then."""
    async with replicated_world() as world:
        await append(await opened(world, "a"), b"one")
        world.metadata.write(Delete(container_log_key(LOG), None))
        epoch = world.claim(LOG)
        pointer = SnapshotPointer("snapshots/one", 1, 0, epoch, clean=True)
        world.metadata.write(write_snapshot_pointer(LOG, pointer, None))
        assert payloads(await world.nodes["b"].ledgers.open(LOG, world.claim(LOG))) == []


class RecordOf:
    """Log records that name other members, and a last ledger of this epoch."""

    def __init__(self, epoch: int) -> None:
        members = (ReplicaId(bytes(16)), ReplicaId(bytes([1]) * 16))
        self._log = ContainerLog(3, LogState.OPEN, members, (LedgerStart(epoch, 0),))

    def read_many(self, containers):
        return {container: StoredLog(self._log, 1) for container in containers}


async def test_a_copy_that_its_owner_may_count_on_is_kept():
    """The record does not name it yet: the write of its owner may be under way."""
    async with replicated_world() as world:
        epoch = world.claim(LOG)
        await append(await world.nodes["a"].ledgers.open(LOG, epoch), b"one")
        learner = world.nodes["c"].sessions
        await until(lambda: learner.log(LOG).durable_end == 1)
        await world.stop(world.nodes["a"])  # a copy of which something is heard meanwhile is kept
        await learner.drop_unneeded(RecordOf(epoch), idle_s=0)
        assert learner.log(LOG).durable_end == 1
        await learner.drop_unneeded(RecordOf(epoch + 1), idle_s=0)
        assert learner.log(LOG).is_empty


async def test_a_log_that_is_opened_meanwhile_is_not_dropped():
    async with replicated_world() as world:
        node = world.nodes["c"]
        await append(await opened(world, "a"), b"one")
        await until(lambda: node.sessions.log(LOG).durable_end == 1)
        await world.nodes["a"].ledgers.forget(LOG)
        honest = world.records.read_many

        def read(containers):
            found = honest(containers)
            asyncio.run_coroutine_threadsafe(reopen(), loop).result(30)
            return found

        async def reopen() -> None:
            await append(await opened(world, "b"), b"two")
            await until(lambda: node.sessions.log(LOG).durable_end == 2)

        loop = asyncio.get_running_loop()
        world.records.read_many = read  # type: ignore[method-assign]
        await node.sessions.drop_unneeded(world.records, idle_s=0)
        assert node.sessions.log(LOG).durable_end == 2


async def test_entries_outside_of_the_log_do_not_keep_files():
    """A fenced owner has sent them, and no record of the log names its ledger."""
    async with replicated_world() as world:
        journal = world.nodes["b"].journal
        journal.submit(PendingRecord(RecordKind.ENTRY, LOG, 777, 777, 5, 0, 0, (b"x",), 1, ignore))
        await until(lambda: LOG in journal.index)
        ledger = await opened(world, "a")
        await append(ledger, b"one")
        await until(lambda: [state.next_entry for state in journal.index.ledgers(LOG)] == [1])


async def test_failed_journal_drops_messages_without_an_answer():
    def fail(step: str) -> None:
        if step == "sync":
            raise OSError("the disk is broken")

    async with replicated_world("a") as world:
        node, link = world.nodes["a"], AnswersKept()
        node.disk.before = fail
        node.sessions.connected(link)
        node.sessions.received(link, open_message())
        await until(lambda: node.journal.failure)
        node.sessions.received(link, open_message(container=4))
        assert link.answers == []
        assert node.sessions.received_bytes == 0


async def test_a_defect_of_one_log_does_not_stop_the_others():
    async with replicated_world() as world:
        broken, well = await opened(world, "a", 1), await opened(world, "a", 2)
        await append(broken, b"one")
        await append(well, b"two")
        owned = world.nodes["a"].ledgers.owned

        def fail(_plan):
            raise ValueError("a defect")

        owned[1].tick = fail
        await world.stop(world.nodes["c"])
        await until(lambda: members(world, 2) == {"a", "b"})
        with pytest.raises(UnavailableError, match="a defect"):
            broken.append([b"late"], lambda _error: None)


async def test_logs_go_on_while_nothing_can_be_planned(caplog):
    async with replicated_world() as world:
        ledger = await opened(world, "a")

        def fail(_own):
            raise ValueError("no leases")

        world.plan = fail
        await world.stop(world.nodes["c"])
        await append(ledger, b"one")
        await until(lambda: members(world) == {"a", "b"})
        assert sum("log_not_planned" in each.getMessage() for each in caplog.records) == 1
