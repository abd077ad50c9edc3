"""Signing keys in KMS, and the secrets of certificates, on an emulator; and what their refusals become."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from moto import mock_aws

from headrace.adapters.certificate_secrets import SecretsManagerCertificates
from headrace.adapters.kms_signing_key import MESSAGE_BYTES_MAX, KmsSigningKey
from headrace.certificate_names import secret_name
from headrace.certificates.profile import authority_certificate, is_issued_by, issue_leaf, load_certificate
from headrace.model.errors import HeadraceError, IllegalStateError, ThrottledError, UnavailableError

SHA256 = ec.ECDSA(hashes.SHA256())


@pytest.fixture
def aws() -> Iterator[Any]:
    """A session whose clients talk to an emulator in this process."""
    with mock_aws():
        yield botocore.session.get_session()


def _client(aws: Any, service: str) -> Any:
    return aws.create_client(service, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


@pytest.fixture
def key(aws: Any) -> KmsSigningKey:
    client = _client(aws, "kms")
    made = client.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")["KeyMetadata"]
    return KmsSigningKey(client, made["Arn"])


def test_a_key_in_kms_issues_certificates(key: KmsSigningKey):
    now_s = int(time.time())
    authority = authority_certificate(key, now_s)
    assert is_issued_by(authority, authority)
    secret = issue_leaf(authority, key, ["store-0.headrace.internal"], now_s, is_client=True)
    assert is_issued_by(load_certificate(secret.certificate), authority)


def test_a_key_in_kms_signs_with_one_algorithm(key: KmsSigningKey):
    key.public_key().verify(key.sign(b"text", SHA256), b"text", SHA256)
    for other in (ec.ECDSA(hashes.SHA384()), ec.ECDSA(Prehashed(hashes.SHA256()))):
        with pytest.raises(IllegalStateError):
            key.sign(bytes(32), other)
    with pytest.raises(IllegalStateError):
        key.sign(bytes(MESSAGE_BYTES_MAX + 1), SHA256)


def test_a_key_in_kms_stays_there(key: KmsSigningKey):
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    with pytest.raises(IllegalStateError):
        key.private_numbers()
    with pytest.raises(IllegalStateError):
        key.exchange(ec.ECDH(), other)
    with pytest.raises(IllegalStateError):
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    assert copy.deepcopy(copy.copy(key)) is key
    assert (key.curve.name, key.key_size) == ("secp256r1", 256)


def test_a_key_of_another_kind_is_refused(aws: Any):
    client = _client(aws, "kms")
    made = client.create_key(KeySpec="RSA_2048", KeyUsage="SIGN_VERIFY")["KeyMetadata"]
    with pytest.raises(IllegalStateError):
        KmsSigningKey(client, made["Arn"]).public_key()


class Refusing:
    """A client of which each call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def call(**_: Any) -> Any:
            raise self._error

        return call


def _refused(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Call")


REFUSALS = [
    (_refused("AccessDeniedException"), IllegalStateError),
    (_refused("KMSInvalidStateException"), IllegalStateError),
    (_refused("ThrottlingException"), ThrottledError),
    (_refused("InternalFailure", 500), UnavailableError),
    (EndpointConnectionError(endpoint_url="https://kms"), UnavailableError),
]


@pytest.mark.parametrize(("error", "kind"), REFUSALS, ids=lambda each: str(each)[:40])
def test_refusals_of_kms_have_their_class(error: Exception, kind: type[HeadraceError]):
    key = KmsSigningKey(Refusing(error), "key")
    with pytest.raises(kind):
        key.sign(b"text", SHA256)
    with pytest.raises(kind):
        key.public_key()


@pytest.mark.parametrize(("error", "kind"), REFUSALS, ids=lambda each: str(each)[:40])
def test_refusals_of_secrets_have_their_class(error: Exception, kind: type[HeadraceError]):
    secrets = SecretsManagerCertificates(Refusing(error))
    with pytest.raises(kind):
        secrets.read("store-0")
    with pytest.raises(kind) as refused:
        secrets.write("store-0", "a text with a key")
    assert "a text" not in str(refused.value)


def test_a_secret_is_replaced_as_a_whole(aws: Any):
    client = _client(aws, "secretsmanager")
    client.create_secret(Name=secret_name("store-0"), SecretString="{}")
    secrets = SecretsManagerCertificates(client)
    assert secrets.read("store-0") == "{}"
    secrets.write("store-0", "new")
    assert secrets.read("store-0") == "new"
    with pytest.raises(IllegalStateError):
        secrets.write("store-9", "new")
