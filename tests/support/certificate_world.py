"""A deployment's certificates in memory: secrets by label, keys of authorities, and calls that fail on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.certificates.profile import load_certificate
from headrace.certificates.upkeep import CertificateUpkeep
from headrace.codec.certificates import LeafSecret, TrustBundle, parse_leaf_secret
from headrace.metadata.trust import find_trust
from headrace.model.errors import IllegalStateError

LABELS = ("store-0", "store-1", "controller")
UNUSED = '{"unused": "random"}'
"""What CloudFormation generates."""


class Interrupted(BaseException):
    """The function ends here, without a word."""


class SecretTexts:
    """`CertificateSecrets` in memory. `before` is called with each call before it has an effect."""

    def __init__(self) -> None:
        self.texts = dict.fromkeys(LABELS, UNUSED)
        self.writes: list[str] = []
        self.refused: set[str] = set()
        self.before: Callable[[str], None] = lambda _: None

    def read(self, label: str) -> str:
        self.before("read")
        self._check(label)
        return self.texts[label]

    def write(self, label: str, text: str) -> None:
        self.before("write")
        self._check(label)
        self.texts[label] = text
        self.writes.append(label)

    def _check(self, label: str) -> None:
        if label in self.refused:
            raise IllegalStateError(f"the secret of {label} is refused")


class Key(ec.EllipticCurvePrivateKey):
    """A key on this machine whose calls can be interrupted, as those of KMS."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._before = before

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        self._before("sign")
        return self._key.sign(data, signature_algorithm)

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._key.public_key()

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._key.curve

    @property
    def key_size(self) -> int:
        return self._key.key_size

    def exchange(self, algorithm: ec.ECDH, peer_public_key: ec.EllipticCurvePublicKey) -> bytes:
        return self._key.exchange(algorithm, peer_public_key)

    def private_numbers(self) -> ec.EllipticCurvePrivateNumbers:
        return self._key.private_numbers()

    def private_bytes(
        self,
        encoding: serialization.Encoding,
        format: serialization.PrivateFormat,  # noqa: A002 - as the base class has it
        encryption_algorithm: serialization.KeySerializationEncryption,
    ) -> bytes:
        return self._key.private_bytes(encoding, format, encryption_algorithm)

    def __copy__(self) -> Key:
        return self

    def __deepcopy__(self, memo: dict[Any, Any]) -> Key:
        return self


class CertificateWorld:
    """The record, the secrets and the keys. `before` is called with the name of each step before it has an effect."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryMetadataStore()
        self.secrets = SecretTexts()
        self.before: Callable[[str], None] = lambda _: None
        self.secrets.before = lambda step: self.before(step)
        self.keys = [self.new_key()]

    def new_key(self) -> Key:
        return Key(lambda step: self.before(step))

    def upkeep(self) -> CertificateUpkeep:
        return CertificateUpkeep(self.store, self.secrets, self.keys, self.clock)

    def advance(self, days: float) -> None:
        self.clock.advance(int(days * 86_400_000))

    @property
    def bundle(self) -> TrustBundle:
        trust = find_trust(self.store)
        assert trust is not None
        return trust.bundle

    def secret(self, label: str) -> LeafSecret:
        return parse_leaf_secret(self.secrets.texts[label])

    def is_trusted(self, label: str) -> bool:
        """Whether the certificate of a label is valid now, and issued by an authority of the bundle."""
        leaf = load_certificate(self.secret(label).certificate)
        now_s = self.clock.now_ms() / 1_000
        if not leaf.not_valid_before_utc.timestamp() <= now_s <= leaf.not_valid_after_utc.timestamp():
            return False
        for text in self.bundle.certificates:
            authority = load_certificate(text)
            if authority.subject == leaf.issuer:
                leaf.verify_directly_issued_by(authority)
                return True
        return False
