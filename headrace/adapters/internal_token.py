"""The delegation token of a part of the deployment, which calls segment stores and is allowed everything."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.codec.delegation_tokens import TokenClaims, encode_token
from headrace.model.access import EVERYTHING, Access
from headrace.ports.clock import Clock
from headrace.ports.token_keys import TokenKeySource


class InternalToken:
    """Mints the token in this process, and another one when less than a fifth of its time is left.

    `subject` names the caller in the logs of stores. The token is kept in memory only. Safe for many threads.
    """

    def __init__(self, keys: TokenKeySource, clock: Clock, life_s: int, subject: str) -> None:
        self._keys = keys
        self._clock = clock
        self._life_s = life_s
        self._caller = subject
        self._minted = _Minted("", "", 0, 0)

    def token(self) -> str:
        """Return a token that is valid for at least a fifth of its time.

        Raises:
            IllegalStateError, UnavailableError, CorruptError: the keys were never read, and cannot be read now.
        """
        minted, keys, now_s = self._minted, self._keys.keys(), self._clock.now_ms() / 1_000
        # Not before its time either: a clock that was set back must not make a token live longer.
        is_fresh = minted.issued_s - 1 <= now_s < minted.renewed_from_s
        # With its key a token is revoked at once, and the parts of a deployment must not wait for its end.
        if is_fresh and keys.verifying_key(minted.key_id, now_s) is not None:
            return minted.token
        issued_s, key = int(now_s), keys.signing_key(now_s)
        claims = TokenClaims(self._caller, issued_s, issued_s + self._life_s, {EVERYTHING: Access.ADMIN})
        # One assignment: other threads see the old token or this one.
        self._minted = _Minted(encode_token(claims, key), key.key_id, issued_s, issued_s + 0.8 * self._life_s)
        return self._minted.token


@dataclass(frozen=True, slots=True)
class _Minted:
    token: str = field(repr=False)
    key_id: str
    issued_s: int
    renewed_from_s: float
