"""Contexts of a segment store: for clients, and for other stores at both ends of a link; and when they are renewed.

A context never changes. When a store has a new certificate, it makes new contexts, which the next handshakes use, and
open connections keep theirs. So a certificate that cannot be used leaves the former one as it was.

The bridge loads its certificate in the same way, and hands it to gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.adapters.tcp.tls_engine import TlsEngine
from headrace.certificate_names import is_store_label
from headrace.codec.certificates import LeafSecret, TrustBundle
from headrace.metadata.trust import find_trust
from headrace.model.errors import CorruptError, HeadraceError, IllegalStateError
from headrace.ports.certificate_secrets import LeafSecretSource
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from headrace.wire.tls import client_context, restrict

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreContexts:
    """`server` is for clients, the other two for links to other stores: each end shows its certificate there.

    `expires_s` is when the certificate ends, in seconds since the Unix epoch.
    """

    server: ssl.SSLContext = field(repr=False)
    link_server: ssl.SSLContext = field(repr=False)
    link_client: ssl.SSLContext = field(repr=False)
    expires_s: float


def store_contexts(secret: LeafSecret, bundle: TrustBundle, name: str) -> StoreContexts:
    """Contexts for the certificate of the store with this name.

    Raises:
        CorruptError: the certificate cannot be used: its key is another one or of a kind that no peer accepts, its name
            is not `name`, it has expired, no authority of the bundle has issued it, or it is that of a store and must
            not identify a client. The message has nothing of the key.
    """
    server, link_server = _server_context(secret), _server_context(secret)
    # A store has a certificate for both directions, and a peer without one is refused in the handshake.
    link_server.verify_mode = ssl.CERT_REQUIRED
    link_server.load_verify_locations(cadata=bundle.pem)
    link_client = client_context(bundle.pem)
    _load(link_client, secret)
    # Between stores both ends verify the certificate, so that its use by a client is checked, too.
    is_store = is_store_label(name.partition(".")[0])
    pair = (link_server, link_client) if is_store else (server, client_context(bundle.pem))
    return StoreContexts(server, link_server, link_client, _checked_end(*pair, name))


def _server_context(secret: LeafSecret) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    restrict(context)
    _load(context, secret)
    return context


def _load(context: ssl.SSLContext, secret: LeafSecret) -> None:
    with _in_memory(secret) as path:
        try:
            context.load_cert_chain(path)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise CorruptError(f"the certificate cannot be used with its key: {reason}") from None


@contextmanager
def _in_memory(secret: LeafSecret) -> Iterator[str]:
    """The path of a file with both. OpenSSL loads them from a file only, and the key must not get on a disk."""
    text = f"{secret.certificate.rstrip()}\n{secret.key.rstrip()}\n".encode("ascii")
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("headrace-certificate")
        try:
            os.write(file, text)
            yield f"/proc/self/fd/{file}"
        finally:
            os.close(file)
        return
    with tempfile.NamedTemporaryFile("wb") as named:  # macOS, which is for development
        named.write(text)
        named.flush()
        yield named.name


def _checked_end(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> float:
    """Shake hands in memory, as the processes will; return when the certificate ends, in seconds since the epoch."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = client.wrap_bio(incoming, outgoing, server_hostname=name)
    engine = TlsEngine(server)
    is_complete = False
    try:
        while not is_complete:
            with suppress(ssl.SSLWantReadError):
                peer.do_handshake()
            engine.feed(outgoing.read())
            is_complete = engine.shake_hands()
            incoming.write(engine.take_output())
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", "") or error.reason or type(error).__name__
        raise CorruptError(f"the certificate is not one that clients of {name} accept: {reason}") from None
    certificate = peer.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


# The certificate of a process: it is loaded at the start, and again about every hour.
#
# It is loaded each minute while less than a day is left: a new one should have come nine days before. A process that
# waited an hour for it would be refused by its peers meanwhile.

RELOAD_EVERY_S: Final = 3_600.0
RELOAD_SPREAD: Final = 0.1
"""Processes that were started together do not ask Secrets Manager together."""
RETRY_S: Final = 60.0
"""After a failure, and while the certificate ends within `URGENT_BELOW_S`."""
URGENT_BELOW_S: Final = 24 * 3_600.0


class CertificateReloads:
    """The certificate with the DNS name `name`. `failures` counts attempts that left the former one in use.

    Only a certificate that clients would accept is used (`store_contexts`).
    """

    def __init__(
        self,
        source: LeafSecretSource,
        metadata_store: MetadataStore,
        name: str,
        clock: Clock,
        on_loaded: Callable[[LeafSecret], None] = lambda secret: None,
    ) -> None:
        """`on_loaded` is called after each load, in the thread that loads."""
        self.contexts: StoreContexts | None = None
        """None: the certificate could not be loaded yet."""
        self.failures = 0
        self._source = source
        self._metadata_store = metadata_store
        self._name = name
        self._clock = clock
        self._on_loaded = on_loaded
        self._periodic = PeriodicTask(self._reload, self._reload_failed, retry_first_s=RETRY_S)

    @property
    def ends_soon(self) -> bool:
        """Whether the certificate in use has ended, or ends within a day."""
        if self.contexts is None:
            return False
        return self.contexts.expires_s - self._clock.now_ms() / 1_000 < URGENT_BELOW_S

    async def start(self, *, is_required: bool = True) -> None:
        """Load the certificate, and keep it fresh until `stop`. A failure is raised only if `is_required`.

        Raises:
            CorruptError, IllegalStateError, UnavailableError, ThrottledError: the certificate or the authorities cannot
                be loaded.
        """
        try:
            await asyncio.to_thread(self.load)
        except HeadraceError as error:
            if is_required:
                raise
            self._report(error)
            self._periodic.start(Rest.fixed(RETRY_S))
        else:
            self._periodic.start(self._rest())

    async def stop(self) -> None:
        await self._periodic.stop()

    def load(self) -> None:
        """Load the certificate, and use it from the next handshake on. Blocks. Raises as `start`."""
        stored = find_trust(self._metadata_store)
        if stored is None:
            raise IllegalStateError(
                "the deployment has published no authority yet: the function `certificates` does that"
            )
        secret = self._source.read()
        self.contexts = contexts = store_contexts(secret, stored.bundle, self._name)
        self._on_loaded(secret)
        _log.info("event=certificate_loaded name=%s expires_s=%d", self._name, contexts.expires_s)

    async def _reload(self) -> Rest:
        await asyncio.to_thread(self.load)
        return self._rest()

    def _rest(self) -> Rest:
        every_s = RETRY_S if self.ends_soon else RELOAD_EVERY_S
        return Rest.fixed(every_s * random.uniform(1 - RELOAD_SPREAD, 1 + RELOAD_SPREAD))

    def _reload_failed(self, error: Exception, retry_s: float) -> bool:
        self.failures += 1
        self._report(error)
        return True

    def _report(self, error: Exception) -> None:
        # Without the text of other errors: they were not made to be logged, and a key may be part of them.
        text = error.message if isinstance(error, HeadraceError) else type(error).__name__
        expires_s = self.contexts.expires_s if self.contexts is not None else 0
        _log.error("event=certificate_not_loaded expires_s=%d error=%r", expires_s, text)
