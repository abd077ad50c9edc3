"""Delegation tokens of a store: what each connection may do, and the end of what a token allowed.

`TokenChecks` belongs to the store, and a `TokenGate` to each connection. A store that needs no tokens has neither. A
token is valid until CLOCK_SKEW_S after its end, by the clock of the store. So clients that renew theirs before its end
never see an expired one.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace import wire
from headrace.codec.delegation_tokens import (
    CLOCK_SKEW_S,
    TOKEN_EXPIRED,
    TOKEN_INVALID,
    TokenClaims,
    TokenKeys,
    verify_token,
)
from headrace.model.access import Access, allows
from headrace.model.errors import UnauthorizedError
from headrace.model.log_limits import LogLimit
from headrace.segmentstore.connections.connection_limits import REFUSED_TOKENS_MAX
from headrace.wire.required_access import REQUIRED_ACCESS, required_access

if TYPE_CHECKING:
    from headrace.ports.clock import Clock
    from headrace.segmentstore.metrics import StoreMetrics

_log = logging.getLogger(__name__)

TOKENS_VERIFIED_MAX: Final = 10_000
"""Tokens whose claims are kept. A token has at most 2 KiB, and usual ones have a fifth of it."""

REPLIES_TO_WRITERS_FROM: Final = 16
"""The protocol version from which writers handle a refused token. The Rust client has version 15: its writers repeat a
set-up that is told expired with the same token for ever, and ignore a refusal while they append. They fetch another
token when a set-up is refused as invalid, or when their connection is closed."""

_LOGGED_NAME_CHARACTERS_MAX: Final = 256
_TABLE_COMMANDS: Final[dict[int, type[wire.WireCommand]]] = {
    kind.TYPE: kind for kind in (wire.UpdateTableEntries, wire.RemoveTableKeys, wire.ReadTable)
}
_WITHOUT_TOKEN: Final = (wire.Hello, wire.KeepAlive, wire.Padding)


@dataclass(slots=True, eq=False)
class TokenHold:
    """Something that a token allowed and that ends with it: `end` is called in the second `end_s`."""

    end_s: int
    key_id: str
    end: Callable[[], None]


class TokenChecks:
    """The verified tokens of all connections, and the holds. No keys: every token is refused."""

    def __init__(self, clock: Clock, metrics: StoreMetrics, keys: TokenKeys | None = None) -> None:
        self.clock = clock
        self.generation = 0
        """Changes with the keys. What was verified before does not count."""
        self._metrics = metrics
        self._keys = keys or TokenKeys(())
        self._verified: OrderedDict[str, TokenClaims] = OrderedDict()
        self._holds: dict[int, set[TokenHold]] = {}
        self._refusals_logged = LogLimit()

    @property
    def now_s(self) -> float:
        return self.clock.now_ms() / 1_000

    @property
    def verified_count(self) -> int:
        return len(self._verified)

    @property
    def hold_count(self) -> int:
        return sum(map(len, self._holds.values()))

    def use(self, keys: TokenKeys) -> None:
        """Verify with these keys from now on. The next `end_holds` ends what tokens of other keys allowed."""
        if keys == self._keys:
            return
        known = {key.key_id: key.secret for key in self._keys.keys}
        ends_s = {key.key_id: key.verifies_until_s for key in keys.keys if known.get(key.key_id) == key.secret}
        self._keys = keys
        self._verified.clear()
        self.generation += 1
        for hold in [hold for holds in self._holds.values() for hold in holds]:
            end_s = ends_s.get(hold.key_id, 0)
            if end_s is not None and end_s < hold.end_s:
                self.release(hold)
                hold.end_s = end_s
                self._add(hold)

    def claims(self, token: str) -> TokenClaims:
        """The claims of a token that is valid now.

        Raises:
            UnauthorizedError: it is not valid, with the code TOKEN_INVALID or TOKEN_EXPIRED.
        """
        now_s, claims = self.now_s, self._verified.get(token)
        if claims is not None:
            self._verified.move_to_end(token)
        else:
            claims = verify_token(token, self._keys, now_s)
        if now_s >= self.valid_until_s(claims):
            self._verified.pop(token, None)
            raise UnauthorizedError("the delegation token has expired", code=TOKEN_EXPIRED)
        self._verified[token] = claims
        if len(self._verified) > TOKENS_VERIFIED_MAX:
            self._verified.popitem(last=False)
        return claims

    def valid_until_s(self, claims: TokenClaims) -> int:
        """The end of a token with these claims, or that of its key if it is earlier."""
        end_s, key = claims.expires_at_s + CLOCK_SKEW_S, self._keys.verifying_key(claims.key_id, self.now_s)
        if key is None:
            return 0
        return end_s if key.verifies_until_s is None else min(end_s, key.verifies_until_s)

    def hold(self, token: str, end: Callable[[], None]) -> TokenHold:
        """Call `end` once when this token, which was checked before, is at its end or its key is revoked."""
        try:
            claims = self.claims(token)
            hold = TokenHold(self.valid_until_s(claims), claims.key_id, end)
        except UnauthorizedError:
            hold = TokenHold(0, "", end)  # it was valid just before
        self._add(hold)
        return hold

    def release(self, hold: TokenHold) -> None:
        """Forget a hold, if it has not ended yet."""
        holds = self._holds.get(hold.end_s)
        if holds is not None:
            holds.discard(hold)
            if not holds:
                del self._holds[hold.end_s]

    def end_holds(self) -> None:
        """End the holds whose time is over. Call it about once a second."""
        now_s = self.now_s
        for end_s in [end_s for end_s in self._holds if end_s <= now_s]:
            holds = self._holds.get(end_s, ())
            while holds:
                hold = next(iter(holds))
                self.release(hold)
                hold.end()

    def note_refusal(self, peer: str, command: str, segment: str, error: UnauthorizedError) -> None:
        """Count a refusal, and log it unless another one was logged just before."""
        refusals = self._metrics.tokens_refused
        refusals[error.specific_code if error.specific_code == TOKEN_EXPIRED else TOKEN_INVALID] += 1
        if self._refusals_logged.allows(self.clock.monotonic_s()):
            _log.warning(
                "event=token_refused peer=%s command=%s segment=%r code=%s refused=%d error=%r",
                peer,
                command,
                segment[:_LOGGED_NAME_CHARACTERS_MAX],
                error.specific_code,
                sum(refusals.values()),
                error.message,
            )

    def _add(self, hold: TokenHold) -> None:
        self._holds.setdefault(hold.end_s, set()).add(hold)


class Replies(Protocol):
    """The session of a gate."""

    peer: str

    def send(self, command: wire.WireCommand) -> None: ...

    def close(self) -> None: ...


class TokenGate:
    """The checks of one connection. It remembers the last check, because clients repeat a request with one token."""

    __slots__ = (
        "_access",
        "_checks",
        "_generation",
        "_refused_in_a_row",
        "_replies",
        "_segment",
        "_token",
        "_valid_until_s",
        "_version",
        "has_admitted",
    )

    def __init__(self, checks: TokenChecks, replies: Replies) -> None:
        self.has_admitted = False
        """Whether the peer has shown a valid token."""
        self._checks = checks
        self._refused_in_a_row = 0
        self._replies = replies
        self._version = 0  # a peer that says no Hello is treated as the oldest one
        self._token = ""
        self._segment = ""
        self._access = Access.NONE
        self._valid_until_s = 0
        self._generation = -1

    @property
    def replies_to_writers(self) -> bool:
        """Whether writers of this connection handle refusals. If not, the connection is closed."""
        return self._version >= REPLIES_TO_WRITERS_FROM

    def admits(self, command: Any) -> bool:
        """Whether a command may be handled. If not, the reply has been sent.

        Raises:
            WireFormatError: the command is not a request.
        """
        kind = type(command)
        access = REQUIRED_ACCESS.get(kind)
        if access is None:
            if kind not in _WITHOUT_TOKEN:
                raise wire.WireFormatError(f"a {kind.__name__} is not a request")
            if kind is wire.Hello:
                self._version = command.high_version
            return True
        if self._is_last(command.delegation_token, getattr(command, "segment", None), access):
            self._refused_in_a_row = 0
            return True
        access, segments = required_access(command)
        return self._check(kind, command.request_id, command.delegation_token, segments, access)

    def admits_table_command(self, type_code: int, fields: wire.TablePrefix | wire.TableChanges) -> bool:
        """As `admits`, for a table command of which only the first fields were read."""
        kind = _TABLE_COMMANDS[type_code]
        access = REQUIRED_ACCESS[kind]
        if self._is_last(fields.delegation_token, fields.segment, access):
            self._refused_in_a_row = 0
            return True
        return self._check(kind, fields.request_id, fields.delegation_token, (fields.segment,), access)

    def hold(self, token: str, end: Callable[[], None]) -> TokenHold:
        """Call `end` once when a checked token is at its end or its key is revoked."""
        return self._checks.hold(token, end)

    def release(self, hold: TokenHold) -> None:
        """Forget a hold, if it has not ended yet."""
        self._checks.release(hold)

    def _is_last(self, token: str, segment: str | None, access: Access) -> bool:
        """Whether the last check admitted the same token for the same segment, with this level or a higher one."""
        return (
            segment == self._segment
            and token == self._token
            and access <= self._access
            and self._generation == self._checks.generation
            and self._checks.now_s < self._valid_until_s
        )

    def _check(self, kind: type[wire.WireCommand], request_id: int, token: str, segments: Any, access: Access) -> bool:
        segment = segments[0]
        try:
            claims = self._checks.claims(token)
            for segment in segments:
                if not allows(claims.grants, segment, access):
                    raise UnauthorizedError(
                        f"the delegation token of {claims.subject!r} does not include {access.name}",
                        code=TOKEN_INVALID,
                    )
        except UnauthorizedError as error:
            self._checks.note_refusal(self._replies.peer, kind.__name__, segment, error)
            self._refuse(kind, request_id, segment, error)
            self._refused_in_a_row += 1
            if self._refused_in_a_row > REFUSED_TOKENS_MAX:
                self._replies.close()
            return False
        self.has_admitted = True
        self._refused_in_a_row = 0
        if len(segments) == 1:
            self._token, self._segment, self._access = token, segment, access
            self._valid_until_s, self._generation = self._checks.valid_until_s(claims), self._checks.generation
        return True

    def _refuse(self, kind: type[wire.WireCommand], request_id: int, segment: str, error: UnauthorizedError) -> None:
        reply = wire.reply_of_error(error, wire.Refused(request_id, segment))
        if kind is not wire.SetupAppend or self.replies_to_writers:
            self._replies.send(reply)
            return
        self._replies.send(wire.AuthTokenCheckFailed(request_id, "", wire.TOKEN_CHECK_FAILED))
        self._replies.close()
