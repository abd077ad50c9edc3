"""Where certificates and their keys are kept: the secret of each name, and the certificate of this process."""

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


class CertificateSecrets(Protocol):
    """One text for each label, such as `store-0`. The function that issues certificates replaces it as a whole."""

    def read(self, label: str) -> str:
        """Return the text, which may be one from before the first certificate.

        Raises:
            IllegalStateError: it cannot be read; an operator must act.
            UnavailableError, ThrottledError: the service that has it does not answer.
        """
        ...

    def write(self, label: str, text: str) -> None:
        """Replace the text. Raises as `read`."""
        ...
