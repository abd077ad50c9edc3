"""pynamodb's connection to one table, through a botocore client of the caller.

By default pynamodb creates its own clients, with its own time-outs and retries. With this connection it never does: the
settings and credentials come from `client.py`, the retries from `retries.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore import xform_name
from pynamodb.connection.base import Connection, MetaTable
from pynamodb.connection.table import TableConnection
from pynamodb.constants import ALL_OLD

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


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
