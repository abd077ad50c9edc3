"""Requests that run as workflows: their kinds, the kinds of resources that they change, and their identity."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ResourceKind(StrEnum):
    """The kinds of resources that a request changes. The values are part of stored keys and of messages."""

    STREAM = "stream"
    SCOPE = "scope"
    READER_GROUP = "reader-group"
    KEY_VALUE_TABLE = "key-value-table"


class RequestKind(StrEnum):
    """Operations that run as workflows behind a request queue."""

    CREATE_STREAM = "create_stream"
    COMMIT_TRANSACTIONS = "commit_transactions"
    UPDATE_STREAM = "update_stream"
    TRUNCATE_STREAM = "truncate_stream"
    SCALE_STREAM = "scale_stream"
    SEAL_STREAM = "seal_stream"
    FREEZE_STREAM = "freeze_stream"
    UNFREEZE_STREAM = "unfreeze_stream"
    DELETE_STREAM = "delete_stream"
    DELETE_SCOPE = "delete_scope"
    CREATE_READER_GROUP = "create_reader_group"
    UPDATE_READER_GROUP = "update_reader_group"
    DELETE_READER_GROUP = "delete_reader_group"
    CREATE_KEY_VALUE_TABLE = "create_key_value_table"
    DELETE_KEY_VALUE_TABLE = "delete_key_value_table"

    @property
    def resource(self) -> ResourceKind:
        """The kind of resource that such a request changes. Intents and messages do not store it, as it follows."""
        return _OTHER_RESOURCES.get(self, ResourceKind.STREAM)


_OTHER_RESOURCES = {
    RequestKind.DELETE_SCOPE: ResourceKind.SCOPE,
    RequestKind.CREATE_READER_GROUP: ResourceKind.READER_GROUP,
    RequestKind.UPDATE_READER_GROUP: ResourceKind.READER_GROUP,
    RequestKind.DELETE_READER_GROUP: ResourceKind.READER_GROUP,
    RequestKind.CREATE_KEY_VALUE_TABLE: ResourceKind.KEY_VALUE_TABLE,
    RequestKind.DELETE_KEY_VALUE_TABLE: ResourceKind.KEY_VALUE_TABLE,
}


class PendingRequest(msgspec.Struct, frozen=True):
    """The running operation; `request_id` is never reused for a resource of the same kind and name."""

    kind: RequestKind
    request_id: str


class Requester(msgspec.Struct, frozen=True):
    """Who asked for a request: the principal, and the id that ties the call to its audit line.

    The principal is the ARN of an IAM principal, a user of the gRPC bridge as `grpc:<name>`, a function that works on
    its own account as `headrace-function/<name>`, or `local`.
    """

    principal: str
    correlation_id: str


def scoped_resource_name(resource: ResourceKind, scope: str, name: str) -> str:
    """The name for message groups and the choice of buckets: `scope/name`, or `scope` for a scope (`name` is "")."""
    return scope if resource is ResourceKind.SCOPE else f"{scope}/{name}"
