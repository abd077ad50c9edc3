"""The certificate of a store process, and what its ports and links do with it."""

from __future__ import annotations

from headrace.adapters.leaf_secrets import TlsSettings
from headrace.adapters.tcp.arrivals import ServerTls
from headrace.adapters.tcp.replica_links import LinkTls
from headrace.adapters.tcp.tls_contexts import CertificateReloads, StoreContexts
from headrace.model.tls_modes import is_store_name
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore


class TlsUpkeep:
    """The contexts of new connections. Without TLS there are none."""

    def __init__(self, settings: TlsSettings, metadata_store: MetadataStore, clock: Clock) -> None:
        self.settings = settings
        source = settings.source if settings.mode.accepts_tls else None
        self._reloads = None if source is None else CertificateReloads(source, metadata_store, settings.name, clock)

    @property
    def contexts(self) -> StoreContexts | None:
        """None if TLS is off, or the certificate could not be loaded yet."""
        return None if self._reloads is None else self._reloads.contexts

    @property
    def reload_failures(self) -> int:
        """Counts attempts that left the former certificate in use."""
        return 0 if self._reloads is None else self._reloads.failures

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

    async def start(self) -> None:
        """Load the certificate, and keep it fresh until `stop`. Does nothing if TLS is off.

        Raises:
            CorruptError, IllegalStateError, UnavailableError, ThrottledError: TLS is required, and the certificate or
                the authorities cannot be loaded.
        """
        if self._reloads is not None:
            await self._reloads.start(is_required=not self.settings.mode.accepts_plaintext)

    async def stop(self) -> None:
        if self._reloads is not None:
            await self._reloads.stop()
