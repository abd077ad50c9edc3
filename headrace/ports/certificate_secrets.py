"""Where the secret of each name is kept: the certificate and key of the process that serves the name."""

from __future__ import annotations

from typing import Protocol


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
