"""Changes of the token keys where they are stored: in a file, or in a secret of AWS Secrets Manager.

A change reads the keys and replaces them as a whole, unless another process has changed them meanwhile; then it begins
again. So no change is lost. Messages have nothing of the keys.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from headrace.codec.delegation_tokens import (
    KEY_BYTES,
    TokenKeys,
    new_key_id,
    stored_keys,
    token_keys_text,
    with_new_key,
    without_key,
)
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    IllegalStateError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.ports.clock import Clock

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
        secret = self._client.get_secret_value(SecretId=self._secret_id, VersionStage=_CURRENT)
        text = secret.get("SecretString")
        if not isinstance(text, str):
            raise CorruptError(f"the secret {self._secret_id} has no text")
        return str(secret["VersionId"]), stored_keys(text)

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
