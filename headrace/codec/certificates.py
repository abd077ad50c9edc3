"""The stored forms of certificates: the secret of one process, and the certification authorities that all trust.

A secret is `{"certificate": PEM, "key": PEM}`: the certificate of the process, followed by those of its chain, and its
private key in PKCS #8. A bundle is `{"certificates": [PEM, ...]}`, and it is public. Only the form is checked here;
OpenSSL checks the rest when a process loads them.
"""

from __future__ import annotations

import binascii
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.codec.strict_json import RefusedJsonError, parse_json
from headrace.model.errors import CorruptError, InvalidRequestError

LEAF_TEXT_BYTES_MAX: Final = 65_536
"""What a secret of AWS Secrets Manager holds."""
CHAIN_MAX: Final = 10
"""Certificates of one process, with those of its chain."""
AUTHORITIES_MAX: Final = 16
"""A rotation needs two."""
CERTIFICATE_CHARACTERS_MAX: Final = 16_384
KEY_CHARACTERS_MAX: Final = 16_384
BUNDLE_TEXT_BYTES_MAX: Final = 131_072

_BEGIN: Final = "-----BEGIN "
_PEM: Final = re.compile(r"-----BEGIN ([A-Z ]{1,40})-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END \1-----(?:\r?\n|\Z)")
_CERTIFICATE: Final = "CERTIFICATE"
_PRIVATE_KEY: Final = "PRIVATE KEY"


@dataclass(frozen=True, slots=True)
class LeafSecret:
    """The certificate of a process with its chain, and the private key that belongs to it, both as PEM."""

    certificate: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TrustBundle:
    """Certificates of the authorities that a deployment trusts, one PEM each. It is public."""

    certificates: tuple[str, ...]

    @property
    def pem(self) -> str:
        """All of them in one text, as OpenSSL and Pravega's clients read them from a file."""
        return "".join(
            certificate if certificate.endswith("\n") else f"{certificate}\n" for certificate in self.certificates
        )


def leaf_secret_text(secret: LeafSecret) -> str:
    """Raises InvalidRequestError for what `parse_leaf_secret` would refuse; the message does not have the key."""
    text = json.dumps({"certificate": secret.certificate, "key": secret.key})
    try:
        parse_leaf_secret(text)
    except CorruptError as error:
        raise InvalidRequestError(error.message) from None
    return text


def parse_leaf_secret(text: str) -> LeafSecret:
    """The secret as `leaf_secret_text` writes it. Other fields are ignored.

    Raises:
        CorruptError: the text is something else. The message has nothing of the text.
    """
    fields = _object("secret of a certificate", text, LEAF_TEXT_BYTES_MAX)
    certificate, key = fields.get("certificate"), fields.get("key")
    if not isinstance(certificate, str) or not isinstance(key, str):
        raise CorruptError("the secret of a certificate needs the texts `certificate` and `key`")
    _check_pem("`certificate` in the secret of a certificate", certificate, _CERTIFICATE, CHAIN_MAX)
    if len(key) > KEY_CHARACTERS_MAX:
        raise CorruptError(f"`key` in the secret of a certificate has more than {KEY_CHARACTERS_MAX} characters")
    _check_pem("`key` in the secret of a certificate", key, _PRIVATE_KEY, 1)
    return LeafSecret(certificate, key)


def trust_bundle_fields(bundle: TrustBundle) -> dict[str, Any]:
    """Raises InvalidRequestError for what `decode_trust_bundle` would refuse."""
    fields = {"certificates": list(bundle.certificates)}
    try:
        decode_trust_bundle(fields)
    except CorruptError as error:
        raise InvalidRequestError(error.message) from None
    return fields


def decode_trust_bundle(fields: Any) -> TrustBundle:
    """The bundle in a parsed document. Other fields are ignored.

    Raises:
        CorruptError: it is something else, or it has no certificate.
    """
    certificates = fields.get("certificates") if isinstance(fields, dict) else None
    if not isinstance(certificates, list) or not all(isinstance(each, str) for each in certificates):
        raise CorruptError("a trust bundle needs a list of texts `certificates`")
    if not 1 <= len(certificates) <= AUTHORITIES_MAX:
        raise CorruptError(f"a trust bundle has {len(certificates)} certificates, expected 1 to {AUTHORITIES_MAX}")
    for each in certificates:
        _check_pem("a certificate in a trust bundle", each, _CERTIFICATE, 1)
    return TrustBundle(tuple(certificates))


def trust_bundle_text(bundle: TrustBundle) -> str:
    """Raises as `trust_bundle_fields`."""
    return json.dumps(trust_bundle_fields(bundle))


def parse_trust_bundle(text: str) -> TrustBundle:
    """The bundle as `trust_bundle_text` writes it. Raises CorruptError: the text is something else."""
    return decode_trust_bundle(_object("trust bundle", text, BUNDLE_TEXT_BYTES_MAX))


def bundle_of_pem(text: str) -> TrustBundle:
    """The bundle of a PEM file with one or more certificates, and with comments between them.

    Raises:
        InvalidRequestError: there are none, or too many, or one is not in its form.
    """
    if len(text) > BUNDLE_TEXT_BYTES_MAX:
        raise InvalidRequestError(f"the text has more than {BUNDLE_TEXT_BYTES_MAX} characters")
    certificates = tuple(match.group(0) for match in _PEM.finditer(text) if match.group(1) == _CERTIFICATE)
    if not certificates or text.count(f"{_BEGIN}{_CERTIFICATE}-----") != len(certificates):
        raise InvalidRequestError("the text is not a list of certificates in PEM")
    bundle = TrustBundle(certificates)
    trust_bundle_fields(bundle)
    return bundle


def _object(what: str, text: str, bytes_max: int) -> dict[str, Any]:
    if len(text) > bytes_max:
        raise CorruptError(f"the {what} has more than {bytes_max} characters")
    try:
        document = parse_json(text)
    except RefusedJsonError as error:
        raise CorruptError(f"the {what} is not a JSON document: {error}") from None
    if not isinstance(document, dict):
        raise CorruptError(f"the {what} is not a JSON object")
    return document


def _check_pem(what: str, text: str, label: str, most: int) -> None:
    """One to `most` blocks of this label, and nothing between them. Raises CorruptError without the text."""
    if len(text) > most * CERTIFICATE_CHARACTERS_MAX:
        raise CorruptError(f"{what} has more than {most * CERTIFICATE_CHARACTERS_MAX} characters")
    blocks = list(_PEM.finditer(text))
    rest = _PEM.sub("", text).strip()
    if rest or not 1 <= len(blocks) <= most or any(match.group(1) != label for match in blocks):
        many = "one block" if most == 1 else f"1 to {most} blocks"
        raise CorruptError(f"{what} is not {many} of PEM of the kind {label}")
    for match in blocks:
        try:
            binascii.a2b_base64(match.group(2).encode("ascii"), strict_mode=False)
        except binascii.Error:
            raise CorruptError(f"{what} is not base64") from None
