"""`Trust` for programs without an event loop; thread-safe.

Generated from `trust.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

import ssl

from headrace.client.loop_thread import LoopCaller
from headrace.client.trust import AsyncTrust
from headrace.codec.certificates import TrustBundle
from headrace.model.errors import UnavailableError


class Trust:
    """The authorities that one client trusts. Programs need not use it: connections to the stores do."""

    def __init__(self, thread: LoopCaller, core: AsyncTrust) -> None:
        self._thread = thread
        self._core = core

    def authorities(self) -> TrustBundle:
        """Fetches the certificates of the authorities that the deployment publishes.

        Raises:
            IllegalStateError: it publishes none.
            CorruptError: what it publishes is not a list of certificates, or too many.
            UnauthorizedError: the credentials of this client may not ask for them.
        """
        return self._thread.run(self._core.authorities())

    def context(self) -> ssl.SSLContext:
        """Returns a context that trusts the authorities. Fetches them at the first call.

        Raises:
            InvalidRequestError: the file of `TlsOptions` cannot be used.
            HeadraceError: as `authorities`.
        """
        return self._thread.run(self._core.context())

    def renewed(self, used: ssl.SSLContext, problem: UnavailableError) -> ssl.SSLContext | None:
        """Returns another context than the one with which a certificate was refused; None if there is none now."""
        return self._thread.run(self._core.renewed(used, problem))

    def shipped(self) -> TrustBundle:
        """Returns the authorities for a client in another process, which passes them to `offer`."""
        return self._thread.run(self._core.shipped())

    def offer(self, bundle: TrustBundle) -> None:
        """Takes the authorities that `shipped` returned in another process, unless this client has some."""
        self._thread.run(self._core.offer(bundle))
