"""The delegation tokens of a random client program: issued by its controller, checked by its stores."""

from __future__ import annotations

from typing import Final

from fuzz.client_patches import now_s
from fuzz.randomness import Random
from headrace import wire

_LIFETIMES_S: Final = (20.0, 60.0, 600.0)


class TokenBook:
    """The tokens that are valid. Without `are_wanted` each request is allowed."""

    def __init__(self, random: Random, *, are_wanted: bool) -> None:
        self.are_wanted = are_wanted
        self._random = random
        self._ends_s: dict[str, float] = {}
        self._issued = 0

    def issue(self) -> tuple[str, int]:
        """Return a new token with its end in milliseconds."""
        self._issued += 1
        token = f"token-{self._issued}" if self.are_wanted else ""
        ends_s = now_s() + self._random.choice(_LIFETIMES_S)
        self._ends_s[token] = ends_s
        return token, int(ends_s * 1000)

    def revoke_all(self) -> None:
        """Make all tokens invalid that are in use, as when a key is revoked."""
        self._ends_s.clear()

    def problem(self, token: str) -> int | None:
        """Return the error code with which a store refuses a token; None if it is valid."""
        if not self.are_wanted or self._ends_s.get(token, 0.0) > now_s():
            return None
        return wire.TOKEN_EXPIRED if token else wire.TOKEN_CHECK_FAILED
