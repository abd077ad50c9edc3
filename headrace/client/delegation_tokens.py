"""Delegation tokens: what this client sends to the segment stores with each request, if the deployment wants tokens.

A token is for one stream, table or reader group, and allows either to read, or to write and read. It is fetched from
the controller before the first request that needs it, and used by all connections. At 70 to 80 % of its lifetime a new
one is fetched, while the old one is still in use.

The controller says in each answer whether tokens are wanted. If it did not, the first refusal of a store does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import structs

from headrace import wire
from headrace.api.delegation_tokens import IssuedToken
from headrace.client.http_api import HttpApi
from headrace.codec.delegation_tokens import TOKEN_EXPIRED, TOKEN_INVALID
from headrace.futures import mark_retrieved
from headrace.model.access import Access, segment_resource
from headrace.model.arguments import checked_calls
from headrace.model.errors import CorruptError, HeadraceError, NotFoundError, UnauthorizedError, UnavailableError
from headrace.wire.required_access import REQUIRED_ACCESS, required_access

TOKENS_HELD_MAX: Final = 1_000
KEYS_CACHED_MAX: Final = 4_096
FETCH_TIMEOUT_S: Final = 10.0
"""After it a request fails as if its store were away, and is repeated. It is shorter than all time-outs of replies."""

RENEWED_AT: Final = 0.8
RENEWED_EARLIER_MAX: Final = 0.1
"""Parts of a token's lifetime. The jitter keeps clients that began together from asking together."""

HELD_S_MIN: Final = 10.0
"""A token is used at least so long. Otherwise a client with a wrong clock would fetch one for each request."""

RENEWAL_PAUSE_S: Final = 5.0
"""Between two attempts to renew a token."""

SHIPPED_LEFT_S: Final = 30.0
"""A token of another process is not used when less than this is left."""

EXPIRED_WAITS_S: Final = (0.0, 0.5, 1.5, 4.0)
"""A token that a store calls expired is replaced after these times. It may be one of a revoked key, of which the store
has heard some seconds before the controller; or of a new key, of which the store has not heard yet."""

_METHODS: Final = {Access.READ: "GET", Access.READ_UPDATE: "POST", Access.MANAGE: "PUT"}
_KINDS: Final = {"stream": "streams", "key-value-table": "key-value-tables", "reader-group": "reader-groups"}


class _Key(NamedTuple):
    """What a token is for. `kind` is the resource's part of the path."""

    scope: str
    kind: str
    name: str
    access: Access

    @property
    def method(self) -> str:
        return _METHODS[self.access]

    @property
    def path(self) -> str:
        return f"/v1/scopes/{self.scope}/{self.kind}/{self.name}/delegation-token"

    def __str__(self) -> str:
        """For messages, for example "write to stream shop/orders"."""
        verb = {Access.READ: "read", Access.READ_UPDATE: "write to", Access.MANAGE: "truncate"}[self.access]
        return f"{verb} {self.kind[:-1].replace('-', ' ')} {self.scope}/{self.name}"


@dataclass(slots=True)
class _Held:
    """A token, and when it is to be replaced and when it ends, in seconds of the monotonic clock."""

    token: str = field(repr=False)
    due_s: float
    ends_s: float


@checked_calls("ready", "when_replaced")
class AsyncDelegationTokens:
    """The tokens of one client. Programs need not use it: connections to the stores do."""

    def __init__(
        self,
        api: HttpApi,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._api = api
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._jitter = jitter
        self._held: OrderedDict[_Key, _Held] = OrderedDict()
        self._fetches: dict[_Key, asyncio.Task[_Held]] = {}

    @property
    def demanded(self) -> bool:
        """Whether the deployment wants tokens, as far as this client knows."""
        return self._api.demands_tokens

    def ready(self, command: wire.WireCommand) -> wire.WireCommand | None:
        """The command as it is to be sent; None if its token must be fetched first."""
        if not self._api.demands_tokens or (key := _key_of(command)) is None:
            return command
        entry = self._find(key)
        if entry is None:
            return None
        key, held = entry
        if held.due_s <= self._monotonic_s() and key not in self._fetches:
            held.due_s = self._monotonic_s() + RENEWAL_PAUSE_S  # if the renewal fails
            self._begin_fetch(key)
        return _with_token(command, held)

    async def attached(self, command: wire.WireCommand) -> wire.WireCommand:
        """Returns the command with a token if it needs one.

        Raises:
            UnauthorizedError: the credentials of this client do not allow what the command does.
            UnavailableError: the controller did not answer in time.
        """
        with_token = self.ready(command)
        if with_token is None:
            key = _key_of(command)
            assert key is not None, "other commands are always ready"
            with_token = _with_token(command, await self._fetched(key))
        return with_token

    async def after_refusal(
        self, command: wire.WireCommand, reply: wire.AuthTokenCheckFailed, refusals: int
    ) -> wire.WireCommand:
        """Returns the command with another token than the one that a store refused.

        `refusals` says how many were refused before, of the same command.

        Raises:
            UnauthorizedError: another token would be refused too; or as `attached`.
            UnavailableError: as `attached`.
        """
        self._api.demands_tokens = True
        key = _key_of(command)
        if key is None:
            raise wire.error_of_reply(reply)
        refused: str = command.delegation_token  # type: ignore[attr-defined]  # a command with a key has it
        if refused:
            for each in _keys_that_allow(key):
                if (held := self._held.get(each)) is not None and held.token == refused:
                    del self._held[each]
            is_expired = reply.error_code == wire.TOKEN_EXPIRED
            if not is_expired or refusals >= len(EXPIRED_WAITS_S):
                raise _refused(key, is_expired=is_expired)
            await asyncio.sleep(EXPIRED_WAITS_S[refusals])
        entry = self._find(key)
        held = await self._fetched(key) if entry is None else entry[1]
        if not held.token:
            raise _not_issued(self._api.url)
        return _with_token(command, held)

    def when_replaced(self, segment: str, used: str, call: Callable[[], None]) -> asyncio.Task[None] | None:
        """Calls back when there is a newer token for writing to a segment than `used`. Cancel the task to prevent it.

        Returns None if the deployment wants no tokens.
        """
        if not self._api.demands_tokens or (key := _key_of_segment(segment, Access.READ_UPDATE)) is None:
            return None
        return asyncio.get_running_loop().create_task(self._replace(key, used, call))

    async def to_read(self, scope: str, stream: str) -> IssuedToken | None:
        """Returns a token for reading a stream in another process; None if the deployment wants no tokens.

        Raises the same errors as `attached`.
        """
        if not self._api.demands_tokens:
            return None
        key = _Key(scope, "streams", stream, Access.READ)
        held = self._held.get(key)
        if held is None or held.due_s <= self._monotonic_s():
            held = await self._fetched(key)
        if not held.token:
            return None
        return IssuedToken(held.token, int((self._now_s() + held.ends_s - self._monotonic_s()) * 1000))

    async def offer(self, scope: str, stream: str, issued: IssuedToken) -> None:
        """Takes a token for reading a stream that `to_read` returned in another process, unless it ends soon."""
        self._api.demands_tokens = True
        key = _Key(scope, "streams", stream, Access.READ)
        now_s = self._monotonic_s()
        ends_s = now_s + issued.expires_ms / 1000 - self._now_s() - SHIPPED_LEFT_S
        held = self._held.get(key)
        if ends_s > now_s and (held is None or held.due_s < ends_s):
            self._keep(key, _Held(issued.token, ends_s, ends_s))

    def _find(self, key: _Key) -> tuple[_Key, _Held] | None:
        """A token that is valid; preferably one that is not due, and one for writing rather than one for reading."""
        now_s = self._monotonic_s()
        due: tuple[_Key, _Held] | None = None
        for each in _keys_that_allow(key):
            held = self._held.get(each)
            if held is None or held.ends_s <= now_s:
                continue
            if held.due_s > now_s:
                self._held.move_to_end(each)
                return each, held
            due = each, held
        return due

    async def _replace(self, key: _Key, used: str, call: Callable[[], None]) -> None:
        if not used and key not in self._held and not await self._is_issued(key):
            return  # a writer that was set up again would have none either, and so on without end
        while self._api.demands_tokens and (held := self._held.get(key)) is not None and held.token == used:
            wait_s = held.due_s - self._monotonic_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            held.due_s = self._monotonic_s() + RENEWAL_PAUSE_S  # the old token is still valid for a while
            with contextlib.suppress(HeadraceError):
                await self._fetched(key)
        call()

    async def _is_issued(self, key: _Key) -> bool:
        """Whether the controller issues tokens for this. A wanted token may have been turned off there first."""
        try:
            return bool((await self._fetched(key)).token)
        except HeadraceError:
            return False

    async def _fetched(self, key: _Key) -> _Held:
        fetch = self._fetches.get(key) or self._begin_fetch(key)
        done, _ = await asyncio.wait({fetch}, timeout=FETCH_TIMEOUT_S)
        if not done:
            raise UnavailableError(f"the controller at {self._api.url} has not issued a token to {key} in time")
        return fetch.result()

    def _begin_fetch(self, key: _Key) -> asyncio.Task[_Held]:
        fetch = self._fetches[key] = asyncio.get_running_loop().create_task(self._fetch(key))
        fetch.add_done_callback(mark_retrieved)
        return fetch

    async def _fetch(self, key: _Key) -> _Held:
        try:
            issued = _issued(await self._api.request(key.method, key.path))
        except (UnauthorizedError, NotFoundError) as error:
            raise _not_allowed(key, error) from error
        finally:
            del self._fetches[key]
        now_s = self._monotonic_s()
        if not issued.token:  # tokens are turned off, at the controller first
            old = self._held.get(key)
            self._api.demands_tokens = any(held.ends_s > now_s for held in self._held.values())
            return old if old is not None and old.ends_s > now_s else _Held("", now_s, now_s)
        lifetime_s = max(HELD_S_MIN, issued.expires_ms / 1000 - self._now_s())
        due_s = now_s + lifetime_s * (RENEWED_AT - RENEWED_EARLIER_MAX * self._jitter())
        return self._keep(key, _Held(issued.token, due_s, now_s + lifetime_s))

    def _keep(self, key: _Key, held: _Held) -> _Held:
        self._held[key] = held
        self._held.move_to_end(key)
        while len(self._held) > TOKENS_HELD_MAX:
            self._held.popitem(last=False)
        return held


def _key_of(command: wire.WireCommand) -> _Key | None:
    """What the command's token is for; None for a command without one."""
    if type(command) not in REQUIRED_ACCESS:
        return None
    access, segments = required_access(command)
    return _key_of_segment(segments[0], access)


@lru_cache(KEYS_CACHED_MAX)
def _key_of_segment(segment: str, access: Access) -> _Key | None:
    resource = segment_resource(segment)
    if resource is None:
        return None
    kind, _, name = resource.rpartition("/")[2].partition(":")
    manages = access is Access.MANAGE and _KINDS[kind] == "streams"
    # Only parts of the deployment get more.
    level = Access.MANAGE if manages else min(access, Access.READ_UPDATE)
    return _Key(segment.partition("/")[0], _KINDS[kind], name, level)


@lru_cache(KEYS_CACHED_MAX)
def _keys_that_allow(key: _Key) -> tuple[_Key, ...]:
    """A token for writing also reads. A writer never uses one that also truncates, because it renews its own."""
    return (key._replace(access=Access.READ_UPDATE), key) if key.access is Access.READ else (key,)


def _with_token(command: wire.WireCommand, held: _Held) -> wire.WireCommand:
    changed: wire.WireCommand = structs.replace(command, delegation_token=held.token)
    return changed


def _issued(answer: dict[str, Any]) -> IssuedToken:
    try:
        return IssuedToken.from_json(answer)
    except (KeyError, TypeError, ValueError):
        # Neither the answer nor the cause is shown: they may have the token.
        raise CorruptError("the controller's answer is not a delegation token") from None


def _not_issued(url: str) -> UnauthorizedError:
    return UnauthorizedError(
        f"the segment stores want delegation tokens, but the controller at {url} issues none: set "
        "HEADRACE_TOKENS=required for the controller too",
        code=TOKEN_INVALID,
    )


def _not_allowed(key: _Key, error: HeadraceError) -> UnauthorizedError:
    if isinstance(error, NotFoundError):
        return UnauthorizedError(
            f"no permission to {key}: the segment store wants a delegation token, but this controller does not issue "
            f"any ({error.message}); update the controller",
            code=TOKEN_INVALID,
        )
    return UnauthorizedError(
        f"no permission to {key}: the credentials of this client may not call {key.method} {key.path}. Allow that in "
        f"their IAM policy, or use other credentials. The controller answered: {error.message}",
        details={"scope": key.scope, key.kind[:-1]: key.name, "access": key.access.name},
    )


def _refused(key: _Key, *, is_expired: bool) -> UnauthorizedError:
    if is_expired:
        return UnauthorizedError(
            f"no permission to {key}: the segment store refuses tokens that were issued just now: it does not know the "
            "key that signed them, or its clock is ahead of the controller; event=token_refused in its log says which",
            code=TOKEN_EXPIRED,
        )
    return UnauthorizedError(
        f"no permission to {key}: the segment store refuses the token that the controller has issued; check that the "
        "store and the controller have the same token keys",
        code=TOKEN_INVALID,
    )
