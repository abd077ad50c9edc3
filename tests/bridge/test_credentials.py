"""Verifying credentials: what is hashed, what is remembered, and what is blocked."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.grpc_user_storage import GrpcUserFile
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.bridge import credentials
from headrace.bridge.credentials import (
    ACCEPTED_S,
    ADDRESS_FAILURES_MAX,
    BLOCK_S,
    FAILURES_MAX,
    REFUSED_S,
    WINDOW_S,
    BoundedMap,
    Credentials,
    FailedAttempts,
    UserSource,
    address_of,
)
from headrace.bridge.status_codes import UNAUTHENTICATED
from headrace.codec.grpc_users import PasswordHash, User, Users, users_text
from headrace.model.errors import CorruptError, IllegalStateError, ThrottledError, UnauthorizedError, UnavailableError
from headrace.ports.grpc_user_storage import NOT_ALLOWED

PEER = "ipv4:10.0.0.1:5000"
ANN = User("ann", PasswordHash.of(b"correct horse", b"0123456789abcdef"))

pytestmark = pytest.mark.anyio


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


class Desk:
    """Credentials with a clock, with users that a test replaces, and with a count of hashes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.users = Users({"ann": ANN})
        self.hashes = 0
        self.hashing = self.most_at_once = 0
        self.credentials = Credentials(lambda: self.users, self.clock.monotonic_s)
        is_of = PasswordHash.is_of

        def counted(expected: PasswordHash, password: bytes) -> bool:
            self.hashes += 1
            self.hashing += 1
            self.most_at_once = max(self.most_at_once, self.hashing)
            try:
                return is_of(expected, password)
            finally:
                self.hashing -= 1

        monkeypatch.setattr(PasswordHash, "is_of", counted)

    async def user(self, name: str = "ann", password: str = "correct horse", peer: str = PEER) -> User:
        return await self.credentials.user(basic(name, password), peer)

    async def refused(self, name: str = "ann", password: str = "pass-phrase", peer: str = PEER) -> str:
        """The kind of refusal."""
        with pytest.raises((UnauthorizedError, ThrottledError)) as refused:
            await self.user(name, password, peer)
        assert password not in refused.value.message
        return refused.value.specific_code


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    made = Desk(monkeypatch)
    yield made
    made.credentials.close()


async def test_a_verified_header_costs_one_hash(desk: Desk):
    assert await desk.user() == ANN
    desk.clock.advance(1000 * ACCEPTED_S - 1)
    assert await desk.user() == ANN
    assert desk.hashes == 1
    desk.clock.advance(1)
    assert await desk.user() == ANN
    assert desk.hashes == 2


async def test_calls_at_the_same_time_share_one_hash(desk: Desk):
    assert await asyncio.gather(*(desk.user() for _ in range(50))) == [ANN] * 50
    assert desk.hashes == 1


async def test_a_cancelled_call_does_not_end_the_others(desk: Desk):
    first, second = asyncio.create_task(desk.user()), asyncio.create_task(desk.user())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ANN


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer x",
        "Basic",
        "Basic %",
        basic("", "x"),
        "Basic " + base64.b64encode(b"ann").decode(),
        "Basic " + base64.b64encode(b"\xff:x").decode(),
        basic("a" * 129, "x"),
    ],
)
async def test_malformed_header_is_refused_without_a_hash(desk: Desk, header: str | None):
    with pytest.raises(UnauthorizedError) as refused:
        await desk.credentials.user(header, PEER)
    assert refused.value.specific_code == UNAUTHENTICATED
    assert desk.hashes == 0


@given(
    header=st.text(max_size=60) | st.binary(max_size=40).map(lambda data: "basic " + base64.b64encode(data).decode())
)
def test_arbitrary_header_is_refused(header: str):
    async def refuse() -> None:
        with pytest.raises(UnauthorizedError):
            await Credentials(lambda: Users({}), lambda: 0.0).user(header, PEER)

    asyncio.run(refuse())


async def test_unknown_user_costs_a_hash_like_a_known_one(desk: Desk):
    assert await desk.refused("bob", "correct horse") == UNAUTHENTICATED
    assert await desk.refused("ann", "pass-phrase") == UNAUTHENTICATED
    assert desk.hashes == 2


async def test_a_repeated_wrong_password_is_one_failure(desk: Desk):
    assert {await desk.refused() for _ in range(3 * FAILURES_MAX)} == {UNAUTHENTICATED}
    assert desk.hashes == 1
    assert await desk.user() == ANN
    desk.clock.advance(1000 * REFUSED_S)
    await desk.refused()
    assert desk.hashes == 3


async def test_failures_of_many_users_block_the_address(desk: Desk):
    for number in range(ADDRESS_FAILURES_MAX):
        assert await desk.refused(f"user{number}") == UNAUTHENTICATED
    assert await desk.refused("ann", "correct horse") == ThrottledError.code
    assert desk.hashes == ADDRESS_FAILURES_MAX
    assert await desk.user(peer="ipv4:10.0.0.2:5000") == ANN
    assert await desk.user() == ANN, "a header that was verified is not a guess"


async def test_ten_failures_block_the_user_at_this_address(desk: Desk):
    for number in range(FAILURES_MAX):
        assert await desk.refused("ann", f"guess {number}") == UNAUTHENTICATED
    assert await desk.refused("ann", "correct horse") == ThrottledError.code
    assert await desk.refused("bob", "x") == UNAUTHENTICATED
    desk.clock.advance(int(1000 * BLOCK_S))
    assert await desk.user() == ANN


async def test_wrong_passwords_elsewhere_lock_no_user_out(desk: Desk):
    for number in range(3 * FAILURES_MAX):
        await desk.refused("ann", f"guess {number}", f"ipv4:10.0.1.{number % 4}:1")
    assert await desk.user() == ANN


async def test_guesses_at_the_same_time_are_no_way_round(desk: Desk):
    results = await asyncio.gather(*(desk.refused("ann", f"guess {number}") for number in range(60)))
    assert results.count(UNAUTHENTICATED) <= FAILURES_MAX + credentials.HASHES_AT_ONCE
    assert desk.hashes <= FAILURES_MAX + credentials.HASHES_AT_ONCE
    assert desk.most_at_once <= credentials.HASHES_AT_ONCE


async def test_calls_that_wait_for_hashes_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(credentials, "WAITING_MAX", 2)
    results = await asyncio.gather(
        *(desk.refused(f"user{number}", peer=f"ipv4:10.0.0.{number}:1") for number in range(5))
    )
    assert (results.count(UNAUTHENTICATED), results.count(ThrottledError.code)) == (2, 3)


async def test_removed_user_is_refused_at_once(desk: Desk):
    await desk.user()
    desk.users = Users({})
    assert await desk.refused("ann", "correct horse") == UNAUTHENTICATED


async def test_changed_password_ends_what_is_remembered(desk: Desk):
    await desk.user()
    await desk.refused("ann", "another one")
    desk.users = Users({"ann": User("ann", PasswordHash.of(b"another one", b"fedcba9876543210"))})
    assert await desk.refused("ann", "correct horse") == UNAUTHENTICATED
    assert (await desk.user("ann", "another one")).name == "ann"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::1%5D:5000", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5000", "10.0.0.1"),
        ("ipv6:[fe80::1%25eth0]:5000", "fe80::/64"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_address_of_a_peer(peer: str, address: str):
    assert address_of(peer) == address


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 30)), max_size=120))
def test_blocks_follow_the_times_of_failures(steps: list[tuple[int, float]]):
    failures, now_s = FailedAttempts[str](), 0.0
    times: dict[str, list[float]] = {}
    until: dict[str, float] = {}
    for number, pause_s in steps:
        key, now_s = str(number), now_s + pause_s
        blocked = now_s < until.get(key, -1.0)
        assert failures.is_blocked(key, now_s) == blocked
        if blocked:
            continue
        recent = [*times.get(key, []), now_s][-FAILURES_MAX:]
        blocks = len(recent) == FAILURES_MAX and now_s - recent[0] <= WINDOW_S
        assert failures.add(key, now_s) == blocks
        times[key] = [] if blocks else recent
        if blocks:
            until[key] = now_s + BLOCK_S


@given(st.lists(st.integers(0, 20)))
def test_a_bounded_map_keeps_what_was_used_last(keys: list[int]):
    bounded: BoundedMap[int, str] = BoundedMap(5)
    for key in keys:
        bounded.put(key, str(key))
    kept = list(dict.fromkeys(reversed(keys)))
    assert len(bounded) == min(5, len(kept))
    assert [bounded.get(key) for key in kept] == [str(key) if index < 5 else None for index, key in enumerate(kept)]


USERS_ANN = Users({"ann": User("ann", PasswordHash(b"0" * 16, b"1" * 32))})


async def until(condition: object, source: UserSource) -> None:
    async with asyncio.timeout(20):
        while source.users() != condition:
            await asyncio.sleep(0.005)


async def test_changed_users_are_noticed(tmp_path: Path):
    storage = GrpcUserFile(tmp_path / "users.json")
    storage.write(users_text(Users({})))
    source = UserSource(storage, refresh_s=0.01)
    await source.start()
    assert source.users() == Users({})
    storage.write(users_text(USERS_ANN))
    await until(USERS_ANN, source)
    source.stop()


class _Denied:
    """Storage that denies access, until there is a text."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.text = ""

    def read(self) -> str:
        if not self.text:
            raise IllegalStateError("the secret cannot be read", code=self.code)
        return self.text

    def write(self, text: str) -> None:
        self.text = text


async def test_a_bridge_starts_before_its_secret_exists():
    """Secrets Manager answers AccessDenied then, since the role may read this secret only."""
    storage = _Denied(NOT_ALLOWED)
    source = UserSource(storage, refresh_s=0.01)
    await source.start()
    assert source.users() == Users({})
    storage.write(users_text(USERS_ANN))
    await until(USERS_ANN, source)
    source.stop()
    with pytest.raises(IllegalStateError):
        await UserSource(_Denied("illegal_state")).start()


async def test_without_a_file_there_are_no_users_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    storage = GrpcUserFile(tmp_path / "users.json")
    source = UserSource(storage, refresh_s=0.01)
    await source.start()
    assert source.users() == Users({})
    assert "event=users_not_read" in caplog.text
    storage.write(users_text(USERS_ANN))
    await until(USERS_ANN, source)
    source.stop()


async def test_damaged_users_end_the_start(tmp_path: Path):
    (tmp_path / "users.json").write_text("{}")
    with pytest.raises(CorruptError):
        await UserSource(GrpcUserFile(tmp_path / "users.json")).start()


@pytest.mark.parametrize("failure", [UnavailableError("away"), CorruptError("damaged"), RuntimeError("a defect")])
async def test_users_are_kept_while_they_cannot_be_read(failure: Exception, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.ERROR)
    read = 0

    class Storage:
        def read(self) -> str:
            nonlocal read
            read += 1
            if read in (2, 3):
                raise failure
            return users_text(USERS_ANN if read == 1 else Users({}))

        def write(self, text: str) -> None:
            raise AssertionError

    source = UserSource(Storage(), refresh_s=0.01)
    await source.start()
    while read < 3:
        assert source.users() == USERS_ANN
        await asyncio.sleep(0.001)
    await until(Users({}), source)
    assert caplog.text.count("event=users_not_read") == 2
    source.stop()
