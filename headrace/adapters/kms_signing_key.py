"""The signing key of a certification authority in AWS KMS. The private key never leaves KMS."""

from __future__ import annotations

import functools
from typing import Any, Final, NoReturn, Protocol

from botocore.exceptions import BotoCoreError, ClientError
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from headrace.adapters.aws_refusals import AnswerKind, answer_kind, code_of, status_of
from headrace.model.errors import HeadraceError, IllegalStateError, ThrottledError, UnavailableError

MESSAGE_BYTES_MAX: Final = 4_096
"""KMS signs no larger message. The body of a certificate has some 500 bytes."""


class KmsClient(Protocol):
    """The part of botocore's client that is used."""

    def get_public_key(self, *, KeyId: str) -> dict[str, Any]: ...
    def sign(self, *, KeyId: str, Message: bytes, MessageType: str, SigningAlgorithm: str) -> dict[str, Any]: ...


class KmsSigningKey(ec.EllipticCurvePrivateKey):
    """A private key that `CertificateBuilder.sign` accepts. Each signature is a call of KMS; the public key is cached.

    It signs with ECDSA and SHA-256, and does nothing else: other methods raise IllegalStateError.
    """

    def __init__(self, client: KmsClient, key_id: str) -> None:
        """`key_id` is the id or the ARN of a key with the specification ECC_NIST_P256 for SIGN_VERIFY."""
        self._client = client
        self._id = key_id

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """The signature of `data`, in DER.

        Raises:
            IllegalStateError: KMS refuses, or another algorithm is asked for; an operator must act.
            UnavailableError, ThrottledError: KMS does not answer.
        """
        algorithm = signature_algorithm.algorithm
        if isinstance(algorithm, Prehashed) or not isinstance(algorithm, hashes.SHA256):
            raise IllegalStateError("keys in KMS sign with SHA-256")
        if len(data) > MESSAGE_BYTES_MAX:
            raise IllegalStateError(f"KMS signs at most {MESSAGE_BYTES_MAX} bytes, not {len(data)}")
        try:
            # KMS makes the hash: so it signs nothing but what it has seen.
            answer = self._client.sign(
                KeyId=self._id, Message=bytes(data), MessageType="RAW", SigningAlgorithm="ECDSA_SHA_256"
            )
        except (ClientError, BotoCoreError) as error:
            raise self._refusal("sign", error) from error
        return bytes(answer["Signature"])

    def public_key(self) -> ec.EllipticCurvePublicKey:
        """Raises as `sign`."""
        return self._public_key

    @property
    def curve(self) -> ec.EllipticCurve:
        return self._public_key.curve

    @property
    def key_size(self) -> int:
        return self._public_key.key_size

    def exchange(self, algorithm: ec.ECDH, peer_public_key: ec.EllipticCurvePublicKey) -> NoReturn:
        raise self._stays()

    def private_numbers(self) -> NoReturn:
        raise self._stays()

    def private_bytes(
        self,
        encoding: serialization.Encoding,
        format: serialization.PrivateFormat,  # noqa: A002 - as the base class has it
        encryption_algorithm: serialization.KeySerializationEncryption,
    ) -> NoReturn:
        raise self._stays()

    def __copy__(self) -> KmsSigningKey:
        return self

    def __deepcopy__(self, memo: dict[Any, Any]) -> KmsSigningKey:
        return self

    @functools.cached_property
    def _public_key(self) -> ec.EllipticCurvePublicKey:
        try:
            text = self._client.get_public_key(KeyId=self._id)["PublicKey"]
        except (ClientError, BotoCoreError) as error:
            raise self._refusal("read", error) from error
        public_key = serialization.load_der_public_key(text)
        if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(public_key.curve, ec.SECP256R1):
            raise IllegalStateError(f"the key {self._id} in KMS is not of the kind ECC_NIST_P256")
        return public_key

    def _refusal(self, done: str, error: ClientError | BotoCoreError) -> HeadraceError:
        if isinstance(error, BotoCoreError):
            return UnavailableError(f"KMS does not answer for the key {self._id}: {type(error).__name__}")
        code = code_of(error)
        message = f"the key {self._id} in KMS does not {done}: {code}"
        match answer_kind(code, status_of(error)):
            case AnswerKind.THROTTLED:
                return ThrottledError(message)
            case AnswerKind.UNAVAILABLE:
                return UnavailableError(message)
            case _:
                return IllegalStateError(message)

    def _stays(self) -> IllegalStateError:
        return IllegalStateError(f"the key {self._id} stays in KMS, and only signs")
