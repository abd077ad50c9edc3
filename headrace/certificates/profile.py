"""The profile of certificates: what Python's strict checks, OpenSSL, Java and Pravega's Rust client all accept.

Keys are on the curve P-256, signatures are ECDSA with SHA-256. An authority is `CA:TRUE, pathlen:0`. A leaf has a
critical list of DNS names, and no other name. Clients check nothing else that identifies its owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.codec.certificates import LeafSecret
from headrace.model.certificate_authorities import AUTHORITY_LIFE_S, BACKDATED_S, leaf_end_s
from headrace.model.errors import CorruptError, InvalidRequestError

NAMES_MAX: Final = 20
"""Of one certificate."""
_NAME_BYTES: Final = 4
"""Of the key's hash, in the name of an authority: chains are built by name, so no two authorities share one."""


def authority_certificate(key: ec.EllipticCurvePrivateKey, now_s: int) -> x509.Certificate:
    """A certificate of an authority, which the key itself signs. Raises what `key.sign` raises."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = f"Headrace {_time(now_s):%Y-%m-%d} {identifier.digest[:_NAME_BYTES].hex()}"
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        _certificate(key.public_key(), own, own, now_s, now_s + AUTHORITY_LIFE_S)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def issue_leaf(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
    now_s: int,
    *,
    is_client: bool,
) -> LeafSecret:
    """A new key with a certificate for DNS names. `is_client`: it may also identify the client of a connection.

    Raises:
        InvalidRequestError: there is no name, or one is not a DNS name.
        HeadraceError: what `authority_key.sign` raises.
    """
    if not 1 <= len(names) <= NAMES_MAX:
        raise InvalidRequestError(f"a certificate has 1 to {NAMES_MAX} names, not {len(names)}")
    try:
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    except ValueError as error:
        raise InvalidRequestError(f"{', '.join(names)[:200]!r} are not DNS names: {error}") from error
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else [])]
    ends_s = leaf_end_s(end_s(authority), now_s)
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(_public_key(authority))
    certificate = (
        _certificate(key.public_key(), x509.Name([]), authority.subject, now_s, ends_s)
        .add_extension(alternatives, critical=True)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return LeafSecret(pem(certificate), text.decode("ascii"))


def why_unfit(
    secret: LeafSecret, names: Sequence[str], trusted: Sequence[x509.Certificate], *, is_client: bool
) -> str | None:
    """Why a stored secret does not serve these names under the trusted authorities; None if it does. Ignores its end.

    Raises:
        CorruptError: the certificate or the key is not one.
    """
    leaf = load_certificate(secret.certificate)
    try:
        key = serialization.load_pem_private_key(secret.key.encode("ascii"), password=None)
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        is_its_key = _key_bytes(key.public_key()) == _key_bytes(leaf.public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension):
        # The cause is not shown: it could show the key.
        raise CorruptError("the secret of a certificate does not hold what this version issues") from None
    if not is_its_key:
        return "its key belongs to another certificate"
    if set(alternatives.get_values_for_type(x509.DNSName)) != set(names):
        return "its names are not those of now"
    if (ExtendedKeyUsageOID.CLIENT_AUTH in uses) != is_client:
        return "its uses are not those of now"
    if not any(is_issued_by(leaf, each) for each in trusted):
        return "no trusted authority has issued it"
    return None


def is_issued_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority has signed the certificate."""
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def load_certificate(text: str) -> x509.Certificate:
    """The first certificate of a PEM text. Raises CorruptError."""
    try:
        return x509.load_pem_x509_certificate(text.encode("ascii"))
    except ValueError:
        raise CorruptError("a stored certificate is not one that OpenSSL reads") from None


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def key_id(public_key: ec.EllipticCurvePublicKey) -> str:
    """A name of a key that depends on nothing but the key."""
    return x509.SubjectKeyIdentifier.from_public_key(public_key).digest.hex()


def key_id_of(authority: x509.Certificate) -> str:
    """The name of the key that an authority signs with. Raises CorruptError: it is not on an elliptic curve."""
    return key_id(_public_key(authority))


def made_at_s(certificate: x509.Certificate) -> int:
    """When the certificate was made, in seconds since 1970."""
    return int(certificate.not_valid_before_utc.timestamp()) + BACKDATED_S


def end_s(certificate: x509.Certificate) -> int:
    """When the certificate ends, in seconds since 1970."""
    return int(certificate.not_valid_after_utc.timestamp())


def _certificate(
    public_key: ec.EllipticCurvePublicKey, name: x509.Name, issuer: x509.Name, now_s: int, ends_s: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_s - BACKDATED_S))
        .not_valid_after(_time(ends_s))
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _public_key(authority: x509.Certificate) -> ec.EllipticCurvePublicKey:
    try:
        public_key = authority.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise CorruptError("the certificate of an authority has a key of another kind") from None
    if not isinstance(public_key, ec.EllipticCurvePublicKey):
        raise CorruptError("the certificate of an authority has a key that is not on an elliptic curve")
    return public_key


def _key_bytes(key: object) -> bytes | None:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return None
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
