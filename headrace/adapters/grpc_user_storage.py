"""The users of the gRPC bridge in a file, or in a secret of AWS Secrets Manager."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeVar

from headrace.adapters.token_key_editors import NEXT, move_current
from headrace.adapters.token_keys import secrets_client
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError, NotFoundError, UnavailableError
from headrace.ports.grpc_user_storage import NOT_ALLOWED

NOT_STORED: Final = "users_not_stored"
"""The code of the NotFoundError when there is no file or no secret."""

_TEXT_BYTES_MAX: Final = 1 << 20
"""Far above what the text may have, and not too much to be read."""

Result = TypeVar("Result")


class GrpcUserFile:
    """`ports.grpc_user_storage.GrpcUserStorage` over a file. What it writes only the owner of the file may read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: bytes | None = None
        """What was read or written last; None if there was no file."""

    def read(self) -> str:
        try:
            self._known = self._stored()
            if self._known is None:
                raise NotFoundError(f"there is no file {self._path} with users", code=NOT_STORED)
            return self._known.decode("utf-8")
        except OSError as error:
            self._refuse("read", error)
        except UnicodeDecodeError:
            # The cause is not shown: it has the bytes.
            raise IllegalStateError(f"the users in {self._path} are not UTF-8 text") from None

    def write(self, text: str) -> None:
        """A reader sees the old or the new text, never a part of it."""
        try:
            with self._locked():
                if self._stored() != self._known:
                    raise _changed(f"the users in {self._path}")
                self._replace(text.encode("utf-8"))
        except OSError as error:
            self._refuse("written", error)

    def _stored(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                return file.read(_TEXT_BYTES_MAX)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps two writers apart. The lock is on the directory, since the file is replaced."""
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _replace(self, content: bytes) -> None:
        descriptor, written = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, self._path)
        except BaseException:
            Path(written).unlink(missing_ok=True)
            raise
        self._known = content

    def _refuse(self, done: str, error: OSError) -> NoReturn:
        raise IllegalStateError(
            f"the users in {self._path} cannot be {done}: {error.strerror or type(error).__name__}"
        ) from error


class SecretsClient(Protocol):
    """The part of botocore's client that is used."""

    def get_secret_value(self, *, SecretId: str) -> dict[str, Any]: ...
    def put_secret_value(
        self, *, SecretId: str, ClientRequestToken: str, SecretString: str, VersionStages: list[str]
    ) -> dict[str, Any]: ...
    def create_secret(self, *, Name: str, ClientRequestToken: str, SecretString: str) -> dict[str, Any]: ...


class GrpcUserSecret:
    """`ports.grpc_user_storage.GrpcUserStorage` over a secret, under the AWS credentials of the process."""

    def __init__(self, secret_id: str, client: SecretsClient | None = None) -> None:
        """`client` None: one for the standard AWS_* variables, made at the first use."""
        self._secret_id = secret_id
        self._client = client
        self._known: str | None = None
        """The version that was read or written last."""

    def read(self) -> str:
        secret = self._call("read", lambda client: client.get_secret_value(SecretId=self._secret_id))
        self._known = secret.get("VersionId")
        text = secret.get("SecretString")
        if not isinstance(text, str):
            raise IllegalStateError(f"the secret {self._secret_id} has no text with users")
        return text

    def write(self, text: str) -> None:
        """Create the secret if it does not exist."""
        secret, known, version = self._secret_id, self._known, str(uuid.uuid4())
        try:
            self._call(
                "written",
                lambda client: client.put_secret_value(
                    SecretId=secret, ClientRequestToken=version, SecretString=text, VersionStages=[NEXT]
                ),
            )
        except NotFoundError:
            self._call(
                "created",
                lambda client: client.create_secret(Name=secret, ClientRequestToken=version, SecretString=text),
            )
        else:
            if not self._call("written", lambda client: move_current(client, secret, known, version)):
                raise _changed(f"the secret {secret} with the users")
        self._known = version

    def _call(self, done: str, call: Callable[[SecretsClient], Result]) -> Result:
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise InvalidRequestError(
                "secrets need botocore; to install it: pip install 'headrace[aws-auth]'"
            ) from error
        try:
            if self._client is None:
                self._client = secrets_client()
            return call(self._client)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code == "ResourceNotFoundException":
                raise NotFoundError(f"there is no secret {self._secret_id} with users", code=NOT_STORED) from error
            if code == "ResourceExistsException":
                raise _changed(f"the secret {self._secret_id} with the users") from error
            message = f"the secret {self._secret_id} with the users cannot be {done}: {code}"
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                raise UnavailableError(message) from error
            raise IllegalStateError(message, code=NOT_ALLOWED if code == "AccessDeniedException" else None) from error
        except BotoCoreError as error:
            raise UnavailableError(
                f"Secrets Manager does not answer for the secret {self._secret_id}: {type(error).__name__}"
            ) from error


def _changed(what: str) -> ConflictError:
    return ConflictError(f"another command has just changed {what}: try again")
