"""The profile of certificates is accepted by strict verifiers, and by nothing but the right names and authorities."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from headrace.certificates.profile import (
    NAMES_MAX,
    authority_certificate,
    end_s,
    issue_leaf,
    load_certificate,
    made_at_s,
    pem,
    why_unfit,
)
from headrace.codec.certificates import LeafSecret, leaf_secret_text, parse_leaf_secret
from headrace.model.certificate_authorities import AUTHORITY_LIFE_S, BACKDATED_S, LEAF_LIFE_S
from headrace.model.errors import CorruptError, InvalidRequestError

NAME = "store-0.headrace.internal"
DAY_S = 86_400
NOW_S = int(time.time())


class Issuer:
    """An authority whose key is at hand."""

    def __init__(self, now_s: int = NOW_S - DAY_S) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = authority_certificate(self.key, now_s)

    def issue(self, name: str = NAME, now_s: int = NOW_S, *, is_client: bool = True) -> LeafSecret:
        return issue_leaf(self.certificate, self.key, [name], now_s, is_client=is_client)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def _extension(certificate: x509.Certificate, kind: type[x509.ExtensionType]) -> x509.Extension[x509.ExtensionType]:
    return certificate.extensions.get_extension_for_class(kind)


def test_an_authority_has_the_profile(issuer: Issuer):
    certificate = issuer.certificate
    basic, usage = _extension(certificate, x509.BasicConstraints), _extension(certificate, x509.KeyUsage)
    assert (basic.critical, basic.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    assert isinstance(usage.value, x509.KeyUsage)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.crl_sign, usage.value.digital_signature) == (
        True,
        True,
        True,
        False,
    )
    assert not _extension(certificate, x509.SubjectKeyIdentifier).critical
    assert certificate.subject == certificate.issuer
    assert end_s(certificate) - made_at_s(certificate) == AUTHORITY_LIFE_S
    assert isinstance(certificate.signature_hash_algorithm, hashes.SHA256)


def test_two_authorities_never_share_a_name():
    assert Issuer().certificate.subject != Issuer().certificate.subject


@pytest.mark.parametrize("is_client", [True, False])
def test_a_leaf_has_the_profile(issuer: Issuer, is_client: bool):
    certificate = load_certificate(issuer.issue(is_client=is_client).certificate)
    names, basic = _extension(certificate, x509.SubjectAlternativeName), _extension(certificate, x509.BasicConstraints)
    assert (names.critical, list(names.value)) == (True, [x509.DNSName(NAME)])
    assert (basic.critical, basic.value) == (True, x509.BasicConstraints(ca=False, path_length=None))
    usage = _extension(certificate, x509.KeyUsage)
    assert isinstance(usage.value, x509.KeyUsage)
    assert (usage.critical, usage.value.digital_signature, usage.value.key_cert_sign) == (True, True, False)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else [])]
    assert list(_extension(certificate, x509.ExtendedKeyUsage).value) == uses
    assert len(certificate.subject) == 0
    assert certificate.issuer == issuer.certificate.subject
    assert (made_at_s(certificate), end_s(certificate)) == (NOW_S, NOW_S + LEAF_LIFE_S)
    assert int(certificate.not_valid_before_utc.timestamp()) == NOW_S - BACKDATED_S
    assert isinstance(_extension(certificate, x509.AuthorityKeyIdentifier).value, x509.AuthorityKeyIdentifier)
    assert isinstance(_extension(certificate, x509.SubjectKeyIdentifier).value, x509.SubjectKeyIdentifier)
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)


def test_a_leaf_has_the_stored_form(issuer: Issuer):
    secret = issuer.issue()
    assert parse_leaf_secret(leaf_secret_text(secret)) == secret
    assert "PRIVATE" not in repr(secret)


def test_a_leaf_ends_with_its_authority():
    issuer = Issuer(NOW_S - AUTHORITY_LIFE_S + DAY_S)
    assert end_s(load_certificate(issuer.issue().certificate)) == end_s(issuer.certificate)


@pytest.mark.parametrize("names", [[], ["x"] * (NAMES_MAX + 1), ["naïve.example"]], ids=["none", "many", "not ASCII"])
def test_wrong_names_are_refused(issuer: Issuer, names: list[str]):
    with pytest.raises(InvalidRequestError):
        issue_leaf(issuer.certificate, issuer.key, names, NOW_S, is_client=False)


def _handshake(secret: LeafSecret, trusted: x509.Certificate, name: str, folder: Path) -> str:
    """Connect with the strict checks of Python 3.13, and return the protocol."""
    file = folder / "leaf.pem"
    file.write_text(secret.certificate + secret.key)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(file)
    context = ssl.create_default_context(cadata=pem(trusted))
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            server_context.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()  # the client has refused

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with context.wrap_socket(here, server_hostname=name) as connection:
            return str(connection.version())
    finally:
        here.close()
        thread.join()


def test_a2_pythons_strict_checks_accept_the_profile(issuer: Issuer, tmp_path: Path):
    assert _handshake(issuer.issue(), issuer.certificate, NAME, tmp_path) == "TLSv1.3"


@pytest.mark.parametrize("case", ["other authority", "other name", "expired", "not yet valid"])
def test_a2_pythons_checks_refuse_the_rest(issuer: Issuer, tmp_path: Path, case: str):
    trusted = Issuer().certificate if case == "other authority" else issuer.certificate
    name = "store-1.headrace.internal" if case == "other name" else NAME
    now_s = NOW_S + {"expired": -LEAF_LIFE_S - 1, "not yet valid": DAY_S}.get(case, 0)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(issuer.issue(now_s=now_s), trusted, name, tmp_path)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="OpenSSL's command is not installed")
@pytest.mark.parametrize("purpose", ["sslserver", "sslclient"])
def test_a2_openssl_accepts_the_profile(issuer: Issuer, tmp_path: Path, purpose: str):
    (tmp_path / "ca.pem").write_text(pem(issuer.certificate))
    (tmp_path / "leaf.pem").write_text(issuer.issue().certificate)
    command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.pem", "leaf.pem"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stdout) == (0, "leaf.pem: OK\n"), finished.stderr


def test_what_was_issued_is_fit(issuer: Issuer):
    assert why_unfit(issuer.issue(), [NAME], [Issuer().certificate, issuer.certificate], is_client=True) is None


def test_other_names_uses_and_authorities_are_unfit(issuer: Issuer):
    secret, trusted = issuer.issue(), [issuer.certificate]
    mixed = LeafSecret(secret.certificate, issuer.issue().key)
    assert "names" in (why_unfit(secret, ["other"], trusted, is_client=True) or "")
    assert "uses" in (why_unfit(secret, [NAME], trusted, is_client=False) or "")
    assert "trusted" in (why_unfit(secret, [NAME], [Issuer().certificate], is_client=True) or "")
    assert "another certificate" in (why_unfit(mixed, [NAME], trusted, is_client=True) or "")


def test_damaged_secrets_are_refused_without_their_key(issuer: Issuer):
    secret = issuer.issue()
    key = secret.key.replace("MIG", "AAA", 1)
    with pytest.raises(CorruptError) as refused:
        why_unfit(LeafSecret(secret.certificate, key), [NAME], [issuer.certificate], is_client=True)
    assert refused.value.__cause__ is None
    assert key.splitlines()[1] not in str(refused.value)
    with pytest.raises(CorruptError):
        load_certificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")


def test_a_certificate_of_another_kind_is_refused(issuer: Issuer):
    """As a person may have put it into the secret by hand: without names."""
    text = issuer.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(CorruptError):
        why_unfit(LeafSecret(pem(issuer.certificate), text.decode()), [NAME], [issuer.certificate], is_client=True)
