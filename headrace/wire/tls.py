"""The client's side of TLS: what it trusts, whom it wants to reach, and the errors that say what is wrong."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from headrace.model.errors import CorruptError, UnavailableError
from headrace.model.tls_modes import is_tls_name

STORE_NOT_TRUSTED: Final = "store_not_trusted"
"""The code of the UnavailableError of a store whose certificate was refused. It may be repeated: the address may have
passed on to another store, and certificates and authorities are replaced."""

ENCRYPTED_AT_ONCE_BYTES: Final = 128 << 10
"""The peer decrypts these while the next ones are encrypted. A block of events has up to a mebibyte."""

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_WRONG_NAME: Final = 62
"""X509_V_ERR_CERT_HAS_EXPIRED, _CERT_NOT_YET_VALID and _HOSTNAME_MISMATCH."""


@dataclass(frozen=True, slots=True)
class StoreTls:
    """How to connect to one store: `name` is that in its certificate.

    Raises:
        CorruptError: the store announces a name that is not a DNS name. Python would raise errors of many kinds for it.
    """

    context: ssl.SSLContext = field(repr=False)
    name: str

    def __post_init__(self) -> None:
        if not is_tls_name(self.name):
            raise CorruptError(f"a segment store announces the name {self.name[:300]!r}, which is not a DNS name")


def client_context(authorities_pem: str) -> ssl.SSLContext:
    """A context that trusts these authorities and no others, and checks names.

    Raises:
        CorruptError: OpenSSL does not accept the certificates.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the certificate and its name
    restrict(context)
    try:
        context.load_verify_locations(cadata=authorities_pem)
    except (ssl.SSLError, ValueError) as error:
        raise CorruptError(f"the certificates of the authorities cannot be used: {_reason(error)}") from None
    return context


def restrict(context: ssl.SSLContext) -> None:
    """What every context of the project has: TLS 1.2 or later, no renegotiation, and strict checks of certificates."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_flags |= ssl.VERIFY_X509_STRICT


def tls_problem(peer: str, name: str, error: ssl.SSLError) -> UnavailableError:
    """The error of a handshake that has failed with the store `peer`, whose certificate should have `name`."""
    details = {"peer": peer, "tls_name": name}
    if not isinstance(error, ssl.SSLCertVerificationError):
        return UnavailableError(
            f"segment store {peer} does not complete the TLS handshake: {_reason(error)}; if that stays, compare "
            "HEADRACE_TLS of the store with what its clients are told",
            details=details,
        )
    advice = {
        _EXPIRED: "its certificate has expired: see why the function `certificates` has not renewed it",
        _NOT_YET_VALID: "its certificate is not valid yet: compare the clocks of this machine and of the deployment",
        _WRONG_NAME: f"its certificate is not for {name}: another process may have its address now",
    }.get(
        error.verify_code,
        f"its certificate was not issued by an authority that the deployment publishes ({error.verify_message}): "
        "compare with `headrace trust`",
    )
    return UnavailableError(
        f"segment store {peer} is not trusted: {advice}",
        details={**details, "verification": error.verify_message},
        code=STORE_NOT_TRUSTED,
    )


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or type(error).__name__)
