"""pynamodb's connection to one table, through a botocore client that the caller made.

pynamodb makes clients and sessions of its own, with its own time-outs and retries, and makes another client whenever
the one it has is without credentials. Here it never does: settings, credentials and retries stay where they are decided
(`client.py`, `retries.py`).
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
    """Sends what pynamodb builds through `client`; as safe for many threads as the client is."""

    def __init__(self, client: DynamoDBClient) -> None:
        super().__init__()
        self._given_client: Any = client

    @property
    def client(self) -> Any:
        return self._given_client

    def dispatch(self, operation_name: str, operation_kwargs: dict[str, Any]) -> Any:
        """Send the request as it is, and let botocore's error through as it is.

        pynamodb's own method asks DynamoDB for consumed capacity in each answer, writes whole items to the debug log,
        and raises an error without the status and the item that were found.
        """
        return getattr(self._given_client, xform_name(operation_name))(**operation_kwargs)

    def get_operation_kwargs(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """As pynamodb's, but a condition that does not hold brings the item that was found.

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
