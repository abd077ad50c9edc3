"""The certificate of this process and its key, wherever a deployment keeps them."""

from __future__ import annotations

from typing import Protocol

from headrace.codec.certificates import LeafSecret


class LeafSecretSource(Protocol):
    """Reads a certificate with its key. A call may take seconds, so an event loop makes it in a thread."""

    def read(self) -> LeafSecret:
        """Read it again.

        Raises:
            CorruptError: the text is not that of a certificate with its key.
            IllegalStateError: it cannot be read, or others may read it.
            UnavailableError: the service that has it does not answer, or refuses.
        """
        ...
