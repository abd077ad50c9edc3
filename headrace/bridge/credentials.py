"""Verifies the credentials of a call: Basic authentication against the users of the bridge, which are read again.

Clients send their password with every call, and its hash takes some 30 ms on purpose. So a header that was verified is
remembered for some minutes, and one that was refused for a minute.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
import os
import urllib.parse
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from headrace.bridge.status_codes import UNAUTHENTICATED
from headrace.codec.grpc_users import NAME_CHARACTERS_MAX, SALT_BYTES, PasswordHash, User, Users, parse_users
from headrace.model.errors import HeadraceError, IllegalStateError, NotFoundError, ThrottledError, UnauthorizedError
from headrace.ports.grpc_user_storage import NOT_ALLOWED, GrpcUserStorage

# Counts of failed attempts to authenticate, which slow down guessing.

FAILURES_MAX: Final = 10
"""Of one user at one address. Failures elsewhere do not count: else anyone could keep a user from logging in."""

ADDRESS_FAILURES_MAX: Final = 50
"""Of all users at one address, which several clients may share."""

WINDOW_S: Final = 60.0
BLOCK_S: Final = 60.0
KEYS_MAX: Final = 10_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """A map that drops what was not used for longest when it is full."""

    def __init__(self, entries_max: int = KEYS_MAX) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._entries_max = entries_max

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)


@dataclass(slots=True)
class _Failures:
    times_s: deque[float]
    blocked_until_s: float = float("-inf")


class FailedAttempts(Generic[K]):
    """`failures_max` failures of a key (an address, or a user at an address) within WINDOW_S block it for BLOCK_S.

    Times are in seconds of a monotonic clock.
    """

    def __init__(self, failures_max: int = FAILURES_MAX, keys_max: int = KEYS_MAX) -> None:
        self._failures_max = failures_max
        self._failures: BoundedMap[K, _Failures] = BoundedMap(keys_max)

    def is_blocked(self, key: K, now_s: float) -> bool:
        failures = self._failures.get(key)
        return failures is not None and now_s < failures.blocked_until_s

    def add(self, key: K, now_s: float) -> bool:
        """Count a failure. Returns whether it blocks the key."""
        failures = self._failures.get(key)
        if failures is None:
            failures = _Failures(deque(maxlen=self._failures_max))
            self._failures.put(key, failures)
        failures.times_s.append(now_s)
        blocks = len(failures.times_s) == self._failures_max and now_s - failures.times_s[0] <= WINDOW_S
        if blocks:
            failures.blocked_until_s = now_s + BLOCK_S
            failures.times_s.clear()
        return blocks


ACCEPTED_S: Final = 300
REFUSED_S: Final = 60
"""A client that repeats the same wrong password is not a guess each time: it neither costs a hash nor counts again."""

HASHES_AT_ONCE: Final = 4
WAITING_MAX: Final = 64
"""Calls that wait for a hash. The last one waits for about half a second per core."""

_SCHEME: Final = "basic"
_IPV6_PREFIX: Final = 64
"""A host with one address of IPv6 usually has all addresses with this prefix."""

_log = logging.getLogger(__name__)


class _Answer(Enum):
    ACCEPTED = 1
    REFUSED = 2
    BLOCKED = 3


@dataclass(frozen=True, slots=True)
class _Verdict:
    """About one header. It ends when the password of the user changes."""

    password: PasswordHash | None
    until_s: float


class Credentials:
    """Verifies headers; for one event loop. `monotonic_s` is the time of verdicts and blocks."""

    def __init__(self, users: Callable[[], Users], monotonic_s: Callable[[], float]) -> None:
        self._users = users
        self._monotonic_s = monotonic_s
        self._executor = ThreadPoolExecutor(HASHES_AT_ONCE, thread_name_prefix="password")
        self._hashing = asyncio.Semaphore(HASHES_AT_ONCE)
        self._waiting = 0
        self._key = os.urandom(32)
        # A memory dump shows no header that was accepted: the maps have keyed digests only.
        self._accepted: BoundedMap[bytes, _Verdict] = BoundedMap()
        self._refused: BoundedMap[bytes, _Verdict] = BoundedMap()
        self._pending: dict[bytes, asyncio.Task[_Answer]] = {}
        self._failed_addresses = FailedAttempts[str](ADDRESS_FAILURES_MAX)
        self._failed_users = FailedAttempts[tuple[str, str]]()
        # What an unknown name is compared with, so that it takes the time of a known one.
        self._of_unknown_user = PasswordHash(os.urandom(SALT_BYTES), os.urandom(32))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def user(self, header: str | None, peer: str) -> User:
        """The user whose name and password the header `authorization` has; `peer` as gRPC names it.

        Raises:
            UnauthorizedError: code "unauthenticated": the header is missing or wrong.
            ThrottledError: too many attempts of this user from this address, of this address, or at the same time.
        """
        name, password = _basic(header)
        digest = hmac.digest(self._key, f"{name}:".encode() + password, "sha256")
        user = self._users().by_name.get(name)
        answer = self._remembered(digest, user)
        if answer is None:
            task = self._pending.get(digest)
            if task is None:
                task = asyncio.create_task(self._verify(digest, name, user, password, address_of(peer)))
                self._pending[digest] = task
                task.add_done_callback(lambda _: self._pending.pop(digest, None))
            # If one call is cancelled, the others still wait for the same hash.
            answer = await asyncio.shield(task)
        if answer is _Answer.BLOCKED:
            raise ThrottledError("too many failed attempts to authenticate: try again in a minute")
        if answer is _Answer.REFUSED or user is None:
            raise UnauthorizedError("the user name or the password is wrong", code=UNAUTHENTICATED)
        return user

    def _remembered(self, digest: bytes, user: User | None) -> _Answer | None:
        now_s, password = self._monotonic_s(), None if user is None else user.password
        for verdicts, answer in ((self._accepted, _Answer.ACCEPTED), (self._refused, _Answer.REFUSED)):
            verdict = verdicts.get(digest)
            if verdict is not None and now_s < verdict.until_s and verdict.password == password:
                return answer
        return None

    async def _verify(self, digest: bytes, name: str, user: User | None, password: bytes, address: str) -> _Answer:
        if self._waiting >= WAITING_MAX or self._is_blocked(name, address):
            return _Answer.BLOCKED
        expected = self._of_unknown_user if user is None else user.password
        self._waiting += 1
        try:
            async with self._hashing:
                # Attempts that came at the same time have failed while this one waited.
                if self._is_blocked(name, address):
                    return _Answer.BLOCKED
                loop = asyncio.get_running_loop()
                matches = await loop.run_in_executor(self._executor, expected.is_of, password)
        finally:
            self._waiting -= 1
        now_s = self._monotonic_s()
        if matches and user is not None:
            self._accepted.put(digest, _Verdict(user.password, now_s + ACCEPTED_S))
            return _Answer.ACCEPTED
        self._refused.put(digest, _Verdict(None if user is None else user.password, now_s + REFUSED_S))
        self._count_failure(name, address, now_s)
        return _Answer.REFUSED

    def _is_blocked(self, name: str, address: str) -> bool:
        now_s = self._monotonic_s()
        user_is_blocked = self._failed_users.is_blocked((name, address), now_s)
        return user_is_blocked or self._failed_addresses.is_blocked(address, now_s)

    def _count_failure(self, name: str, address: str, now_s: float) -> None:
        _log.warning("event=credentials_refused user=%r address=%r", name, address)
        if self._failed_addresses.add(address, now_s):
            _log.warning("event=credentials_blocked address=%r", address)
        if self._failed_users.add((name, address), now_s):
            _log.warning("event=credentials_blocked user=%r address=%r", name, address)


def address_of(peer: str) -> str:
    """The part of gRPC's name of a peer, such as `ipv4:10.0.0.1:5000`, by which its failures are counted."""
    host = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)


def _basic(header: str | None) -> tuple[str, bytes]:
    """Name and password. The messages of its errors do not have them."""
    if not header:
        raise UnauthorizedError(
            "the call has no credentials: switch authentication on in the client, with method Basic",
            code=UNAUTHENTICATED,
        )
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != _SCHEME:
        raise UnauthorizedError("the method of authentication is not Basic, the only one here", code=UNAUTHENTICATED)
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        text = name.decode("utf-8")
    except (binascii.Error, ValueError):
        colon, text, password = b"", "", b""
    if not colon or not text or len(text) > NAME_CHARACTERS_MAX:
        raise UnauthorizedError("the credentials are not base64 of USER:PASSWORD", code=UNAUTHENTICATED)
    return text, password


# The users of the bridge, which are read again every minute, or every five seconds from a file.
#
# The text that holds them is described in `codec/grpc_users.py`; `headrace grpc-user` writes it.

REFRESH_S: Final = 60.0
"""A user who was removed is refused after this time."""
FILE_REFRESH_S: Final = 5.0
"""Files cost nothing to read."""


class UserSource:
    """The users as they were read last. `refresh` blocks; all else is for the event loop."""

    def __init__(
        self,
        storage: GrpcUserStorage,
        refresh_s: float = REFRESH_S,
        run: Callable[..., Awaitable[None]] = asyncio.to_thread,
    ) -> None:
        """`run` calls a blocking function in a thread."""
        self._storage = storage
        self._refresh_s = refresh_s
        self._run = run
        self._users = Users({})
        self._task: asyncio.Task[None] | None = None

    def users(self) -> Users:
        return self._users

    def refresh(self) -> None:
        """Read the users. Raises HeadraceError if they cannot be read; those of before stay."""
        self._users = parse_users(self._storage.read())

    async def start(self) -> None:
        """Read the users, and begin to read them again and again.

        If nothing is stored yet, or access is denied, there are no users, and every call is refused. Raises the other
        errors of `refresh`.
        """
        try:
            await self._run(self.refresh)
        except (NotFoundError, IllegalStateError) as error:
            if isinstance(error, IllegalStateError) and error.specific_code != NOT_ALLOWED:
                raise
            _log.warning("event=users_not_read error=%r", error.message)
        self._task = asyncio.create_task(self._refresh_repeatedly())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _refresh_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self._run(self.refresh)
            except HeadraceError as error:
                _log.error("event=users_not_read error=%r", error.message)
            except Exception:  # noqa: BLE001 - a defect in one attempt must not end the later ones
                _log.exception("event=users_not_read")
