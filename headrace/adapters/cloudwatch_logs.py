"""A log stream of CloudWatch Logs to which one process appends lines that others have written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from headrace.adapters.aws_refusals import AnswerKind, answer_kind, code_of, status_of
from headrace.model.errors import ThrottledError, UnavailableError

CONNECT_TIMEOUT_S: Final = 2
READ_TIMEOUT_S: Final = 10
ATTEMPTS_MAX: Final = 3

_EXISTS: Final = "ResourceAlreadyExistsException"
_MISSING: Final = "ResourceNotFoundException"


class LogsClient(Protocol):
    """The part of botocore's client that is used."""

    def create_log_stream(self, *, logGroupName: str, logStreamName: str) -> Any: ...

    def put_log_events(
        self, *, logGroupName: str, logStreamName: str, logEvents: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Any]: ...


class LogStream:
    """The stream is created at the first `put`. `client` None: one for the standard AWS_* variables, made then, too."""

    def __init__(self, group: str, name: str, client: LogsClient | None = None) -> None:
        self._group = group
        self._name = name
        self._client = client
        self._is_created = False

    def put(self, lines: Sequence[Mapping[str, Any]]) -> int:
        """Append lines, each with its `timestamp` in milliseconds and its `message`, in the order of time.

        Returns how many of them the service refuses for their age. They are lost.

        Raises:
            UnavailableError, ThrottledError: no line was appended, or it is not known.
        """
        client = self._client = self._client or _logs_client()
        try:
            if not self._is_created:
                self._create(client)
            answer = client.put_log_events(logGroupName=self._group, logStreamName=self._name, logEvents=lines)
        except ClientError as error:
            code = code_of(error)
            if code == _MISSING:
                self._is_created = False  # It was deleted. The next call makes it again.
            if answer_kind(code, status_of(error)) is AnswerKind.THROTTLED:
                raise ThrottledError(f"CloudWatch Logs is throttled: {code}") from error
            raise UnavailableError(f"CloudWatch Logs did not take the lines: {code}") from error
        except BotoCoreError as error:
            raise UnavailableError(f"CloudWatch Logs does not answer: {error}") from error
        return _refused(answer.get("rejectedLogEventsInfo") or {}, len(lines))

    def _create(self, client: LogsClient) -> None:
        try:
            client.create_log_stream(logGroupName=self._group, logStreamName=self._name)
        except ClientError as error:
            if code_of(error) != _EXISTS:
                raise
        self._is_created = True


def _refused(info: Mapping[str, int], count: int) -> int:
    """The service names the ends of what it refuses: older ones have indexes below, newer ones from this one on."""
    too_old = max(info.get("tooOldLogEventEndIndex", 0), info.get("expiredLogEventEndIndex", 0))
    return too_old + count - info.get("tooNewLogEventStartIndex", count)


def _logs_client() -> LogsClient:
    import botocore.session
    from botocore.config import Config

    config = Config(
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
    )
    client: LogsClient = botocore.session.get_session().create_client("logs", config=config)  # type: ignore[assignment]
    return client
