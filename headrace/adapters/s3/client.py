"""The S3 client of tier 2: time-outs, retries and the signature version that binds a Range header to a link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_s3 import S3Client

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 10.0
"""Of silence on the connection, not of a whole transfer."""

ATTEMPTS_MAX = 4
"""Of one request, by botocore with jittered exponential back-off: S3's 503s and 500s are ordinary."""

CONNECTIONS_MAX_DEFAULT = 32


def s3_client(session: Session | None = None, *, connections_max: int = CONNECTIONS_MAX_DEFAULT) -> S3Client:
    """A client for the region, credentials and endpoint of the standard AWS_* variables; safe for many threads.

    Clients that share a session share the models that it has read.
    """
    import botocore.session
    from botocore.config import Config

    config = Config(
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        # Without this, some regions still presign with version 2, which leaves the Range header out.
        signature_version="s3v4",
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=connections_max,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
        tcp_keepalive=True,
        # Objects are sent with a CRC-32C and over TLS; a SHA-256 of every body would double the cost of an upload.
        s3={"payload_signing_enabled": False},
    )
    session = session or botocore.session.get_session()
    client: S3Client = session.create_client("s3", config=config)  # type: ignore[assignment]
    return client
