"""The settings of delegation tokens, which every process of a deployment reads from its environment.

| variable | meaning | default |
|---|---|---|
| HEADRACE_TOKENS | off: stores look at no token; required: each request needs one | off |
| HEADRACE_TOKEN_KEYS_FILE | path of the keys' JSON text, of mode 600 | one of both is required |
| HEADRACE_TOKEN_KEYS_SECRET | id or ARN of a secret with that text | with `required` |
| HEADRACE_TOKEN_LIFE_S | lifetime of a token, 60 to 3600 s | 600 |

`InternalToken` is the token of a part of the deployment, which calls segment stores and is allowed everything.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.codec.delegation_tokens import (
    TokenClaims,
    TokenKeys,
    encode_token,
    parse_token_keys,
)
from headrace.deployment_defaults import TOKENS_OFF, TOKENS_REQUIRED, TOKENS_VARIABLE
from headrace.model.access import EVERYTHING, Access
from headrace.model.errors import (
    CorruptError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    UnavailableError,
)
from headrace.ports.clock import Clock
from headrace.ports.token_keys import TokenKeySource

# Token keys in a secret of AWS Secrets Manager.

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
        return secret_text(self._connected, self._secret_id, "token keys")

    def _connected(self) -> SecretsClient:
        self._client = self._client or secrets_client()
        return self._client


def secret_text(connected: Callable[[], SecretsClient], secret_id: str, what: str) -> str:
    """The text of a secret, which has `what`. `connected` returns the client, and may have to make it.

    Raises:
        UnavailableError: Secrets Manager refuses, or does not answer.
        IllegalStateError: the secret has no text.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        text = connected().get_secret_value(SecretId=secret_id).get("SecretString")
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        raise UnavailableError(
            f"the secret {secret_id} with the {what} cannot be read: {code}", details={"cause": code}
        ) from error
    except BotoCoreError as error:
        raise UnavailableError(
            f"Secrets Manager does not answer for the secret {secret_id}: {type(error).__name__}"
        ) from error
    if not isinstance(text, str):
        raise IllegalStateError(f"the secret {secret_id} has no text with its {what}")
    return text


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


# Token keys in a file that only its owner may read, as a local stack has them.

_log = logging.getLogger(__name__)

_Version = tuple[int, int, int, int]


class TokenKeyFile:
    """`ports.token_keys.TokenKeySource` over a file, which is read again when it has changed.

    The file is replaced as a whole, by a rename.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._version: _Version | None = None
        self._keys: TokenKeys | None = None
        self._reported = ""

    def keys(self) -> TokenKeys:
        """As the port says. Each call looks at the file's times, and takes microseconds."""
        with self._lock:
            try:
                self._keys = self._read_if_changed(self._keys)
                self._reported = ""
            except HeadraceError as error:
                if self._keys is None:
                    raise
                self._report(error)
            return self._keys

    def _report(self, error: HeadraceError) -> None:
        """Log an error, but not again for each call."""
        if error.message != self._reported:
            self._reported = error.message
            _log.warning("event=token_keys_not_read path=%r error=%r", str(self._path), error.message)

    def _read_if_changed(self, known: TokenKeys | None) -> TokenKeys:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if known is not None and version == self._version:
                    return known
                if stat.S_IMODE(status.st_mode) & 0o077:
                    raise IllegalStateError(
                        f"the token keys in {self._path} can be read by other users: set its mode to 600"
                    )
                text = file.read().decode("ascii")
        except OSError as error:
            raise IllegalStateError(
                f"the token keys in {self._path} cannot be read: {error.strerror or type(error).__name__}"
            ) from error
        except UnicodeDecodeError:
            # The cause is not shown: it has the bytes.
            raise CorruptError(f"the token keys in {self._path} are not ASCII text") from None
        keys = parse_token_keys(text)
        self._version = version
        return keys


KEYS_FILE: Final = "HEADRACE_TOKEN_KEYS_FILE"
KEYS_SECRET: Final = "HEADRACE_TOKEN_KEYS_SECRET"
LIFE: Final = "HEADRACE_TOKEN_LIFE_S"

LIFE_DEFAULT_S: Final = 600
LIFE_MIN_S: Final = 60
LIFE_MAX_S: Final = 3_600


def token_key_source(environment: Mapping[str, str], clock: Clock) -> TokenKeySource | None:
    """The source of the keys, of which nothing is read yet. None if tokens are off.

    Raises:
        InvalidRequestError: a variable is missing or wrong; the message names it.
    """
    mode = environment.get(TOKENS_VARIABLE, "") or TOKENS_OFF
    if mode == TOKENS_OFF:
        return None
    if mode != TOKENS_REQUIRED:
        raise InvalidRequestError(f"{TOKENS_VARIABLE} is {mode!r}, expected {TOKENS_OFF} or {TOKENS_REQUIRED}")
    path, secret = environment.get(KEYS_FILE, ""), environment.get(KEYS_SECRET, "")
    if bool(path) == bool(secret):
        problem = "both are set" if path else "none is set"
        raise InvalidRequestError(
            f"{TOKENS_VARIABLE} is {TOKENS_REQUIRED}: set either {KEYS_FILE} or {KEYS_SECRET}; {problem}"
        )
    return TokenKeyFile(Path(path)) if path else TokenKeySecret(secret, clock)


def token_life_s(environment: Mapping[str, str]) -> int:
    """The lifetime of the tokens that a process issues, in seconds.

    Raises:
        InvalidRequestError: the variable is wrong.
    """
    value = environment.get(LIFE, "")
    if not value:
        return LIFE_DEFAULT_S
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and LIFE_MIN_S <= int(value) <= LIFE_MAX_S):
        raise InvalidRequestError(f"{LIFE} is {value!r}, expected {LIFE_MIN_S} to {LIFE_MAX_S} seconds")
    return int(value)


class InternalToken:
    """Mints the token in this process, and another one when less than a fifth of its time is left.

    `subject` names the caller in the logs of stores. The token is kept in memory only. Safe for many threads.
    """

    def __init__(self, keys: TokenKeySource, clock: Clock, life_s: int, subject: str) -> None:
        self._keys = keys
        self._clock = clock
        self._life_s = life_s
        self._caller = subject
        self._minted = _Minted("", "", 0, 0)

    def token(self) -> str:
        """Return a token that is valid for at least a fifth of its time.

        Raises:
            IllegalStateError, UnavailableError, CorruptError: the keys were never read, and cannot be read now.
        """
        minted, keys, now_s = self._minted, self._keys.keys(), self._clock.now_ms() / 1_000
        # Not before its time either: a clock that was set back must not make a token live longer.
        is_fresh = minted.issued_s - 1 <= now_s < minted.renewed_from_s
        # With its key a token is revoked at once, and the parts of a deployment must not wait for its end.
        if is_fresh and keys.verifying_key(minted.key_id, now_s) is not None:
            return minted.token
        issued_s, key = int(now_s), keys.signing_key(now_s)
        claims = TokenClaims(self._caller, issued_s, issued_s + self._life_s, {EVERYTHING: Access.ADMIN})
        # One assignment: other threads see the old token or this one.
        self._minted = _Minted(encode_token(claims, key), key.key_id, issued_s, issued_s + 0.8 * self._life_s)
        return self._minted.token


@dataclass(frozen=True, slots=True)
class _Minted:
    token: str = field(repr=False)
    key_id: str
    issued_s: int
    renewed_from_s: float
