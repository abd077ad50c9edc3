"""The request queue in an SQS FIFO queue, and the client of SQS."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from headrace.adapters.aws_refusals import AnswerKind, answer_kind, code_of, status_of
from headrace.model.errors import InvalidRequestError, ThrottledError, UnavailableError
from headrace.model.requests import Requester
from headrace.ports.clock import require_time
from headrace.ports.request_queue import CORRELATION_ID, REQUESTED_BY, current_requester

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageAttributeValueTypeDef


ID_CHARACTERS_MAX = 128
"""SQS's limit for group and deduplication ids."""

MESSAGE_BYTES_MAX = 256 * 1024


class SqsRequestQueue:
    """`ports.request_queue.RequestQueue` over one FIFO queue; the client is made and configured by the wiring."""

    def __init__(self, queue_url: str, client: SQSClient) -> None:
        self._queue_url = queue_url
        self._client = client

    def send(self, *, group: str, body: Mapping[str, Any], deduplication_id: str) -> None:
        text = json.dumps(dict(body), separators=(",", ":"), allow_nan=False)
        if len(text) > MESSAGE_BYTES_MAX:
            raise InvalidRequestError(f"a message has at most {MESSAGE_BYTES_MAX} bytes, not {len(text)}")
        require_time("sending a message")
        try:
            self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=text,
                MessageGroupId=short_id(group),
                MessageDeduplicationId=short_id(deduplication_id),
                MessageAttributes=_attributes(current_requester()),
            )
        except ClientError as error:
            code = code_of(error)
            if answer_kind(code, status_of(error)) is AnswerKind.THROTTLED:
                raise ThrottledError(f"the queue is throttled: {code}") from error
            raise UnavailableError(f"the queue did not take the message: {code}") from error
        except BotoCoreError as error:
            raise UnavailableError(f"the queue does not answer: {error}") from error


def _attributes(requester: Requester | None) -> dict[str, MessageAttributeValueTypeDef]:
    """SQS takes no empty values."""
    if requester is None:
        return {}
    texts = {REQUESTED_BY: requester.principal, CORRELATION_ID: requester.correlation_id}
    return {name: {"DataType": "String", "StringValue": text} for name, text in texts.items() if text}


def short_id(text: str) -> str:
    """`text`, or a hash of it where it is longer than SQS allows (names alone may have 506 characters).

    Two groups with one hash would only be worked on one after the other.
    """
    return text if len(text) <= ID_CHARACTERS_MAX else hashlib.sha256(text.encode()).hexdigest()


# The SQS client, with short time-outs and a few retries. Retries are safe: SQS drops messages of a known id.

CONNECT_TIMEOUT_S = 1
READ_TIMEOUT_S = 2
ATTEMPTS_MAX = 2
CALL_S_MAX = 7.0
"""Both attempts of one call with botocore's pause between them, of at most 1 s. It fits into what callers keep in
reserve, so that a call may begin as long as any time is left: what a tick or a long request sends is sent late."""


def sqs_client(session: Session | None = None) -> SQSClient:
    """A client for the region, credentials and endpoint of the standard AWS_* variables; safe for many threads.

    Clients that share a session share the models that it has read.
    """
    import botocore.session
    from botocore.config import Config

    config = Config(
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
        tcp_keepalive=True,
    )
    session = session or botocore.session.get_session()
    client: SQSClient = session.create_client("sqs", config=config)  # type: ignore[assignment]
    return client
