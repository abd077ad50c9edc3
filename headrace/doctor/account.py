"""The AWS account of a deployment, as far as its checks read it. Needs botocore (extra `headrace[aws-auth]`)."""

from __future__ import annotations

import os
from typing import Any, Final, Protocol

from headrace.model.errors import InvalidRequestError

ATTEMPTS_MAX: Final = 3
TIMEOUT_S: Final = 10


class CannotLookError(Exception):
    """The account does not answer a question; the message says why."""


class NotThereError(Exception):
    """What the question is about does not exist."""


class Account(Protocol):
    """Answers questions about one account in one Region. No question changes anything."""

    @property
    def region(self) -> str: ...

    def ask(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer of an operation, by its name in Python, such as `describe_table`.

        Raises:
            CannotLookError: the credentials do not allow it, or the service does not answer.
            NotThereError: there is no such resource.
        """
        ...

    def ask_all(self, service: str, operation: str, items: str, **parameters: Any) -> list[Any]:
        """The elements of the list `items` in all pages of an answer. Raises as `ask`."""
        ...


_NOT_THERE: Final = frozenset({
    "ClusterNotFoundException",
    "NoSuchBucket",
    "NoSuchLifecycleConfiguration",
    "NoSuchPublicAccessBlockConfiguration",
    "ResourceNotFoundException",
    "TableNotFoundException",
})  # fmt: skip


class BotocoreAccount:
    """The account of the AWS credentials of this process."""

    def __init__(self, region: str | None = None) -> None:
        """Without `region`, that of the environment is used (AWS_REGION), then that of the profile.

        Raises:
            InvalidRequestError: botocore is not installed, no region is configured, or the configuration of AWS is
                not valid.
        """
        try:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.session import Session
        except ImportError as error:
            raise InvalidRequestError("to examine the AWS account, install headrace[aws-auth]") from error
        self._session = Session()
        try:
            # Reads the file and the profile, too, which a client needs for its credentials.
            configured = self._session.get_config_variable("region")
        except BotoCoreError as error:
            raise InvalidRequestError(f"the configuration of AWS is not valid: {error}") from error
        name = region or os.environ.get("AWS_REGION") or configured
        if not name:
            raise InvalidRequestError("no AWS region is configured: set AWS_REGION")
        self._region = str(name)
        self._config = Config(
            connect_timeout=TIMEOUT_S,
            read_timeout=TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        )
        self._clients: dict[str, Any] = {}

    @property
    def region(self) -> str:
        return self._region

    def client(self, service: str) -> Any:
        """The client of a service, which is made once."""
        if service not in self._clients:
            self._clients[service] = self._session.create_client(service, region_name=self._region, config=self._config)
        return self._clients[service]

    def ask(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return dict(self._asked(lambda client: getattr(client, operation)(**parameters), service))

    def ask_all(self, service: str, operation: str, items: str, **parameters: Any) -> list[Any]:
        def read(client: Any) -> list[Any]:
            pages = client.get_paginator(operation).paginate(**parameters)
            return [item for page in pages for item in page.get(items, ())]

        return list(self._asked(read, service))

    def _asked(self, question: Any, service: str) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return question(self.client(service))
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _NOT_THERE:
                raise NotThereError(code) from error
            raise CannotLookError(f"{service} answered {code}") from error
        except (BotoCoreError, ValueError) as error:  # ValueError: a configured endpoint is not a URL
            raise CannotLookError(f"{service} was not asked: {error}") from error
