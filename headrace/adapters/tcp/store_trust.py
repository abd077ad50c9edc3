"""The authorities that parts of the deployment trust when they call segment stores: those in the metadata store.

Safe for any number of threads.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from headrace.codec.certificates import TrustBundle
from headrace.metadata.trust import find_trust
from headrace.model.errors import UnavailableError
from headrace.model.log_limits import LogLimit
from headrace.ports.metadata_store import MetadataStore
from headrace.wire.tls import client_context

_log = logging.getLogger(__name__)

REREAD_AFTER_S: Final = 30.0


class StoreTrust:
    """Reads the authorities at the first use, and again when a certificate was refused."""

    def __init__(self, store: MetadataStore, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._bundle: TrustBundle | None = None
        self._context: ssl.SSLContext | None = None
        self._read_s = float("-inf")
        self._refusals_logged = LogLimit()

    def context(self) -> ssl.SSLContext:
        """Raises UnavailableError if the deployment has published no authority yet."""
        with self._lock:
            return self._context or self._load()

    def renewed(self, used: ssl.SSLContext, problem: UnavailableError) -> ssl.SSLContext | None:
        """Another context than the one with which a certificate was refused; None if there is none now."""
        with self._lock:
            now_s = self._monotonic_s()
            if self._refusals_logged.allows(now_s):
                _log.warning("event=store_not_trusted error=%r", problem.message)
            if self._context is used and now_s - self._read_s >= REREAD_AFTER_S:
                self._load()
            return None if self._context is used else self._context

    def _load(self) -> ssl.SSLContext:
        self._read_s = self._monotonic_s()
        stored = find_trust(self._store)
        if stored is None:
            raise UnavailableError(
                "the segment stores use TLS, but the deployment has published no authority yet: the function "
                "`certificates` does that; retry"
            )
        if self._context is None or stored.bundle != self._bundle:
            self._context, self._bundle = client_context(stored.bundle.pem), stored.bundle
        return self._context
