"""Token keys in a secret of AWS Secrets Manager."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final, Protocol

from headrace.codec.delegation_tokens import TokenKeys, parse_token_keys
from headrace.model.errors import HeadraceError, IllegalStateError, UnavailableError
from headrace.ports.clock import Clock

_log = logging.getLogger(__name__)

REFRESH_S: Final = 5 * 60
"""A key is revoked everywhere after this time. A new key signs much later, so that all processes know it by then."""
RETRY_S: Final = 30
STALE_S: Final = 60 * 60
"""Keys that could not be read again for so long are reported as errors: a rotation may have been missed."""

CONNECT_TIMEOUT_S: Final = 2
READ_TIMEOUT_S: Final = 3
ATTEMPTS_MAX: Final = 2


class SecretsClient(Protocol):
    """The part of botocore's client that is used."""

    def get_secret_value(self, *, SecretId: str) -> dict[str, object]: ...


class TokenKeySecret:
    """`ports.token_keys.TokenKeySource` over a secret, which is read again every five minutes.

    While it cannot be read, the keys stay in use, and the next attempt is made after half a minute. Only one thread
    reads; others get the keys of before meanwhile, or wait if there are none yet.
    """

    def __init__(self, secret_id: str, clock: Clock, client: SecretsClient | None = None) -> None:
        """`client` None: one for the standard AWS_* variables, made at the first use."""
        self._secret_id = secret_id
        self._clock = clock
        self._client = client
        self._lock = threading.Lock()
        self._keys: TokenKeys | None = None
        self._read_at_s = 0.0
        self._next_read_s = 0.0

    def keys(self) -> TokenKeys:
        known = self._keys
        if known is not None and self._clock.monotonic_s() < self._next_read_s:
            return known
        if known is not None and self._lock.locked():
            return known  # another thread reads them
        with self._lock:
            return self._refreshed()

    def _refreshed(self) -> TokenKeys:
        now_s, known = self._clock.monotonic_s(), self._keys
        if known is not None and now_s < self._next_read_s:
            return known  # another thread has read them meanwhile
        try:
            keys = parse_token_keys(self._read())
        except HeadraceError as error:
            if known is None:
                raise
            self._next_read_s = now_s + RETRY_S
            old_s = now_s - self._read_at_s
            level = logging.ERROR if old_s > STALE_S else logging.WARNING
            _log.log(level, "event=token_keys_not_read seconds_old=%d error=%r", old_s, error.message)
            return known
        self._keys, self._read_at_s, self._next_read_s = keys, now_s, now_s + REFRESH_S
        return keys

    def _read(self) -> str:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if self._client is None:
                self._client = secrets_client()
            found = self._client.get_secret_value(SecretId=self._secret_id).get("SecretString")
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            raise UnavailableError(
                f"the secret {self._secret_id} with the token keys cannot be read: {code}", details={"cause": code}
            ) from error
        except BotoCoreError as error:
            raise UnavailableError(
                f"Secrets Manager does not answer for the secret {self._secret_id}: {type(error).__name__}"
            ) from error
        if not isinstance(found, str):
            raise IllegalStateError(f"the secret {self._secret_id} has no text with token keys")
        return found


def secrets_client() -> Any:
    """A client for the region, credentials and endpoint of the standard AWS_* variables; safe for many threads."""
    import botocore.session
    from botocore.config import Config

    config = Config(
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
    )
    session: Any = botocore.session.get_session()
    return session.create_client("secretsmanager", config=config)
