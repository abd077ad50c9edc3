"""One client of a table, which knows what its keys must be, and checks each answer against that.

Other clients change other keys of the same table. A client does one thing at a time. It learns the outcome of a change
without an answer from its next read, and everything must have happened or nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from fuzz.checker import WrongStateError
from fuzz.connections import MemoryConnection
from fuzz.program_trace import Trace
from fuzz.randomness import Random
from headrace import wire
from headrace.wire.error_table import temporary_error

RETRY_S: Final = 0.002
_KEYS: Final = 60
_PAGES_MAX: Final = 2_000
_ATTEMPTS_MAX: Final = 10_000
_CONDITIONS: Final = ("any", "any", "right", "right", "right", "wrong", "absent")

Entries = dict[bytes, tuple[int, bytes]]
"""Versions and values by key."""


class TableStore(Protocol):
    """Where the tables are. `interruptions` counts what may leave requests without an answer, or answer WrongHost."""

    interruptions: int

    async def connect(self) -> MemoryConnection:
        """Wait for a store, and connect to it."""
        ...


@dataclass(slots=True)
class Change:
    """A batch of updates or removals: keys, versions that are its conditions, and values.

    `values` are what the keys must be afterwards, `holds` says whether the conditions hold.
    """

    removes: bool
    parts: list[tuple[bytes, int, bytes]]
    holds: bool
    values: dict[bytes, bytes]

    def command(self, table: str) -> wire.WireCommand:
        if self.removes:
            return wire.RemoveTableKeys(
                1, table, "", tuple(wire.TableKey(key, version) for key, version, _ in self.parts)
            )
        return wire.UpdateTableEntries(1, table, "", tuple(wire.TableEntry(*part) for part in self.parts))

    def __str__(self) -> str:
        parts = ", ".join(f"{key.decode()}@{version}={value[:12].decode()}" for key, version, value in self.parts)
        return f"{'remove' if self.removes else 'update'} {parts}; holds: {self.holds}"


class TableClient:
    """Client `number` of the table `name`."""

    def __init__(self, store: TableStore, number: int, name: str, random: Random, trace: Trace) -> None:
        self.name = name
        self.known: Entries = {}
        self.random = random
        self._store = store
        self._prefix = b"%02d-" % number
        self._number = number
        self._trace = trace
        self._values = 0
        self._position, self._followed = 0, Entries()
        self._connection: MemoryConnection | None = None

    async def step(self) -> None:
        """Do one thing, and check its answer."""
        (choice,) = self.random.choices(
            [self.change, self.read, self.read_pages, self.follow, self.change_unanswered, self.grow],
            [50, 20, 12, 13, 2, 3],
        )
        await choice()

    async def check_all(self) -> None:
        await self.read_pages()
        await self.follow()
        await self.read()

    # Requests

    async def ask(self, command: wire.WireCommand) -> wire.WireCommand | None:
        """The answer. None if the request must be repeated; it may have had its effect after an interruption."""
        connection = await self.connection()
        try:
            reply = await connection.call(command)
        except ConnectionError:
            if connection.closed:
                self._connection = None
            await asyncio.sleep(RETRY_S)
            return None
        except TimeoutError:
            raise self.wrong(f"no answer to {str(command)[:300]}") from None
        if temporary_error(reply) is None:
            return reply
        await asyncio.sleep(RETRY_S)
        return None

    async def ask_until_answered(self, command: wire.WireCommand) -> wire.WireCommand:
        for _ in range(_ATTEMPTS_MAX):
            reply = await self.ask(command)
            if reply is not None:
                return reply
        raise self.wrong(f"{_ATTEMPTS_MAX} attempts at {str(command)[:300]} had no answer")

    async def connection(self) -> MemoryConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._store.connect()
        return self._connection

    def note(self, text: str) -> None:
        self._trace.note(f"client {self._number}: {text}")

    def wrong(self, what: str, expected: object = None, found: object = None) -> WrongStateError:
        comparison = f": expected {expected!r:.1500}, found {found!r:.1500}" if expected is not found else ""
        return WrongStateError(f"client {self._number} of {self.name}: {what}{comparison}")

    # Changes

    async def change(self) -> None:
        await self.carry_out(self._new_change())

    async def carry_out(self, change: Change) -> None:
        """Send the change, and note its effect."""
        self.note(str(change))
        interruptions = self._store.interruptions
        reply = await self.ask(change.command(self.name))
        self.note(f"  {_text(reply)}")
        if reply is None:
            if interruptions != self._store.interruptions:
                await self._resolve(change)
        elif isinstance(reply, wire.TableKeyBadVersion | wire.TableKeyDoesNotExist):
            if change.holds:
                raise self.wrong(f"{change}: its conditions hold", "success", reply)
        elif not isinstance(reply, wire.TableEntriesUpdated | wire.TableKeysRemoved):
            raise self.wrong(f"{change} got an unexpected answer", "success", reply)
        elif not change.holds:
            raise self.wrong(f"{change}: its conditions do not hold", "a refusal", reply)
        else:
            self._forget(change)
            if isinstance(reply, wire.TableEntriesUpdated):
                for (key, _, _), version in zip(change.parts, reply.versions, strict=True):
                    self.known[key] = version, change.values[key]

    async def change_unanswered(self) -> None:
        """Lose the connection under a change."""
        change = self._new_change()
        self.note(f"without an answer: {change}")
        connection = await self.connection()
        connection.send(change.command(self.name))
        if self.random.random() < 0.5:
            connection.send(self._delta(0, 1_000))
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        connection.close()
        self._connection = None
        await asyncio.sleep(0.1)  # what the store has begun may end later than the connection
        await self._resolve(change)

    async def grow(self) -> None:
        """Write a large value several times, so that most bytes of the table are not needed."""
        for _ in range(4):
            key, value = self._prefix + b"large", self._new_value(4_000)
            await self.carry_out(Change(False, [(key, wire.NO_VERSION, value)], True, {key: value}))

    async def _resolve(self, change: Change) -> None:
        """Find out what a change without an answer did."""
        keys = list(dict.fromkeys(key for key, _, _ in change.parts))
        found = {key: entry for key, entry in (await self._read(keys)).items() if entry[0] >= 0}
        before = {key: self.known[key] for key in keys if key in self.known}
        if found == before:
            return
        after = {key: change.values[key] for key in keys if key in change.values}
        if not change.holds or {key: value for key, (_, value) in found.items()} != after:
            raise self.wrong(f"a part of {change} happened", (before, "or", after), found)
        self._forget(change)
        self.known.update(found)

    def _forget(self, change: Change) -> None:
        for key, _, _ in change.parts:
            self.known.pop(key, None)

    def _new_change(self) -> Change:
        random = self.random
        removes, asks_all = random.random() < 0.3, random.random() < 0.3
        keys = list(dict.fromkeys(self._new_key() for _ in range(random.choice((1, 1, 2, 5, 12)))))
        change = Change(removes, [], True, {})
        for key in keys:
            condition = random.choice(_CONDITIONS if asks_all else ("any", "right"))
            version, holds = self._version(key, condition)
            change.holds &= holds
            value = b"" if random.random() < 0.05 else self._new_value(random.choice((0, 10, 200)))
            change.parts.append((key, version, value))
            if not removes:
                change.values[key] = value
        return change

    def _version(self, key: bytes, condition: str) -> tuple[int, bool]:
        """The version that a condition names, and whether it holds."""
        version, _ = self.known.get(key, (wire.NOT_EXISTS, b""))
        if condition == "any":
            return wire.NO_VERSION, True
        if condition == "absent":
            return wire.NOT_EXISTS, version == wire.NOT_EXISTS
        if condition == "wrong":
            return (12_345_678 if version == wire.NOT_EXISTS else version + 1), False
        return version, True

    def _new_key(self) -> bytes:
        return self._prefix + b"%04d" % self.random.randrange(_KEYS)

    def _new_value(self, length: int) -> bytes:
        self._values += 1
        return b"%d-%d-" % (self._number, self._values) + bytes(length)

    # Reads

    async def read(self) -> None:
        """Read some keys."""
        keys = list(dict.fromkeys(self._new_key() for _ in range(self.random.choice((1, 3, 30)))))
        found = await self._read(keys)
        self._compare("a read", {key: self.known.get(key, (wire.NOT_EXISTS, b"")) for key in keys}, found)

    async def _read(self, keys: list[bytes]) -> Entries:
        reply = await self.ask_until_answered(wire.ReadTable(1, self.name, "", tuple(map(wire.TableKey, keys))))
        if not isinstance(reply, wire.TableRead):
            raise self.wrong("a read failed", "entries", reply)
        return {bytes(entry.key): (entry.version, bytes(entry.value)) for entry in reply.entries}

    async def read_pages(self) -> None:
        """Read all keys of this client in their order, with values or without."""
        with_values = self.random.random() < 0.5
        count, token, found = self.random.choice((3, 20, 200)), b"", list[tuple[bytes, int, bytes]]()
        kind = wire.ReadTableEntries if with_values else wire.ReadTableKeys
        for _ in range(_PAGES_MAX):
            command = kind(1, self.name, "", count, token, b"", self._prefix, self._prefix + b"\xff")
            reply = await self.ask_until_answered(command)
            if isinstance(reply, wire.TableEntriesRead):
                page = [(bytes(each.key), each.version, bytes(each.value)) for each in reply.entries]
            elif isinstance(reply, wire.TableKeysRead):
                page = [(bytes(each.key), each.version, b"") for each in reply.keys]
            else:
                raise self.wrong("a page failed", "entries", reply)
            if not page:
                break
            found += page
            token = bytes(reply.continuation_token)
        if [key for key, _, _ in found] != sorted(self.known):
            raise self.wrong("the keys of all pages", sorted(self.known), [key for key, _, _ in found])
        expected = {key: (version, value if with_values else b"") for key, (version, value) in self.known.items()}
        self._compare("the pages", expected, {key: (version, value) for key, version, value in found})

    async def follow(self) -> None:
        """Read what was written since the last time, up to the end."""
        for _ in range(_PAGES_MAX):
            reply = await self.ask_until_answered(self._delta(self._position, self.random.choice((5, 50, 500))))
            if not isinstance(reply, wire.TableEntriesDeltaRead):
                raise self.wrong("a delta failed", "entries", reply)
            if reply.should_clear:
                self._followed = {}
            for entry in reply.entries:
                if bytes(entry.key).startswith(self._prefix):
                    self._followed[bytes(entry.key)] = entry.version, bytes(entry.value)
            self._position = reply.last_position
            if reply.reached_end:
                found = {key: self._followed.get(key, (wire.NOT_EXISTS, b"")) for key in self.known}
                self._compare("the deltas", self.known, found)
                return
        raise self.wrong(f"{_PAGES_MAX} deltas have no end")

    def start_again(self) -> None:
        """The table is a new one."""
        self.known = {}
        self._position, self._followed = 0, {}

    def _delta(self, position: int, count: int) -> wire.WireCommand:
        return wire.ReadTableEntriesDelta(1, self.name, "", position, count)

    def _compare(self, what: str, expected: Entries, found: Entries) -> None:
        different = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
        if different:
            key = min(different)
            raise self.wrong(
                f"{what} of {len(different)} keys, such as {key.decode()}", expected.get(key), found.get(key)
            )


class TableRemover(TableClient):
    """The only client of a table, which it also removes and creates again."""

    def __init__(self, store: TableStore, number: int, random: Random, trace: Trace) -> None:
        super().__init__(store, number, f"scope/_tables/{number}.#epoch.0", random, trace)
        self._exists = False
        self._creation_is_unsure = False
        self._removal_is_unsure = False

    async def step(self) -> None:
        try:
            await self._ensure()
            (choice,) = self.random.choices([super().step, self._remove, self._remove_unanswered], [90, 6, 4])
            await choice()
        except _GoneError:
            self._note_gone()

    async def check_all(self) -> None:
        try:
            await self._ensure()
            await super().check_all()
        except _GoneError:
            self._note_gone()

    async def ask(self, command: wire.WireCommand) -> wire.WireCommand | None:
        reply = await super().ask(command)
        if isinstance(reply, wire.NoSuchSegment) and self._removal_is_unsure:
            raise _GoneError
        return reply

    async def _ensure(self) -> None:
        while not self._exists:
            reply = await self.ask(wire.CreateTableSegment(1, self.name))
            self.note(f"create the table: {_text(reply)}")
            known = isinstance(reply, wire.SegmentAlreadyExists) and self._creation_is_unsure
            if isinstance(reply, wire.SegmentCreated) or known:
                self.start_again()
                self._exists, self._creation_is_unsure = True, False
            elif reply is not None:
                raise self.wrong("the creation of the table", "success", reply)
            self._creation_is_unsure = reply is None

    async def _remove(self) -> None:
        must_be_empty = self.random.random() < 0.5
        self.note(f"remove the table, must be empty: {must_be_empty}, keys: {len(self.known)}")
        reply = await self.ask(wire.DeleteTableSegment(1, self.name, must_be_empty))
        self.note(f"  {_text(reply)}")
        may_be_removed = not (must_be_empty and self.known)
        expected = wire.SegmentDeleted if may_be_removed else wire.TableSegmentNotEmpty
        if reply is not None and not isinstance(reply, expected):
            raise self.wrong(f"a removal of a table with {len(self.known)} keys", expected.__name__, reply)
        if isinstance(reply, wire.SegmentDeleted):
            self._note_gone()
        elif reply is None:
            self._removal_is_unsure |= may_be_removed

    async def _remove_unanswered(self) -> None:
        """Lose the connection under the removal."""
        self.note("remove the table, without an answer")
        connection = await self.connection()
        self._removal_is_unsure = True
        connection.send(wire.DeleteTableSegment(1, self.name, False))
        for _ in range(self.random.randrange(8)):
            await asyncio.sleep(self.random.choice((0.0, 0.0, 0.001, 0.005)))
        connection.close()

    def _note_gone(self) -> None:
        self.note("the table is removed")
        self._exists = self._removal_is_unsure = False


class _GoneError(Exception):
    """A removal without an answer has taken place."""


def _text(reply: wire.WireCommand | None) -> str:
    return "no answer" if reply is None else str(reply)[:160]
