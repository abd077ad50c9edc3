"""Random histories of tables against dicts: every command, flushes, upkeep, faults, held syncs, power cuts, restarts.

Tails, runs and blocks are so small that keys are in all of them. What a power cut leaves must be the state after some
prefix of the batches that were accepted, and never less than what was acknowledged; what the loss of a volume leaves
the state after some batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from store_machine_doubles import WAIT_S
from store_under_a_machine import StoreUnderAMachine
from table_client import TableClient

from headrace import wire
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits

T = TypeVar("T")

NAMES = ["scope/_tables/0.#epoch.0", "scope/_tables/1.#epoch.0"]
KEYS = [b"%03d" % number for number in range(60)]
STORAGE = StorageLimits(
    flush_age_s=5.0,
    flush_bytes=1 << 40,
    object_bytes_max=4000,
    checkpoint_every_bytes=6000,
    snapshot_every_s=10.0,
    idle_segment_s=20.0,
    idle_segments_kept=0,
)
TABLES = TableLimits(
    tail_memory_bytes=9_000,
    replay_segment_bytes=6_000,
    all_tails_memory_bytes=25_000,
    cached_blocks_bytes=1_000,
    index_block_bytes=64,
    index_object_bytes=900,
    compaction_segment_bytes=2_000,
    retry_first_s=0.001,
    retry_max_s=0.001,
)
FAULTS = ["none", "put refused", "put answer lost", "write refused", "write answer lost"]

State = dict[str, dict[bytes, bytes]]
names = st.sampled_from(NAMES)
conditions = st.sampled_from(["any", "any", "right", "wrong", "none", "absent"])
changes = st.lists(st.tuples(st.sampled_from(KEYS), conditions, st.integers(0, 150)), min_size=1, max_size=5)


class TableMachine(StoreUnderAMachine):
    """`past` is what a table was after each batch: a lost volume takes it back to one of these."""

    journal_file_bytes = 32 << 10
    pool_bytes = 64 << 10
    block_bytes = 4 << 10
    limits = STORAGE
    table_limits = TABLES

    def __init__(self) -> None:
        super().__init__({name: {} for name in NAMES})
        self.past: dict[str, list[dict[bytes, bytes]]] = {name: [{}] for name in NAMES}
        self.versions: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        self.followers: dict[str, tuple[int, dict[bytes, bytes]]] = {name: (0, {}) for name in NAMES}

    @initialize()
    def start_with_tables(self) -> None:
        self.start()
        for name in NAMES:
            self.create(name)

    def create(self, name: str) -> None:
        """Make a table, and wait for the snapshot that has it: without one a lost volume takes it back."""
        self.wait(TableClient(self, name).create(key_length=3 if name is NAMES[1] else 0))
        self.flush("none", 3)

    def wait(self, work: Awaitable[T]) -> T:
        return super().wait(self._tiered(work))

    async def _tiered(self, work: Awaitable[T]) -> T:
        """The outcome of the work, with flushes when it takes long: a full table waits for tier 2."""
        task = asyncio.ensure_future(work)
        while not task.done():
            done, _ = await asyncio.wait([task], timeout=0.01)
            if not done and self.owned is not None:
                self.clock.advance(10_000)
                await self.safely(self.owned.writer.run_pass())
        return task.result()

    def resident(self, name: str) -> Any:
        return self.store.table_memory.get(0, name)

    # Changes

    def change(
        self, name: str, command: wire.WireCommand, expected: type[wire.WireCommand], after: dict[bytes, bytes]
    ) -> None:
        """Send a batch whose outcome is known; wait for it unless the disk is held."""
        if self.sync.armed and ((held := self.resident(name)) is None or len(held.table.tails) > 1):
            return  # it might wait, and the test could not tell when it was accepted
        task = self.loop.create_task(self.call(command))
        self.running.append((task, expected))
        if expected in (wire.TableEntriesUpdated, wire.TableKeysRemoved):
            self.history.append({**self.state, name: after})
            self.past[name].append(after)
            if self.sync.armed:
                self.accept(name, task)
        if not self.sync.armed:
            self.settle()

    def accept(self, name: str, task: asyncio.Task[Any]) -> None:
        """Let it run until it is in the log, or found to change nothing."""
        segment = self.owned.container.metadata.segments[name]
        length = segment.accepted.length

        async def accepted() -> None:
            for _ in range(30):
                if segment.accepted.length != length or task.done():
                    return
                await asyncio.sleep(0)

        self.loop.run_until_complete(accepted())

    def settle(self) -> None:
        running, self.running = self.running, []
        for task, expected in running:
            reply = self.wait(task)
            assert isinstance(reply, expected), (reply, expected)
        self.history = [self.state]

    def version(self, name: str, key: bytes) -> int:
        async def find() -> int:
            async with self.owned.tables.use(name) as table:
                place = await table.find(key)
                return wire.NOT_EXISTS if place is None else place.version

        return self.wait(find())

    def wanted(self, name: str, key: bytes, condition: str) -> tuple[int, type[wire.WireCommand] | None]:
        """The version to ask for, and the refusal that it must lead to."""
        there = key in self.state[name]
        version = self.version(name, key)
        assert (version >= 0) == there, (name, key)
        bad, missing = wire.TableKeyBadVersion, wire.TableKeyDoesNotExist
        match condition:
            case "any":
                return wire.NO_VERSION, None
            case "right":
                return version, None
            case "wrong":
                return version + 1 if there else 7, bad if there else missing
            case _:
                return wire.NOT_EXISTS, bad if there else None

    @rule(name=names, batch=changes)
    def update(self, name: str, batch: list[tuple[bytes, str, int]]) -> None:
        after, entries, refusal = dict(self.state[name]), [], None
        for key, condition, size in batch:
            self.counter += 1
            value = b"%06d" % self.counter + bytes(size)
            wanted, refused = self.wanted(name, key, condition)
            refusal = refusal or refused
            entries.append(wire.TableEntry(key, wanted, value))
            after[key] = value
        command = wire.UpdateTableEntries(3, name, "", tuple(entries))
        self.change(name, command, refusal or wire.TableEntriesUpdated, after)

    @rule(name=names, batch=changes)
    def remove(self, name: str, batch: list[tuple[bytes, str, int]]) -> None:
        after, keys, refusal = dict(self.state[name]), [], None
        for key, condition, _ in batch:
            wanted, refused = self.wanted(name, key, condition)
            refusal = refusal or refused
            keys.append(wire.TableKey(key, wanted))
            after.pop(key, None)
        command = wire.RemoveTableKeys(3, name, "", tuple(keys))
        self.change(name, command, refusal or wire.TableKeysRemoved, after)

    @rule(name=names, first=st.integers(0, 40), count=st.integers(5, 20), size=st.integers(0, 60))
    def fill(self, name: str, first: int, count: int, size: int) -> None:
        self.update_all(name, KEYS[first : first + count], size)

    def update_all(self, name: str, keys: list[bytes], size: int) -> None:
        self.counter += 1
        entries = [wire.TableEntry(key, wire.NO_VERSION, b"%06d" % self.counter + key + bytes(size)) for key in keys]
        after = self.state[name] | {entry.key: bytes(entry.value) for entry in entries}
        self.change(name, wire.UpdateTableEntries(3, name, "", tuple(entries)), wire.TableEntriesUpdated, after)

    @rule(name=names)
    def delete_and_create(self, name: str) -> None:
        if self.sync.armed:
            return
        reply = self.wait(self.call(wire.DeleteTableSegment(3, name, True)))
        if self.state[name]:
            assert isinstance(reply, wire.TableSegmentNotEmpty)
            reply = self.wait(self.call(wire.DeleteTableSegment(3, name, False)))
        assert isinstance(reply, wire.SegmentDeleted)
        self.create(name)
        self.history = [{**self.state, name: {}}]
        self.past[name] = [{}]
        self.followers[name] = (0, {})
        self.versions = {each: found for each, found in self.versions.items() if each[0] != name}

    # Questions

    def check(self, name: str, entries: Any) -> dict[bytes, bytes]:
        """A value has one version for ever, and a newer one a greater version."""
        found = {}
        for key, version, value in entries:
            known_version, known_value = self.versions.get((name, key), (-1, b""))
            assert (version == known_version) == (value == known_value), (name, key)
            assert version >= known_version, (name, key)
            self.versions[name, key] = (version, value)
            found[key] = value
        return found

    @rule(name=names, keys=st.lists(st.sampled_from(KEYS), max_size=8))
    def get(self, name: str, keys: list[bytes]) -> None:
        if self.sync.armed:
            return
        entries = self.wait(TableClient(self, name).get(*keys))
        assert [key for key, _, _ in entries] == keys
        assert all((version == wire.NOT_EXISTS) == (key not in self.state[name]) for key, version, _ in entries)
        found = self.check(name, [entry for entry in entries if entry[1] >= 0])
        assert found == {key: self.state[name][key] for key in keys if key in self.state[name]}

    @rule(name=names, count=st.sampled_from([1, 7, 100]))
    def list_everything(self, name: str, count: int) -> None:
        if self.sync.armed:
            return
        entries = self.wait(TableClient(self, name).pages(count))
        assert [key for key, _, _ in entries] == sorted(self.state[name])
        assert self.check(name, entries) == self.state[name]

    @rule(name=names, count=st.sampled_from([1, 10, 100]))
    def follow(self, name: str, count: int) -> None:
        """Who reads deltas knows every entry; what was removed it may still believe in."""
        if self.sync.armed:
            return
        position, known = self.followers[name]
        while True:
            page = self.wait(TableClient(self, name).delta(position, count))
            known = {} if page.should_clear else known
            known = known | self.check(name, [(each.key, each.version, bytes(each.value)) for each in page.entries])
            assert page.entries or page.reached_end
            position = page.last_position
            if page.reached_end:
                break
        assert {key: known.get(key) for key in self.state[name]} == self.state[name]
        self.followers[name] = (position, known)

    # The world around

    @rule(fault=st.sampled_from(FAULTS), times=st.integers(1, 4))
    def flush(self, fault: str, times: int) -> None:
        self.tier_2.fault = fault

        async def passes() -> None:
            for _ in range(times):
                self.clock.advance(10_000)
                await self.safely(self.owned.writer.run_pass())
                await asyncio.sleep(0.002)  # the upkeep works in threads too

        self.loop.run_until_complete(passes())
        self.tier_2.fault = "none"

    @rule()
    def leave_memory(self) -> None:
        memory = self.store.table_memory
        for name in NAMES:
            resident = self.resident(name)
            if resident is not None and not resident.table.users and not self.sync.armed:
                memory.drop(0, name)
        for segment in self.owned.container.metadata.segments.values():
            if not segment.untiered_bytes and not self.sync.armed:
                segment.index.release_all()

    @rule()
    def evict(self) -> None:
        """Idle segments are evicted, and their tables with them."""
        if self.sync.armed:
            return
        self.flush("none", 2)
        self.clock.advance(60_000)
        self.wait(self.sweep())

    async def sweep(self) -> None:
        await self.owned.evictor.sweep()

    @rule()
    def lose_volume(self) -> None:
        """A new store has nothing but tier 2."""
        if self.sync.armed:
            return
        self.settle()
        tasks = self.owned.tables.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.start_on(MemoryJournalDisk())
        found = {}
        for name in NAMES:
            info = self.wait(self.call(wire.GetTableSegmentInfo(3, name)))
            if isinstance(info, wire.NoSuchSegment):  # nothing of it had reached tier 2
                self.create(name)
            found[name] = {key: value for key, _, value in self.wait(TableClient(self, name).pages(50))}
            assert found[name] in self.past[name]
            self.past[name] = [found[name]]
        self.begin_again(found)

    @rule()
    def hold_disk(self) -> None:
        if self.sync.armed:
            return
        for name in NAMES:
            self.wait(TableClient(self, name).info())
        super().hold_disk()

    @rule(seed=st.integers(0, 1 << 16))
    def cut_power(self, seed: int) -> None:
        survivor = self.lose_power(seed)
        self.cancel(self.owned.tables.cancel())
        self.start_on(survivor)
        self.find_out()

    @rule()
    def restart(self) -> None:
        if self.sync.armed:
            return
        self.settle()
        self.loop.run_until_complete(asyncio.wait_for(self.close(), 2 * WAIT_S))
        self.start_on(self.disk)
        self.find_out()

    async def close(self) -> None:
        self.owned.writer.start()
        self.owned.maintenance.start()
        await self.store.close(WAIT_S)

    def find_out(self) -> None:
        """The state after a restart is one of those that were possible."""
        found = {}
        for name in NAMES:
            found[name] = {key: value for key, _, value in self.wait(TableClient(self, name).pages(50))}
        assert found in self.history, (found, self.history)
        self.begin_again(found)

    def begin_again(self, found: State) -> None:
        self.history = [found]
        self.followers = {name: (0, {}) for name in NAMES}  # a follower of what is not durable is told nothing
        self.versions = {}

    def teardown(self) -> None:
        self.sync.open()
        if self.owned is not None:
            self.settle()
            for name in NAMES:
                self.list_everything(name, 100)
            self.loop.run_until_complete(self.owned.tables.stop())
        super().teardown()


TableMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTables = TableMachine.TestCase
