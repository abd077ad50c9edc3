"""The keys of delegation tokens: their settings, which every process of a deployment reads, and where the keys are."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.codec.delegation_tokens import (
    KEY_BYTES,
    TokenKeys,
    new_key_id,
    parse_token_keys,
    stored_keys,
    token_keys_text,
    with_new_key,
    without_key,
)
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
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


# The settings of delegation tokens, which every process of a deployment reads from its environment.
#
# | variable | meaning | default |
# |---|---|---|
# | HEADRACE_TOKENS | off: stores look at no token; required: each request needs one | off |
# | HEADRACE_TOKEN_KEYS_FILE | path of the keys' JSON text, of mode 600 | one of both is required |
# | HEADRACE_TOKEN_KEYS_SECRET | id or ARN of a secret with that text | with `required` |
# | HEADRACE_TOKEN_LIFE_S | lifetime of a token, 60 to 3600 s | 600 |

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
                found = os.fstat(file.fileno())
                version = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
                if known is not None and version == self._version:
                    return known
                if stat.S_IMODE(found.st_mode) & 0o077:
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


TOKENS: Final = "HEADRACE_TOKENS"
KEYS_FILE: Final = "HEADRACE_TOKEN_KEYS_FILE"
KEYS_SECRET: Final = "HEADRACE_TOKEN_KEYS_SECRET"
LIFE: Final = "HEADRACE_TOKEN_LIFE_S"

OFF: Final = "off"
REQUIRED: Final = "required"

LIFE_DEFAULT_S: Final = 600
LIFE_MIN_S: Final = 60
LIFE_MAX_S: Final = 3_600


def token_key_source(environment: Mapping[str, str], clock: Clock) -> TokenKeySource | None:
    """The source of the keys, of which nothing is read yet. None if tokens are off.

    Raises:
        InvalidRequestError: a variable is missing or wrong; the message names it.
    """
    mode = environment.get(TOKENS, "") or OFF
    if mode == OFF:
        return None
    if mode != REQUIRED:
        raise InvalidRequestError(f"{TOKENS} is {mode!r}, expected {OFF} or {REQUIRED}")
    path, secret = environment.get(KEYS_FILE, ""), environment.get(KEYS_SECRET, "")
    if bool(path) == bool(secret):
        found = "both are set" if path else "none is set"
        raise InvalidRequestError(f"{TOKENS} is {REQUIRED}: set either {KEYS_FILE} or {KEYS_SECRET}; {found}")
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


# Changes of the token keys where they are stored: in a file, or in a secret of AWS Secrets Manager.
#
# A change reads the keys and replaces them as a whole, unless another process has changed them meanwhile; then it
# begins again. So no change is lost. Messages have nothing of the keys.

EDIT_ATTEMPTS_MAX: Final = 5
"""Of a change of a secret. Each failure means that another process has just changed it."""

_CURRENT: Final = "AWSCURRENT"
NEXT: Final = "HEADRACE_NEXT"
"""The stage of a version that is about to become the current one."""
_KEY_ID_SUFFIX_BYTES: Final = 3
_NOT_ALLOWED: Final = frozenset({"AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"})

Change = Callable[[TokenKeys | None], TokenKeys]
"""Makes the new keys from those of before, None if there are none yet. It may be called again."""


class TokenKeyEditor(Protocol):
    """Reads and changes the stored keys."""

    def read(self) -> TokenKeys | None:
        """Raises CorruptError if what is stored is not token keys."""
        ...

    def change(self, change: Change) -> TokenKeys:
        """Store what `change` makes of the current keys, and return it. Raises what `change` raises."""
        ...


def rotate(editor: TokenKeyEditor, clock: Clock, token_life_s: int) -> TokenKeys:
    """Add a random key. Raises as `with_new_key` and the editor do."""
    now_s, secret = clock.now_ms() / 1_000, secrets.token_bytes(KEY_BYTES)
    key_id = new_key_id(now_s, secrets.token_hex(_KEY_ID_SUFFIX_BYTES))
    return editor.change(lambda keys: with_new_key(keys, key_id, secret, now_s, token_life_s))


def revoke(editor: TokenKeyEditor, key_id: str, clock: Clock) -> TokenKeys:
    """Remove a key, and add a random one if none would sign. Raises as `without_key` and the editor do."""
    now_s, secret = clock.now_ms() / 1_000, secrets.token_bytes(KEY_BYTES)
    new_id = new_key_id(now_s, secrets.token_hex(_KEY_ID_SUFFIX_BYTES))
    return editor.change(lambda keys: without_key(keys, key_id, new_id, secret, now_s))


class TokenKeyFileEditor:
    """A file of mode 600. A lock file next to it keeps two changes apart; readers need no lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> TokenKeys | None:
        """None if there is no such file. Raises IllegalStateError if it cannot be read, or others can read it."""
        try:
            with self._path.open("rb") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise IllegalStateError(
                        f"the token keys in {self._path} can be read by other users: set its mode to 600"
                    )
                text = file.read().decode("ascii")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise IllegalStateError(f"the token keys in {self._path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise CorruptError(f"the token keys in {self._path} are not ASCII text") from None
        return stored_keys(text)

    def change(self, change: Change) -> TokenKeys:
        """Raises IllegalStateError if the file cannot be written."""
        try:
            with self._locked():
                keys = change(self.read())
                self._replace(token_keys_text(keys))
        except OSError as error:
            raise IllegalStateError(f"the token keys in {self._path} cannot be written: {error.strerror}") from error
        return keys

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # Not the file itself: it is replaced, and a lock on the file of before would exclude no process.
        with self._path.with_name(f"{self._path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, text: str) -> None:
        temporary = self._path.with_name(f"{self._path.name}.new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


class TokenKeySecretEditor:
    """A secret, whose current version is moved from the one that was read: that fails if another one is current.

    The caller's AWS credentials must allow GetSecretValue, DescribeSecret, PutSecretValue and UpdateSecretVersionStage.
    """

    def __init__(self, secret_id: str, client: Any) -> None:
        """`client` is botocore's for Secrets Manager."""
        self._secret_id = secret_id
        self._client = client

    def read(self) -> TokenKeys | None:
        """Raises NotFoundError if there is no such secret."""
        with self._errors():
            return self._current()[1]

    def change(self, change: Change) -> TokenKeys:
        """Raises ConflictError if other processes changed the secret all the time."""
        for _ in range(EDIT_ATTEMPTS_MAX):
            with self._errors():
                version, before = self._current()
            keys = change(before)
            with self._errors():
                if self._put(version, token_keys_text(keys)):
                    return keys
        raise ConflictError(f"others change the secret {self._secret_id} all the time: try again")

    def _current(self) -> tuple[str, TokenKeys | None]:
        found = self._client.get_secret_value(SecretId=self._secret_id, VersionStage=_CURRENT)
        text = found.get("SecretString")
        if not isinstance(text, str):
            raise CorruptError(f"the secret {self._secret_id} has no text")
        return str(found["VersionId"]), stored_keys(text)

    def _put(self, before: str, text: str) -> bool:
        """Make the text current if the version `before` is; return whether it was."""
        version = str(uuid.uuid4())
        # Without a stage of its own the version would become the current one. The next change moves this stage.
        self._client.put_secret_value(
            SecretId=self._secret_id, ClientRequestToken=version, SecretString=text, VersionStages=[NEXT]
        )
        return move_current(self._client, self._secret_id, before, version)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code == "ResourceNotFoundException":
                raise NotFoundError(f"there is no secret {self._secret_id}", code="no_such_secret") from error
            kind = UnauthorizedError if code in _NOT_ALLOWED else UnavailableError
            raise kind(f"Secrets Manager refuses a call for the secret {self._secret_id}: {code}") from error
        except BotoCoreError as error:
            raise UnavailableError(
                f"Secrets Manager does not answer for the secret {self._secret_id}: {type(error).__name__}"
            ) from error


def move_current(client: Any, secret_id: str, before: str | None, version: str) -> bool:
    """Make `version` of a secret current if the version `before` is; return whether it is current now.

    `before` None: if no version is current. Raises botocore's errors.
    """
    from botocore.exceptions import ClientError

    try:
        client.update_secret_version_stage(
            SecretId=secret_id,
            VersionStage=_CURRENT,
            MoveToVersionId=version,
            **({} if before is None else {"RemoveFromVersionId": before}),
        )
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in ("InvalidParameterException", "InvalidRequestException"):
            raise
        # A repetition of a call whose answer was lost is refused, too, although the call has succeeded.
        stages = client.describe_secret(SecretId=secret_id)["VersionIdsToStages"]
        return _CURRENT in stages.get(version, ())
    return True
