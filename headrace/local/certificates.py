"""Certificates of the local stack: an authority whose key is never written, and a file for each store and the bridge.

Each start of a stack makes another authority, publishes it, and issues the certificates. They are valid for two weeks,
so a stack that runs on issues them again each day.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.adapters.leaf_secrets import FILE, MODE, NAME, SECRET
from headrace.certificate_names import (
    BRIDGE_LABEL,
    certified_names,
    dns_name,
    external_name,
    is_store_label,
    store_label,
)
from headrace.codec.certificates import TrustBundle, leaf_secret_text
from headrace.metadata.trust import find_trust, write_trust
from headrace.model.certificate_authorities import LEAF_LIFE_S
from headrace.model.tls_modes import TlsMode
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore
from headrace.wire.tls import StoreTls, client_context

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

FILE_NAME: Final = "certificate.json"
RENEW_EVERY_S: Final = 24 * 3_600.0

EXTERNAL_DOMAIN: Final = "external.headrace.internal"
"""Stores have names in it for clients with the network `external`."""
LOCAL_NAME: Final = "localhost"
"""What Pravega's clients connect to. The names in the zone of a deployment are not in the DNS of this machine."""

OFF: Final = {MODE: TlsMode.OFF.value, FILE: "", SECRET: "", NAME: "", "HEADRACE_EXTERNAL_NAME": ""}
"""The variables of a process without TLS. They replace those of the user's shell."""


@dataclass(frozen=True, slots=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The certificate of a store or the bridge, which is issued into `file`."""

    label: str
    file: Path

    def environment(self, mode: TlsMode) -> dict[str, str]:
        """The variables of the process that has this certificate."""
        return {MODE: mode.value, FILE: str(self.file.resolve()), SECRET: "", NAME: dns_name(self.label)}


class LocalCertificates:
    """The certificates of the stores whose data are in `directories`, in their order, and of the bridge.

    A thread renews them.
    """

    def __init__(self, directories: Sequence[Path], bridge_directory: Path, clock: Clock) -> None:
        """`bridge_directory` is where the bridge's certificate goes."""
        self._bridge = _Leaf(BRIDGE_LABEL, bridge_directory / FILE_NAME)
        self._stores = [_Leaf(store_label(index), directory / FILE_NAME) for index, directory in enumerate(directories)]
        self._clock = clock
        self._authority = self._make_authority()
        self._bundle = _bundle(self._authority)
        self._stopping = threading.Event()
        self._renewals = threading.Thread(target=self._renew, name="renew-certificates", daemon=True)

    def start(self, store: MetadataStore) -> None:
        """Publish the authority, write the files, and renew them until `stop`."""
        stored = find_trust(store)
        store.write(write_trust(self._bundle, None if stored is None else stored.version))
        self.issue()
        self._renewals.start()

    def stop(self) -> None:
        self._stopping.set()
        self._renewals.join()

    def issue(self, life_s: int = LEAF_LIFE_S) -> None:
        """Write each file, with a certificate that ends after `life_s`. A reader never sees a part of it."""
        from headrace.certificates.profile import issue_leaf

        now_s = self._clock.now_ms() // 1_000 + life_s - LEAF_LIFE_S
        for leaf in (*self._stores, self._bridge):
            authority, names = self._authority, (*certified_names(leaf.label, EXTERNAL_DOMAIN), LOCAL_NAME)
            secret = issue_leaf(
                authority.certificate, authority.key, names, now_s, is_client=is_store_label(leaf.label)
            )
            leaf.file.parent.mkdir(parents=True, exist_ok=True)
            fresh = leaf.file.with_name(f"{leaf.file.name}.new")
            fresh.unlink(missing_ok=True)
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(file, "w") as opened:
                opened.write(leaf_secret_text(secret))
            fresh.replace(leaf.file)

    def environment(self, index: int, mode: TlsMode) -> dict[str, str]:
        """The variables of one store."""
        return self._stores[index].environment(mode)

    @property
    def bridge_environment(self) -> dict[str, str]:
        """The variables of the bridge."""
        return self._bridge.environment(TlsMode.REQUIRED)

    def tls_to(self, index: int) -> StoreTls:
        """How the stack itself connects to a store."""
        return StoreTls(client_context(self._bundle.pem), dns_name(store_label(index)))

    def _renew(self) -> None:
        while not self._stopping.wait(RENEW_EVERY_S):
            self.issue()

    def _make_authority(self) -> _Authority:
        from cryptography.hazmat.primitives.asymmetric import ec

        from headrace.certificates.profile import authority_certificate

        key = ec.generate_private_key(ec.SECP256R1())
        return _Authority(key, authority_certificate(key, self._clock.now_ms() // 1_000))


def external_environment(index: int, port: int) -> dict[str, str]:
    """The variables with which a store announces a port of loopback to clients with the network `external`."""
    return {
        "HEADRACE_EXTERNAL_NAME": external_name(store_label(index), EXTERNAL_DOMAIN),
        "HEADRACE_EXTERNAL_PORTS": str(port),
        "HEADRACE_EXTERNAL_HOST": "127.0.0.1",
    }


def _bundle(authority: _Authority) -> TrustBundle:
    from headrace.certificates.profile import pem

    return TrustBundle((pem(authority.certificate),))
