"""One run over the certificates of a deployment: publish the authorities, then issue what is due.

A run may end after any step, and two may overlap. The bundle is written before a certificate that needs it, under a
condition. Two runs that issue for one name both store a valid certificate, and the later one stays. So the next run
continues with what it finds, and nothing must be undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.certificate_names import certified_names, is_store_label
from headrace.certificates.profile import (
    authority_certificate,
    end_s,
    issue_leaf,
    key_id,
    key_id_of,
    load_certificate,
    made_at_s,
    pem,
    why_unfit,
)
from headrace.codec.certificates import TrustBundle, leaf_secret_text, parse_leaf_secret
from headrace.metadata.trust import find_trust, write_trust
from headrace.model.certificate_authorities import CertificateAuthority, must_renew, plan_authorities
from headrace.model.errors import ConflictError, CorruptError, HeadraceError, InvalidRequestError
from headrace.ports.certificate_secrets import CertificateSecrets
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, WriteConflictError

PUBLISH_ATTEMPTS_MAX: Final = 5
"""Each failure means that another run has just written the bundle."""


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What a run did. `issued` are labels with the reason; `failed` are labels with the error."""

    issued: Mapping[str, str]
    failed: Mapping[str, HeadraceError]
    authority_ends_soon: bool
    """An operator must declare the key of another authority."""


@dataclass(frozen=True, slots=True)
class _Authorities:
    issuer: x509.Certificate
    issuer_key: ec.EllipticCurvePrivateKey
    trusted: tuple[x509.Certificate, ...]
    ends_soon: bool


class CertificateUpkeep:
    """Runs over the authorities with `keys`, which are declared from the oldest to the newest."""

    def __init__(
        self,
        store: MetadataStore,
        secrets: CertificateSecrets,
        keys: Sequence[ec.EllipticCurvePrivateKey],
        clock: Clock,
        external_domain: str = "",
    ) -> None:
        """With `external_domain` each certificate also has the name in that domain.

        Raises:
            InvalidRequestError: there is no key.
        """
        if not keys:
            raise InvalidRequestError("certificates need at least one signing key of an authority")
        self._store = store
        self._secrets = secrets
        self._keys = keys
        self._clock = clock
        self._external_domain = external_domain

    def run(self, labels: Sequence[str]) -> UpkeepReport:
        """Publish the bundle, and issue a certificate for each label that is due. A label that fails stops no other.

        Raises:
            ConflictError: other runs wrote the bundle again and again; repeat the run.
            HeadraceError: the bundle cannot be read or written, or a signing key cannot be read.
        """
        authorities = self._publish()
        issued: dict[str, str] = {}
        failed: dict[str, HeadraceError] = {}
        for label in labels:
            try:
                if (reason := self._why_due(label, authorities)) is not None:
                    self._issue(label, authorities)
                    issued[label] = reason
            except HeadraceError as error:
                failed[label] = error
        return UpkeepReport(issued, failed, authorities.ends_soon)

    def _publish(self) -> _Authorities:
        keys = {key_id(key.public_key()): key for key in self._keys}
        for _ in range(PUBLISH_ATTEMPTS_MAX):
            stored = find_trust(self._store)
            published = {} if stored is None else _by_key(stored.bundle)
            now_s = self._now_s()
            plan = plan_authorities(map(_authority, published.values()), list(keys), now_s)
            certificates = published | {name: authority_certificate(keys[name], now_s) for name in plan.missing}
            trusted = tuple(certificates[each.key] for each in plan.trusted)
            bundle = TrustBundle(tuple(map(pem, trusted)))
            try:
                if stored is None or bundle != stored.bundle:
                    self._store.write(write_trust(bundle, None if stored is None else stored.version))
            except WriteConflictError:
                continue
            issuer = plan.issuer.key
            return _Authorities(certificates[issuer], keys[issuer], trusted, plan.ends_soon(now_s))
        raise ConflictError("other runs wrote the trust bundle at the same time: repeat this one")

    def _why_due(self, label: str, authorities: _Authorities) -> str | None:
        text = self._secrets.read(label)
        try:
            secret = parse_leaf_secret(text)
            if must_renew(end_s(load_certificate(secret.certificate)), self._now_s()):
                return "it ends soon"
            names = certified_names(label, self._external_domain)
            return why_unfit(secret, names, authorities.trusted, is_client=is_store_label(label))
        except CorruptError:
            return "there is none yet"

    def _issue(self, label: str, authorities: _Authorities) -> None:
        secret = issue_leaf(
            authorities.issuer,
            authorities.issuer_key,
            certified_names(label, self._external_domain),
            self._now_s(),
            is_client=is_store_label(label),
        )
        self._secrets.write(label, leaf_secret_text(secret))

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1_000


def _by_key(bundle: TrustBundle) -> dict[str, x509.Certificate]:
    certificates = map(load_certificate, bundle.certificates)
    return {key_id_of(each): each for each in certificates}


def _authority(certificate: x509.Certificate) -> CertificateAuthority:
    return CertificateAuthority(key_id_of(certificate), made_at_s(certificate), end_s(certificate))
