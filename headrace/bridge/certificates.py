"""The certificate that the bridge shows, which it reads again each hour. Open connections keep the one they have seen.

A certificate is used only if clients would accept it: its key fits, it has the name of the bridge, it has not ended,
and an authority of the trust bundle has issued it. One that fails leaves the former in use, which has days left.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from headrace.adapters.tcp.tls_contexts import store_contexts
from headrace.codec.certificates import LeafSecret
from headrace.metadata.trust import find_trust
from headrace.model.errors import HeadraceError, IllegalStateError
from headrace.ports.certificate_secrets import LeafSecretSource
from headrace.ports.metadata_store import MetadataStore

REFRESH_S: Final = 3_600.0
JITTER: Final = 0.1
"""So that the tasks of a service do not all read at once."""

_log = logging.getLogger(__name__)


class ServerCertificate:
    """The certificate of a server with the DNS name `name`. `refresh` blocks; all else is for the event loop."""

    def __init__(
        self,
        source: LeafSecretSource,
        store: MetadataStore,
        name: str,
        refresh_s: float = REFRESH_S,
        run: Callable[..., Awaitable[None]] = asyncio.to_thread,
    ) -> None:
        """`run` calls a blocking function in a thread."""
        self._source = source
        self._store = store
        self._name = name
        self._refresh_s = refresh_s
        self._run = run
        self._secret: LeafSecret | None = None
        self._configuration: Any = None
        self._is_new = False
        self._expires_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> grpc.ServerCredentials:
        """Read the certificate, begin to read it again each hour, and return the credentials of the server.

        Raises:
            HeadraceError: the certificate or the trust bundle cannot be read, or clients would refuse it.
        """
        await self._run(self.refresh)
        self._task = asyncio.create_task(self._refresh_repeatedly())
        self._is_new = False
        return grpc.dynamic_ssl_server_credentials(self._configuration, self._changed)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def refresh(self) -> None:
        """Read the certificate, and use it from the next handshake on. Raises as `start`; that of before stays."""
        secret, trust = self._source.read(), find_trust(self._store)
        if trust is None:
            raise IllegalStateError("this deployment has published no certification authority yet")
        self._expires_s = store_contexts(secret, trust.bundle, self._name).expires_s
        if secret != self._secret:
            pair = (secret.key.encode("ascii"), secret.certificate.encode("ascii"))
            self._configuration = grpc.ssl_server_certificate_configuration([pair])
            self._secret, self._is_new = secret, True
            _log.info("event=certificate_loaded name=%s expires_s=%d", self._name, self._expires_s)

    def _changed(self) -> Any:
        """The certificate if it has changed since the last call, else None. gRPC's threads ask at each handshake."""
        is_new, self._is_new = self._is_new, False
        return self._configuration if is_new else None

    async def _refresh_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s * random.uniform(1 - JITTER, 1 + JITTER))
            try:
                await self._run(self.refresh)
            except HeadraceError as error:
                _log.error("event=certificate_not_loaded expires_s=%d error=%r", self._expires_s, error.message)
            except Exception as error:  # noqa: BLE001 - a defect in one attempt must not end the later ones
                # Without its text: this error was not made to be logged, and a key may be part of it.
                _log.error("event=certificate_not_loaded expires_s=%d error=%r", self._expires_s, type(error).__name__)
