"""The SQS client, with short time-outs and a few retries. Retries are safe: SQS drops messages of a known id."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_sqs import SQSClient

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
