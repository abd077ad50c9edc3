"""The delegation tokens in replies: what a user may do with the segments of the stream or table in a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.required_rights import TABLE_SUFFIX, name_resources
from headrace.codec.grpc_users import User
from headrace.controller.services.delegation_tokens import DelegationTokens
from headrace.controller.services.key_value_tables import KeyValueTableService
from headrace.model.access import Access, stream_resource
from headrace.model.errors import NotFoundError, UnauthorizedError
from headrace.model.names import check_segment_name_part

_READER_GROUP_PREFIX: Final = "_RG"

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


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """A token, empty in a deployment without tokens, and what it grants by resource."""

    text: str
    grants: Mapping[str, Access]


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

    def token(self, user: User, request: TokenRequest) -> ReplyToken:
        """Raises UnauthorizedError: the user has less than the level that was asked for, for each possible meaning."""
        scope = check_segment_name_part("scope", request.scope)
        name = check_segment_name_part("stream", request.name)
        grants: dict[str, Access] = {}
        for resource, most in self._access(user, scope, name).items():
            level = most if request.level is None else request.level
            if Access.NONE < level <= most:
                grants[resource] = level
        if grants.get(stream_resource(scope, name)) is Access.READ_UPDATE:
            # Pravega has one level for both: a user who may write may also call truncateStream and sealStream.
            grants = {one: Access.MANAGE if level is Access.READ_UPDATE else level for one, level in grants.items()}
        if not grants:
            wanted = (request.level or Access.READ).name
            raise UnauthorizedError(f"user {user.name} has no {wanted} on {name_resources(scope, name)[0]}")
        return ReplyToken(self._tokens.issue(user.name, grants).token, grants)

    def _access(self, user: User, scope: str, name: str) -> dict[str, Access]:
        """What the user may do with the segments of a name, by their resource.

        Readers write to the state of their group, so that READ on a group opens it for writing, as in Pravega. The
        state of a Rust client's group is a table segment. If there is a table of the name of the group, this segment
        is the table's: a right on the group does not count.
        """
        found = {one: user.access(one) for one in name_resources(scope, name)}
        if name.startswith(_READER_GROUP_PREFIX):
            return {group: Access.READ_UPDATE for group, access in found.items() if access >= Access.READ}
        if name.endswith(TABLE_SUFFIX) and len(found) == 2:
            (table, of_table), (_, of_group) = found.items()
            is_of_group = of_group >= Access.READ and not self._has_table(scope, name.removesuffix(TABLE_SUFFIX))
            return {table: Access.READ_UPDATE if is_of_group else of_table}
        return found

    def _has_table(self, scope: str, table: str) -> bool:
        try:
            self._tables.get_table(scope, table)
        except NotFoundError:
            return False
        return True
