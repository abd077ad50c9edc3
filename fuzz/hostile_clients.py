"""Hostile clients next to a well-behaved writer: they send what is cheap to send and would be dear to answer.

Each attack repeats rounds until it is told to stop. Its connections may be refused and closed at any time. All attacks
run at once, from several addresses. The writer appends small and large events in turns, each acknowledged before the
next, and sets up again with another id from time to time, as a new writer does.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.connections import SocketConnection
from fuzz.randomness import Random
from fuzz.store_process import store_process
from headrace import wire
from headrace.adapters.system_clock import SystemClock
from headrace.codec.delegation_tokens import TokenClaims, TokenKey, TokenKeys, encode_token, token_keys_text
from headrace.model.access import Access, scope_resource

SCOPE: Final = "shop"
SEGMENT: Final = f"{SCOPE}/orders/0.#epoch.0"
ATTACKED: Final = f"{SCOPE}/orders/1.#epoch.0"
TABLE: Final = f"{SCOPE}/prices_kvtable/0.#epoch.0"

FLUSH_MAX_S: Final = 1.0
"""The longest time that the writer may wait for an acknowledgement."""

EVENT_BYTES: Final = (100, 10_000, 400_000)
APPENDS_OF_A_WRITER: Final = 50
HALF_UPDATE_BYTES: Final = 15 << 20
HALF_UPDATES: Final = 6
TRICKLE_BYTES: Final = 1_700
TRICKLES: Final = 30
TRICKLE_EVERY_S: Final = 0.1
LISTED_NAMES: Final = 131_022
READS_OF_A_CONNECTION: Final = 1_000
READING_CONNECTIONS: Final = 20
REQUESTS_AT_ONCE: Final = 200

_KEY: Final = TokenKey("first", b"0123456789abcdef0123456789abcdef")
_LIFE_S: Final = 86_400


@dataclass(slots=True)
class Target:
    """A store under attack. `token` is what the attackers have: a valid token for the attacked scope, or none.

    `own_token` is that of the well-behaved writer.
    """

    host: str
    port: int
    random: Random
    token: str = ""
    own_token: str = ""
    rounds: dict[str, int] = field(default_factory=dict)

    async def connect(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection from one of a few addresses. Linux owns all of 127.0.0.0/8."""
        address = f"127.0.1.{number % 5 + 1}"
        reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=(address, 0))
        writer.write(wire.encode(wire.OWN_HELLO))
        return reader, writer


Attack = Callable[[Target], Awaitable[None]]


async def half_updates(target: Target) -> None:
    """Begin large table updates, and send the rest just above the least pace."""
    writers = []
    texts = b"".join(struct.pack(">H", len(text)) + text for text in (TABLE.encode(), target.token.encode()))
    begin = struct.pack(">iiq", wire.UpdateTableEntries.TYPE, HALF_UPDATE_BYTES, 5) + texts + struct.pack(">i", 1)
    for number in range(HALF_UPDATES):
        _, writer = await target.connect(number)
        writer.write(begin + bytes(HALF_UPDATE_BYTES - (1 << 20)))
        writers.append(writer)
    for _ in range(TRICKLES):
        await asyncio.sleep(TRICKLE_EVERY_S)
        for writer in writers:
            if not writer.is_closing():
                writer.write(bytes(TRICKLE_BYTES))
    for writer in writers:
        writer.transport.abort()


async def long_lists(target: Target) -> None:
    """Merges of very many empty names."""
    payload = struct.pack(">qHi", 7, 0, LISTED_NAMES) + bytes(2 * LISTED_NAMES + 2)
    await _flood(target, struct.pack(">ii", wire.MergeSegmentsBatch.TYPE, len(payload)) + payload)


async def nested_names(target: Target) -> None:
    """Names that seem to belong to one another a thousand times."""
    for size in (4_000, 64_000):
        suffix = "#transient." + "a" * 32
        name = (ATTACKED + suffix * (size // len(suffix))).encode()
        token = target.token.encode()
        payload = struct.pack(">qH", 7, len(name)) + name + struct.pack(">H", len(token)) + token
        frame = struct.pack(">ii", wire.GetStreamSegmentInfo.TYPE, len(payload)) + payload
        await _flood(target, frame * (400_000 // len(frame)))


async def many_reads(target: Target) -> None:
    """Reads at the tail of the segment to which the writer appends."""
    asked = b"".join(
        wire.encode(wire.ReadSegment(SEGMENT, 1 << 50, 9, target.token, number))
        for number in range(READS_OF_A_CONNECTION)
    )
    connections = [await target.connect(number) for number in range(READING_CONNECTIONS)]
    for _, writer in connections:
        writer.write(asked)
    for reader, writer in connections:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                while await reader.read(1 << 16):
                    pass
        writer.transport.abort()


async def long_transients(target: Target) -> None:
    """Transient segments of the longest names that a parent may have."""
    parent = f"{SCOPE}/orders/".ljust(2_032, "x")
    await _flood(target, wire.encode(wire.CreateTransientSegment(3, 5, parent, target.token)) * 10)


async def many_attributes(target: Target) -> None:
    """Attributes that no client has a use for."""
    asked = (
        wire.UpdateSegmentAttribute(
            number, ATTACKED, target.random.getrandbits(126), 1, wire.NO_ATTRIBUTE_VALUE, target.token
        )
        for number in range(REQUESTS_AT_ONCE)
    )
    await _flood(target, b"".join(map(wire.encode, asked)))


async def refused_tokens(target: Target) -> None:
    """Requests with tokens that no key has signed."""
    asked = wire.GetStreamSegmentInfo(3, SEGMENT, f"{target.random.getrandbits(64):x}.b.c")
    await _flood(target, wire.encode(asked) * REQUESTS_AT_ONCE)


ATTACKS: Final[dict[str, Attack]] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        half_updates,
        long_lists,
        nested_names,
        many_reads,
        long_transients,
        many_attributes,
        refused_tokens,
    )
}


async def attack_until(target: Target, names: Sequence[str], stopped: asyncio.Event) -> None:
    """Run these attacks at once, round after round. Errors of their connections are what they have to expect."""

    async def repeat(name: str) -> None:
        while not stopped.is_set():
            with suppress(OSError, EOFError):
                await ATTACKS[name](target)
            target.rounds[name] = target.rounds.get(name, 0) + 1
            await asyncio.sleep(0)

    await asyncio.gather(*map(repeat, names))


async def write_well(target: Target, writer_id: int, appends: int, first: int = 0) -> list[float]:
    """Set up a writer and append; the times until the acknowledgements, in seconds.

    Raises:
        WrongStateError: the store does not acknowledge, but answers something else.
        ConnectionError: the store has closed the connection.
    """
    connection = await SocketConnection.open(target.port, target.host)
    try:
        await _expect(connection, wire.SetupAppend(1, writer_id, SEGMENT, target.own_token), wire.AppendSetup)
        took_s = []
        for number in range(first, first + appends):
            size = EVENT_BYTES[number % len(EVENT_BYTES)]
            started_s = time.perf_counter()
            append = wire.AppendBlockEnd(writer_id, size, bytes(size), 1, number + 1, 9)
            await _expect(connection, append, wire.DataAppended)
            took_s.append(time.perf_counter() - started_s)
        return took_s
    finally:
        connection.close()


async def create(target: Target) -> None:
    """Make the segments that the writer and the attackers use."""
    connection = await SocketConnection.open(target.port, target.host)
    for command in (
        wire.CreateSegment(1, SEGMENT, 0, 0, target.own_token),
        wire.CreateSegment(2, ATTACKED, 0, 0, target.own_token),
        wire.CreateTableSegment(3, TABLE, target.own_token),
    ):
        await _expect(connection, command, wire.SegmentCreated)
    connection.close()


def run(seed: int, *, seconds: float, tokens: str, attacks: Sequence[str] = ()) -> str:
    """Attack a store process for so long; what the writer has seen. `tokens`: off, none or valid, of the attackers.

    Raises:
        WrongStateError: the writer waited for more than FLUSH_MAX_S, was closed, or a container has stopped.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-") as name:
        directory = Path(name)
        settings: dict[str, object] = {"cache_bytes": 512 << 20}
        if tokens != "off":
            keys = directory / "keys.json"
            keys.write_text(token_keys_text(TokenKeys((_KEY,))))
            keys.chmod(0o600)
            settings |= {"tokens": "required", "token_keys_file": keys}
        with store_process(directory, settings) as store:
            store.start()
            target = Target(
                store.host,
                store.port,
                Random(seed),
                _token({scope_resource(SCOPE): Access.READ_UPDATE}) if tokens == "valid" else "",
                "" if tokens == "off" else _token({"*": Access.ADMIN}),
            )
            took_s = asyncio.run(_write_under_attack(target, seconds, tuple(attacks) or tuple(ATTACKS)))
            if not store.stop():
                raise WrongStateError("the store did not shut down cleanly")
            log = (directory / "store.log").read_text()
        if "event=container_failed" in log or "Traceback" in log:
            raise WrongStateError(f"a container has stopped: {log[-2_000:]}")
    took_s.sort()
    rounds = " ".join(f"{kind}={count}" for kind, count in sorted(target.rounds.items()))
    summary = (
        f"tokens {tokens}: {len(took_s)} appends, median {took_s[len(took_s) // 2] * 1e3:.1f} ms, "
        f"p99 {took_s[len(took_s) * 99 // 100] * 1e3:.0f} ms, longest {took_s[-1] * 1e3:.0f} ms; rounds {rounds}"
    )
    if took_s[-1] > FLUSH_MAX_S:
        raise WrongStateError(f"the writer waited for too long: {summary}")
    return summary


async def _write_under_attack(target: Target, seconds: float, names: Sequence[str]) -> list[float]:
    await create(target)
    stopped = asyncio.Event()
    attacking = asyncio.create_task(attack_until(target, names, stopped))
    took_s: list[float] = []
    end_s = time.perf_counter() + seconds
    try:
        while time.perf_counter() < end_s:
            took_s += await write_well(target, target.random.getrandbits(100), APPENDS_OF_A_WRITER)
    except ConnectionError as error:
        raise WrongStateError(f"the writer was closed after {len(took_s)} appends") from error
    finally:
        stopped.set()
        await attacking
    return took_s


async def _flood(target: Target, data: bytes) -> None:
    """Send on a new connection, and read until the store closes it or has answered everything for now."""
    reader, writer = await target.connect(target.random.randrange(5))
    try:
        writer.write(data)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while await reader.read(1 << 16):
                    pass
    finally:
        writer.transport.abort()


async def _expect(connection: SocketConnection, command: wire.WireCommand, reply: type[wire.WireCommand]) -> None:
    found = await connection.call(command)
    if not isinstance(found, reply):
        raise WrongStateError(f"{type(command).__name__} was answered {found}")


def _token(grants: dict[str, Access]) -> str:
    now_s = SystemClock().now_ms() // 1_000
    return encode_token(TokenClaims("hostile", now_s, now_s + _LIFE_S, grants), _KEY)
