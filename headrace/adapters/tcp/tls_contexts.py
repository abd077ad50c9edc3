"""Contexts of a segment store: for clients, and for other stores at both ends of a link.

A context never changes. When a store has a new certificate, it makes new contexts, which the next handshakes use, and
open connections keep theirs. So a certificate that cannot be used leaves the former one as it was.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from headrace.adapters.tcp.tls_engine import TlsEngine
from headrace.certificate_names import is_store_label
from headrace.codec.certificates import LeafSecret, TrustBundle
from headrace.model.errors import CorruptError
from headrace.wire.tls import client_context, restrict


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
