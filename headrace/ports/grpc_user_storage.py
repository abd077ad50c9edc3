"""Where the text with the users of the gRPC bridge is kept."""

from __future__ import annotations

from typing import Final, Protocol

NOT_ALLOWED: Final = "users_not_allowed"
"""The code of the IllegalStateError when access is denied. Secrets Manager denies it to a role that may read one secret
only, also when this secret does not exist."""


class GrpcUserStorage(Protocol):
    """One text, which is replaced as a whole. The bridge reads it, an operator's command changes it."""

    def read(self) -> str:
        """Return the text.

        Raises:
            NotFoundError: nothing is stored yet.
            IllegalStateError: it cannot be read; an operator must act.
            UnavailableError: the service that has it does not answer.
        """
        ...

    def write(self, text: str) -> None:
        """Replace the text that was read or written last, or store the first one.

        Raises:
            ConflictError: another writer has changed it since then.
            HeadraceError: as `read`.
        """
        ...
