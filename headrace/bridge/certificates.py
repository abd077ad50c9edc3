"""The certificate that the bridge shows, which is loaded as that of a store.

Open connections keep the certificate that they have seen.
"""

from __future__ import annotations

from typing import Any

import grpc

from headrace.adapters.tcp.tls_contexts import CertificateReloads
from headrace.codec.certificates import LeafSecret
from headrace.ports.certificate_secrets import LeafSecretSource
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore


class ServerCertificate:
    """The certificate of a server with the DNS name `name`. `refresh` blocks; all else is for the event loop."""

    def __init__(self, source: LeafSecretSource, store: MetadataStore, name: str, clock: Clock) -> None:
        self._reloads = CertificateReloads(source, store, name, clock, self._loaded)
        self._secret: LeafSecret | None = None
        self._configuration: Any = None
        self._is_new = False

    async def start(self) -> grpc.ServerCredentials:
        """Load the certificate, begin to load it again and again, and return the credentials of the server.

        Raises:
            HeadraceError: the certificate or the trust bundle cannot be read, or clients would refuse it.
        """
        await self._reloads.start()
        self._is_new = False
        return grpc.dynamic_ssl_server_credentials(self._configuration, self._changed)

    async def stop(self) -> None:
        await self._reloads.stop()

    def refresh(self) -> None:
        """Load the certificate, and use it from the next handshake on. Raises as `start`; that of before stays."""
        self._reloads.load()

    def _loaded(self, secret: LeafSecret) -> None:
        if secret != self._secret:
            pair = (secret.key.encode("ascii"), secret.certificate.encode("ascii"))
            self._configuration = grpc.ssl_server_certificate_configuration([pair])
            self._secret, self._is_new = secret, True

    def _changed(self) -> Any:
        """The certificate if it has changed since the last call, else None. gRPC's threads ask at each handshake."""
        is_new, self._is_new = self._is_new, False
        return self._configuration if is_new else None
