"""The DynamoDB client of the metadata store, with short time-outs and without botocore's retries.

botocore cannot distinguish a conditional write that never arrived from one whose answer was lost. Its second attempt of
a write that had succeeded would look like a conflict. `retries.py` can distinguish them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from botocore import xform_name
from pynamodb.connection.base import Connection, MetaTable
from pynamodb.connection.table import TableConnection
from pynamodb.constants import ALL_OLD

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_dynamodb import DynamoDBClient

# pynamodb's connection to one table, through a botocore client of the caller.
#
# By default pynamodb creates its own clients, with its own time-outs and retries. With this connection it never does:
# the settings and credentials come from `client.py`, the retries from `retries.py`.


class ClientConnection(Connection):
    """Sends pynamodb's requests through `client`; as safe for many threads as the client is."""

    def __init__(self, client: DynamoDBClient) -> None:
        super().__init__()
        self._given_client: Any = client

    @property
    def client(self) -> Any:
        return self._given_client

    def dispatch(self, operation_name: str, operation_kwargs: dict[str, Any]) -> Any:
        """Send a request; botocore's error propagates unchanged.

        pynamodb's own method requests the consumed capacity in each answer, writes whole items to the debug log, and
        raises errors without the HTTP status and the item that was found.
        """
        return getattr(self._given_client, xform_name(operation_name))(**operation_kwargs)

    def get_operation_kwargs(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """As pynamodb's method, but the error of a failed condition will contain the item that was found.

        pynamodb has a parameter for this only for some of the writes of a transaction.
        """
        if options.get("condition") is not None:
            options["return_values_on_condition_failure"] = ALL_OLD
        return super().get_operation_kwargs(*arguments, **options)


class ClientTableConnection(TableConnection):
    """A `ClientConnection` for one table."""

    def __init__(self, meta_table: MetaTable, client: DynamoDBClient) -> None:  # its parent would make a connection
        self.table_name = meta_table.table_name
        self.connection = ClientConnection(client)
        self.connection.add_meta_table(meta_table)


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
