"""The certificate of a store process: it is loaded at the start, and again about every hour.

It is loaded each minute while less than a day is left: a new one should have come nine days before. A store that waited
an hour for it would be refused by clients and other stores meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from headrace.adapters.leaf_secrets import TlsSettings
from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.replica_links import LinkTls
from headrace.adapters.tcp.tls_contexts import StoreContexts, store_contexts
from headrace.metadata.trust import find_trust
from headrace.model.errors import HeadraceError, IllegalStateError
from headrace.model.tls_modes import is_store_name
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.periodic_task import PeriodicTask, Rest

_log = logging.getLogger(__name__)

RELOAD_EVERY_S: Final = 3_600.0
RELOAD_SPREAD: Final = 0.1
"""Stores that were started together do not ask Secrets Manager together."""
RETRY_S: Final = 60.0
"""After a failure, and while the certificate ends within `URGENT_BELOW_S`."""
URGENT_BELOW_S: Final = 24 * 3_600.0


class TlsUpkeep:
    """The contexts of new connections. `reload_failures` counts attempts that left the former certificate in use."""

    def __init__(self, settings: TlsSettings, metadata_store: MetadataStore, clock: Clock) -> None:
        self.settings = settings
        self.contexts: StoreContexts | None = None
        """None if TLS is off, or the certificate could not be loaded yet."""
        self.reload_failures = 0
        self._metadata_store = metadata_store
        self._clock = clock
        self._reloads = PeriodicTask(self._reload, self._reload_failed, retry_first_s=RETRY_S)

    @property
    def clients(self) -> ServerTls:
        """For the port of clients."""
        return ServerTls(self.settings.mode, lambda: None if self.contexts is None else self.contexts.server)

    @property
    def stores(self) -> ServerTls:
        """For the port of other stores. Each shows the certificate of a store, and no other one is accepted."""
        own = self.settings.name
        return ServerTls(
            self.settings.mode,
            lambda: None if self.contexts is None else self.contexts.link_server,
            lambda names: any(is_store_name(name, own) for name in names),
        )

    @property
    def links(self) -> LinkTls:
        """For links to other stores."""
        return LinkTls(self.settings.mode, lambda: None if self.contexts is None else self.contexts.link_client)

    @property
    def announced_name(self) -> str:
        """The name that clients and other stores are told. Without a certificate they are told none, and use no TLS."""
        return self.settings.name if self.contexts is not None else ""

    @property
    def ends_soon(self) -> bool:
        """Whether the certificate in use has ended, or ends within a day."""
        if self.contexts is None:
            return False
        return self.contexts.expires_s - self._clock.now_ms() / 1_000 < URGENT_BELOW_S

    async def start(self) -> None:
        """Load the certificate, and keep it fresh until `stop`. Does nothing if TLS is off.

        Raises:
            CorruptError, IllegalStateError, UnavailableError, ThrottledError: TLS is required, and the certificate or
                the authorities cannot be loaded.
        """
        if not self.settings.mode.accepts_tls:
            return
        try:
            await self._load()
        except HeadraceError as error:
            if not self.settings.mode.accepts_plaintext:
                raise
            self._report(error)
            self._reloads.start(Rest.fixed(RETRY_S))
        else:
            self._reloads.start(self._rest())

    async def stop(self) -> None:
        await self._reloads.stop()

    async def _reload(self) -> Rest:
        await self._load()
        return self._rest()

    def _rest(self) -> Rest:
        every_s = RETRY_S if self.ends_soon else RELOAD_EVERY_S
        return Rest.fixed(every_s * random.uniform(1 - RELOAD_SPREAD, 1 + RELOAD_SPREAD))

    def _reload_failed(self, error: Exception, retry_s: float) -> bool:
        self.reload_failures += 1
        if isinstance(error, HeadraceError):
            self._report(error)
        else:
            _log.error("event=certificate_not_loaded error=%r", type(error).__name__)
        return True

    def _report(self, error: HeadraceError) -> None:
        expires_s = self.contexts.expires_s if self.contexts is not None else 0
        _log.error("event=certificate_not_loaded expires_s=%d error=%r", expires_s, error.message)

    async def _load(self) -> None:
        self.contexts = contexts = await asyncio.to_thread(self._read)
        _log.info("event=certificate_loaded name=%s expires_s=%d", self.settings.name, contexts.expires_s)

    def _read(self) -> StoreContexts:
        source = self.settings.source
        assert source is not None, "settings with a mode other than off have one"
        stored = find_trust(self._metadata_store)
        if stored is None:
            raise IllegalStateError(
                "the deployment has published no authority yet: the function `certificates` does that"
            )
        return store_contexts(source.read(), stored.bundle, self.settings.name)
