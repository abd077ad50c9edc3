"""The keys that sign and verify delegation tokens, wherever a deployment keeps them."""

from __future__ import annotations

from typing import Protocol

from headrace.codec.delegation_tokens import TokenKeys


class TokenKeySource(Protocol):
    """The current keys. Safe for many threads."""

    def keys(self) -> TokenKeys:
        """Return the keys, which are cached.

        A call in some minutes looks whether they have changed. That one may take seconds, so an event loop makes it in
        a thread. Keys that were read once stay in use while new ones cannot be read.

        Raises:
            CorruptError: no keys were read yet, and the text is not that of token keys.
            IllegalStateError: no keys were read yet, and they cannot be read.
            UnavailableError: no keys were read yet, and the service that has them does not answer.
        """
        ...
