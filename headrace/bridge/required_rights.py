"""What a user must be granted for each rpc: one table, with the rights that Pravega's controller demands.

Differences from Pravega: names whose segments or tables clients address are checked as what they belong to, in every
rpc; a reader group needs READ for each stream that it reads; and replies that carry a token for the segment stores need
no more than READ, since the token has no more rights than the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.bridge import controller_pb2 as pb
from headrace.model.access import (
    Access,
    named_resource,
    reader_group_resource,
    scope_resource,
    stream_resource,
    table_resource,
)
from headrace.model.names import TABLE_SUFFIX

ROOT: Final = "prn::/"
"""The resource that has all scopes: their list, their creation and deletion."""


@dataclass(frozen=True, slots=True)
class Right:
    """A level of access to at least one of these resources, in the notation of grants."""

    access: Access
    resources: tuple[str, ...]


Rights = Callable[[Any], Iterable[Right]]
"""The rights that a request needs, all of them."""


def name_resources(scope: str, name: str) -> tuple[str, ...]:
    """What a name in a request may stand for, first what `named_resource` says.

    Clients ask for tables by their own names, too, and the Rust client has the state of a group in a table segment.
    """
    resource, table = named_resource(scope, name), name.removesuffix(TABLE_SUFFIX)
    if resource == stream_resource(scope, name):
        return resource, table_resource(scope, name)
    return (resource, reader_group_resource(scope, table)) if resource == table_resource(scope, table) else (resource,)


def _nothing(request: Any) -> Iterable[Right]:
    """The caller must be a user."""
    return ()


def _root(access: Access) -> Rights:
    return lambda request: (Right(access, (ROOT,)),)


def _scope(access: Access, scope: Callable[[Any], str]) -> Rights:
    return lambda request: (Right(access, (scope_resource(scope(request)),)),)


def _own_scope(access: Access) -> Rights:
    """For requests with a field `scope` that is a name."""
    return _scope(access, lambda request: request.scope)


def _stream(access: Access, info: Callable[[Any], pb.StreamInfo] = lambda request: request.streamInfo) -> Rights:
    """A stream by its name; also one of a reader group or of watermarks."""
    return lambda request: (Right(access, (named_resource(info(request).scope, info(request).stream),)),)


def _name(access: Access, info: Callable[[Any], pb.StreamInfo]) -> Rights:
    """As `_stream`, where the name may also be that of a table."""
    return lambda request: (Right(access, name_resources(info(request).scope, info(request).stream)),)


def _table(access: Access) -> Rights:
    return lambda request: (Right(access, (table_resource(request.scope, request.kvtName),)),)


def _group_with_streams(request: pb.ReaderGroupConfiguration) -> Iterable[Right]:
    """Pravega checks the scope only, although the group holds back the retention of all its streams."""
    yield Right(Access.READ, (scope_resource(request.scope),))
    for cut in (*request.startingStreamCuts, *request.endingStreamCuts):
        yield Right(Access.READ, (named_resource(cut.streamInfo.scope, cut.streamInfo.stream),))


def _itself(request: Any) -> Any:
    return request


READ, READ_UPDATE = Access.READ, Access.READ_UPDATE

REQUIRED_RIGHTS: Final[Mapping[str, Rights]] = {
    "getControllerServerList": _nothing,
    "createScope": _root(READ_UPDATE),
    "deleteScope": _root(READ_UPDATE),
    "deleteScopeRecursive": _root(READ_UPDATE),
    "checkScopeExists": _own_scope(READ),
    "listScopes": _root(READ),
    "createStream": _scope(READ_UPDATE, lambda request: request.streamInfo.scope),
    "getStreamConfiguration": _stream(READ, _itself),
    "checkStreamExists": _stream(READ, _itself),
    "listStreamsInScope": _scope(READ, lambda request: request.scope.scope),
    "listStreamsInScopeForTag": _scope(READ, lambda request: request.scope.scope),
    "updateStream": _stream(READ_UPDATE),
    "truncateStream": _stream(READ_UPDATE),
    "sealStream": _stream(READ_UPDATE, _itself),
    "deleteStream": _stream(READ_UPDATE, _itself),
    "scale": _stream(READ_UPDATE),
    "checkScale": _stream(READ),
    "createTransaction": _stream(READ_UPDATE),
    "pingTransaction": _stream(READ_UPDATE),
    "commitTransaction": _stream(READ_UPDATE),
    "abortTransaction": _stream(READ_UPDATE),
    "checkTransactionState": _stream(READ),
    "listCompletedTransactions": _stream(READ),
    "getCurrentSegments": _stream(READ, _itself),
    "getEpochSegments": _stream(READ),
    "getSegments": _stream(READ),
    "getSegmentsImmediatlyFollowing": _stream(READ),
    "getSegmentsImmediatelyFollowing": _stream(READ),
    "getSegmentsBetween": _stream(READ),
    "getURI": _name(READ, lambda request: request.streamInfo),
    "isSegmentValid": _stream(READ),
    "isStreamCutValid": _stream(READ),
    "listSubscribers": _stream(READ_UPDATE, _itself),
    "updateSubscriberStreamCut": _stream(READ_UPDATE, lambda request: request.streamCut.streamInfo),
    "getDelegationToken": _name(READ, _itself),
    "noteTimestampFromWriter": _stream(READ_UPDATE, lambda request: request.position.streamInfo),
    "removeWriter": _stream(READ_UPDATE, lambda request: request.stream),
    "createReaderGroup": _group_with_streams,
    "updateReaderGroup": _group_with_streams,
    "getReaderGroupConfig": _own_scope(READ),
    "deleteReaderGroup": _own_scope(READ),
    "createKeyValueTable": _own_scope(READ_UPDATE),
    "getCurrentSegmentsKeyValueTable": _table(READ),
    "listKeyValueTablesInScope": _scope(READ, lambda request: request.scope.scope),
    "getKeyValueTableConfiguration": _table(READ),
    "deleteKeyValueTable": _table(READ_UPDATE),
}
"""The rights by the name of the rpc."""
