"""The DynamoDB client of the metadata store, with short time-outs and without botocore's retries.

botocore cannot distinguish a conditional write that never arrived from one whose answer was lost. Its second attempt of
a write that had succeeded would look like a conflict. `retries.py` can distinguish them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_dynamodb import DynamoDBClient

CONNECT_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 5.0
CONNECTIONS_MAX_DEFAULT = 32


def dynamodb_client(
    session: Session | None = None, *, connections_max: int = CONNECTIONS_MAX_DEFAULT
) -> DynamoDBClient:
    """A client for the region, credentials and endpoint of the standard AWS_* variables; safe for many threads.

    Clients of the same session share its loaded service models. botocore is imported here and not with the module, so
    that the import of wiring code stays cheap until a client is needed. boto3's resource layer is never imported.
    """
    import botocore.session
    from botocore.config import Config

    config = Config(
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=connections_max,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
    )
    session = session or botocore.session.get_session()
    client: DynamoDBClient = session.create_client("dynamodb", config=config)  # type: ignore[assignment]
    return client
