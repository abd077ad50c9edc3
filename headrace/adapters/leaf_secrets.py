"""The settings of TLS, which a process reads from its environment, and where its certificate comes from.

| variable | meaning | default |
|---|---|---|
| HEADRACE_TLS | off: without TLS; permissive: with and without; required: only with TLS | off |
| HEADRACE_TLS_FILE | path of the JSON text with certificate and key, of mode 600 | one of both is required |
| HEADRACE_TLS_SECRET | id or ARN of a secret with that text | unless `off` |
| HEADRACE_TLS_NAME | name in the certificate, such as `store-0.headrace.internal` | required unless `off` |
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.adapters.token_keys import SecretsClient, secret_text, secrets_client
from headrace.codec.certificates import LEAF_TEXT_BYTES_MAX, LeafSecret, parse_leaf_secret
from headrace.model.errors import CorruptError, IllegalStateError, InvalidRequestError
from headrace.model.tls_modes import TlsMode, is_tls_name
from headrace.ports.certificate_secrets import LeafSecretSource

MODE: Final = "HEADRACE_TLS"
FILE: Final = "HEADRACE_TLS_FILE"
SECRET: Final = "HEADRACE_TLS_SECRET"
NAME: Final = "HEADRACE_TLS_NAME"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """`source` None and `name` empty: TLS is off."""

    mode: TlsMode = TlsMode.OFF
    source: LeafSecretSource | None = None
    name: str = ""


def tls_settings(environment: Mapping[str, str]) -> TlsSettings:
    """The settings of this process. Nothing of the certificate is read yet.

    Raises:
        InvalidRequestError: a variable is missing or wrong; the message names it.
    """
    value = environment.get(MODE, "") or TlsMode.OFF
    try:
        mode = TlsMode(value)
    except ValueError:
        raise InvalidRequestError(f"{MODE} is {value!r}, expected {', '.join(TlsMode)}") from None
    if mode is TlsMode.OFF:
        return TlsSettings()
    path, secret, name = (environment.get(each, "") for each in (FILE, SECRET, NAME))
    if bool(path) == bool(secret):
        problem = "both are set" if path else "none is set"
        raise InvalidRequestError(f"{MODE} is {mode}: set either {FILE} or {SECRET}; {problem}")
    if not is_tls_name(name):
        raise InvalidRequestError(f"{NAME} is {name[:300]!r}, expected a DNS name in lower case")
    return TlsSettings(mode, LeafFile(Path(path)) if path else LeafInSecretsManager(secret), name)


class LeafFile:
    """`ports.certificate_secrets.LeafSecretSource` over a file that only its owner may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> LeafSecret:
        try:
            with self._path.open("rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise IllegalStateError(
                        f"the key of the certificate in {self._path} can be read by other users: set its mode to 600"
                    )
                text = file.read(LEAF_TEXT_BYTES_MAX + 1).decode("ascii")
        except OSError as error:
            raise IllegalStateError(
                f"the certificate in {self._path} cannot be read: {error.strerror or type(error).__name__}"
            ) from error
        except UnicodeDecodeError:
            # The cause is not shown: it has the bytes.
            raise CorruptError(f"the certificate in {self._path} is not ASCII text") from None
        return parse_leaf_secret(text)


class LeafInSecretsManager:
    """`ports.certificate_secrets.LeafSecretSource` over a secret of AWS Secrets Manager."""

    def __init__(self, secret_id: str, client: SecretsClient | None = None) -> None:
        """`client` None: one for the standard AWS_* variables, made at the first use."""
        self._secret_id = secret_id
        self._client = client

    def read(self) -> LeafSecret:
        return parse_leaf_secret(secret_text(self._connected, self._secret_id, "certificate"))

    def _connected(self) -> SecretsClient:
        self._client = self._client or secrets_client()
        return self._client
