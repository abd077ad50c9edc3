"""Delegation tokens: what the controller allows a caller to do on the segment stores, for some minutes.

Issuing reads no metadata. So it costs no request, and a caller cannot find out with it what exists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.api.delegation_tokens import IssuedToken
from headrace.codec.delegation_tokens import TokenClaims, encode_token
from headrace.model.access import Access
from headrace.model.errors import IllegalStateError, UnavailableError
from headrace.ports.clock import Clock
from headrace.ports.token_keys import TokenKeySource

__all__ = ["DelegationTokens", "IssuedToken"]

NO_TOKEN_KEY = "no_token_key"
"""The code of the UnavailableError when no key of the deployment signs."""

_CALLER_CHARACTERS_MAX = 200
"""With it, a token for two resources with the longest names is short enough for every store."""
_NOT_OF_A_CALLER = re.compile(r"[^A-Za-z0-9+=,.@_/:-]")
"""Names and ARNs of principals have no other characters."""


class DelegationTokens:
    """Signs tokens with the newest key that signs; safe for any number of threads.

    Tokens live for `life_s`. Without keys the deployment has no tokens, and callers get the empty one.
    """

    def __init__(self, keys: TokenKeySource | None, clock: Clock, life_s: int) -> None:
        self._keys = keys
        self._clock = clock
        self._life_s = life_s

    def issue(self, subject: str, grants: Mapping[str, Access]) -> IssuedToken:
        """A token with these grants, by resource (`model.access`), for the caller `subject`.

        Stores never decide by the caller. It is for their logs, so it is shortened, and without odd characters.

        Raises:
            IllegalStateError: the token would be longer than the stores accept, because of too many grants.
            UnavailableError: no key of the deployment signs now, with code `no_token_key`; or the keys cannot be read.
            CorruptError: the keys that were read are not token keys.
        """
        if self._keys is None:
            return IssuedToken("", 0)
        now_s = self._clock.now_ms() // 1_000
        keys = self._keys.keys()
        try:
            key = keys.signing_key(now_s)
        except IllegalStateError as error:
            # The deployment is at fault, not the request, and an operator can change that at any time.
            raise UnavailableError(error.message, code=NO_TOKEN_KEY) from error
        caller = subject
        name = _NOT_OF_A_CALLER.sub("_", caller[:_CALLER_CHARACTERS_MAX])
        claims = TokenClaims(name, now_s, now_s + self._life_s, grants)
        return IssuedToken(encode_token(claims, key), claims.expires_at_s * 1_000)
