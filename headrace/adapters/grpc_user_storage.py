"""The users of the gRPC bridge in a file, or in a secret of AWS Secrets Manager."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError, UnavailableError

CONNECT_TIMEOUT_S: Final = 2
READ_TIMEOUT_S: Final = 3
ATTEMPTS_MAX: Final = 2

NOT_STORED: Final = "users_not_stored"
"""The code of the NotFoundError when there is no file or no secret."""

_TEXT_BYTES_MAX: Final = 1 << 20
"""Far above what the text may have, and not too much to be read."""


class GrpcUserFile:
    """`ports.grpc_user_storage.GrpcUserStorage` over a file. What it writes only the owner of the file may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(_TEXT_BYTES_MAX).decode("utf-8")
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no file {self._path} with users", code=NOT_STORED) from error
        except OSError as error:
            self._refuse("read", error)
        except UnicodeDecodeError:
            # The cause is not shown: it has the bytes.
            raise IllegalStateError(f"the users in {self._path} are not UTF-8 text") from None

    def write(self, text: str) -> None:
        """A reader sees the old or the new text, never a part of it."""
        try:
            descriptor, written = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(text.encode("utf-8"))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(written, self._path)
            except BaseException:
                Path(written).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._refuse("written", error)

    def _refuse(self, done: str, error: OSError) -> NoReturn:
        raise IllegalStateError(
            f"the users in {self._path} cannot be {done}: {error.strerror or type(error).__name__}"
        ) from error


class SecretsClient(Protocol):
    """The part of botocore's client that is used."""

    def get_secret_value(self, *, SecretId: str) -> dict[str, Any]: ...
    def put_secret_value(self, *, SecretId: str, SecretString: str) -> dict[str, Any]: ...
    def create_secret(self, *, Name: str, SecretString: str) -> dict[str, Any]: ...


class GrpcUserSecret:
    """`ports.grpc_user_storage.GrpcUserStorage` over a secret, under the AWS credentials of the process."""

    def __init__(self, secret_id: str, client: SecretsClient | None = None) -> None:
        """`client` None: one for the standard AWS_* variables, made at the first use."""
        self._secret_id = secret_id
        self._client = client

    def read(self) -> str:
        found = self._call("read", lambda client: client.get_secret_value(SecretId=self._secret_id))
        text = found.get("SecretString")
        if not isinstance(text, str):
            raise IllegalStateError(f"the secret {self._secret_id} has no text with users")
        return text

    def write(self, text: str) -> None:
        """Create the secret if it does not exist. Of two writers at the same time, the later one wins."""
        try:
            self._call("written", lambda client: client.put_secret_value(SecretId=self._secret_id, SecretString=text))
        except NotFoundError:
            self._call("created", lambda client: client.create_secret(Name=self._secret_id, SecretString=text))

    def _call(self, done: str, call: Callable[[SecretsClient], dict[str, Any]]) -> dict[str, Any]:
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
            kind = (
                UnavailableError
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500
                else (IllegalStateError)
            )
            raise kind(f"the secret {self._secret_id} with the users cannot be {done}: {code}") from error
        except BotoCoreError as error:
            raise UnavailableError(
                f"Secrets Manager does not answer for the secret {self._secret_id}: {type(error).__name__}"
            ) from error


def secrets_client() -> SecretsClient:
    """A client for the region, credentials and endpoint of the standard AWS_* variables."""
    import botocore.session
    from botocore.config import Config

    config = Config(
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
    )
    session: Any = botocore.session.get_session()
    client: SecretsClient = session.create_client("secretsmanager", config=config)
    return client
