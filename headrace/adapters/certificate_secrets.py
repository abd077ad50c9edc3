"""The secrets of certificates in AWS Secrets Manager."""

from __future__ import annotations

from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from headrace.adapters.aws_refusals import AnswerKind, answer_kind, code_of, status_of
from headrace.certificate_names import secret_name
from headrace.model.errors import HeadraceError, IllegalStateError, ThrottledError, UnavailableError


class SecretsClient(Protocol):
    """The part of botocore's client that is used."""

    def get_secret_value(self, *, SecretId: str) -> dict[str, Any]: ...
    def put_secret_value(self, *, SecretId: str, SecretString: str) -> dict[str, Any]: ...


class SecretsManagerCertificates:
    """`ports.certificate_secrets.CertificateSecrets` over a secret for each label, which the deployment has made."""

    def __init__(self, client: SecretsClient) -> None:
        self._client = client

    def read(self, label: str) -> str:
        name = secret_name(label)
        try:
            text = self._client.get_secret_value(SecretId=name).get("SecretString")
        except (ClientError, BotoCoreError) as error:
            raise _refusal(name, "read", error) from error
        return text if isinstance(text, str) else ""

    def write(self, label: str, text: str) -> None:
        name = secret_name(label)
        try:
            self._client.put_secret_value(SecretId=name, SecretString=text)
        except (ClientError, BotoCoreError) as error:
            # Not as the cause: botocore's message of a refused parameter may show it.
            raise _refusal(name, "written", error) from None


def _refusal(name: str, done: str, error: ClientError | BotoCoreError) -> HeadraceError:
    if isinstance(error, BotoCoreError):
        return UnavailableError(f"Secrets Manager does not answer for the secret {name}: {type(error).__name__}")
    code = code_of(error)
    message = f"the secret {name} cannot be {done}: {code}"
    match answer_kind(code, status_of(error)):
        case AnswerKind.THROTTLED:
            return ThrottledError(message)
        case AnswerKind.UNAVAILABLE:
            return UnavailableError(message)
        case _:
            return IllegalStateError(message)
