"""The delegation tokens in replies: what a user may do with the segments of the stream or table in a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.required_rights import name_resources
from headrace.codec.grpc_users import User
from headrace.controller.services.delegation_tokens import DelegationTokens
from headrace.controller.services.key_value_tables import KeyValueTableService
from headrace.model.access import Access, reader_group_resource, table_resource
from headrace.model.errors import NotFoundError, UnauthorizedError
from headrace.model.names import check_segment_name_part

_READER_GROUP_PREFIX: Final = "_RG"
_TABLE_SUFFIX: Final = "_kvtable"

_LEVELS: Final[Mapping[int, Access]] = {
    pb.StreamInfo.READ: Access.READ,
    pb.StreamInfo.WRITE: Access.READ_UPDATE,
    pb.StreamInfo.READ_WRITE: Access.READ_UPDATE,
}
"""Any other operation asks for the highest level that the user has. The Rust client never names one."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What a token is for. Level None: the highest that the user has."""

    scope: str
    name: str
    level: Access | None


def _of_info(info: pb.StreamInfo) -> TokenRequest | None:
    """Newer clients name the operation NONE where they ask for the token with another call."""
    if info.accessOperation == pb.StreamInfo.NONE:
        return None
    return TokenRequest(info.scope, info.stream, _LEVELS.get(info.accessOperation))


def _of_stream(request: Any) -> TokenRequest | None:
    return _of_info(request.streamInfo)


def _of_token_call(request: pb.StreamInfo) -> TokenRequest:
    """Here the token is the whole answer: with NONE, Pravega gives the least."""
    return _of_info(request) or TokenRequest(request.scope, request.stream, Access.READ)


def _of_table(request: pb.KeyValueTableInfo) -> TokenRequest:
    return TokenRequest(request.scope, request.kvtName, None)


TOKEN_REPLIES: Final[Mapping[str, Callable[[Any], TokenRequest | None]]] = {
    "getDelegationToken": _of_token_call,
    "getCurrentSegments": _of_info,
    "getEpochSegments": _of_stream,
    "getSegments": _of_stream,
    "getSegmentsImmediatlyFollowing": _of_stream,
    "getSegmentsImmediatelyFollowing": _of_stream,
    "getSegmentsBetween": _of_stream,
    "createTransaction": _of_stream,
    "getCurrentSegmentsKeyValueTable": _of_table,
}
"""The rpcs whose replies have a field `delegationToken`; None: this reply needs no token."""


class ReplyTokens:
    """Issues tokens with no more rights than the user has. It blocks, and is called in threads."""

    def __init__(self, tokens: DelegationTokens, tables: KeyValueTableService) -> None:
        self._tokens = tokens
        self._tables = tables

    def token(self, user: User, request: TokenRequest) -> str:
        """Raises UnauthorizedError: the user has less than the level that was asked for, for each possible meaning."""
        scope = check_segment_name_part("scope", request.scope)
        name = check_segment_name_part("stream", request.name)
        grants: dict[str, Access] = {}
        for resource in name_resources(scope, name):
            most = self._access(user, scope, name, resource)
            level = most if request.level is None else request.level
            if Access.NONE < level <= most:
                grants[resource] = level
        if not grants:
            wanted = (request.level or Access.READ).name
            raise UnauthorizedError(f"user {user.name} has no {wanted} on {name_resources(scope, name)[0]}")
        return self._tokens.issue(user.name, grants).token

    def _access(self, user: User, scope: str, name: str, resource: str) -> Access:
        """What the user may do with the segments of a resource.

        Readers write to the state of their group, so that READ on a group opens it for writing, as in Pravega. Segment
        names do not tell the state of a Rust client's group from a key-value table of the same name. Such a table must
        not be written by a user who may only read it.
        """
        found = user.access(resource)
        is_group = name.startswith(_READER_GROUP_PREFIX)
        group = name.removeprefix(_READER_GROUP_PREFIX) if is_group else name.removesuffix(_TABLE_SUFFIX)
        if found is not Access.READ or resource != reader_group_resource(scope, group):
            return found
        may_write_table = user.access(table_resource(scope, group)) >= Access.READ_UPDATE
        return Access.READ_UPDATE if may_write_table or not self._has_table(scope, group) else Access.READ

    def _has_table(self, scope: str, table: str) -> bool:
        try:
            self._tables.get_table(scope, table)
        except NotFoundError:
            return False
        return True
