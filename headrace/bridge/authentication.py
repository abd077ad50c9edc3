"""Authenticates every call, checks its rights, and puts into replies what the user may see and do.

It is used when the deployment requires tokens. Without it, every client may perform every operation.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.audit import ANYONE, call_under_way
from headrace.bridge.credentials import Credentials
from headrace.bridge.health import CHECK
from headrace.bridge.required_rights import REQUIRED_RIGHTS, name_resources
from headrace.bridge.status_codes import code_of
from headrace.codec.grpc_users import User
from headrace.controller.services.key_value_table_service import KeyValueTableService
from headrace.controller.services.token_issue import DelegationTokens
from headrace.model.access import Access, named_resource, scope_resource, stream_resource, table_resource
from headrace.model.errors import HeadraceError, InvalidRequestError, NotFoundError, UnauthorizedError
from headrace.model.names import TABLE_SUFFIX, check_segment_name_part

# The delegation tokens in replies: what a user may do with the segments of the stream or table in a request.

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
            grants = {
                resource: Access.MANAGE if level is Access.READ_UPDATE else level for resource, level in grants.items()
            }
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
        rights = {resource: user.access(resource) for resource in name_resources(scope, name)}
        if name.startswith(_READER_GROUP_PREFIX):
            return {group: Access.READ_UPDATE for group, access in rights.items() if access >= Access.READ}
        if name.endswith(TABLE_SUFFIX) and len(rights) == 2:
            (table, of_table), (_, of_group) = rights.items()
            is_of_group = of_group >= Access.READ and not self._has_table(scope, name.removesuffix(TABLE_SUFFIX))
            return {table: Access.READ_UPDATE if is_of_group else of_table}
        return rights

    def _has_table(self, scope: str, table: str) -> bool:
        try:
            self._tables.get_table(scope, table)
        except NotFoundError:
            return False
        return True


HEADER: Final = "authorization"

_RESOURCE_CHARACTERS_SHOWN: Final = 300
_INTERNAL_MESSAGE: Final = "an internal error occurred; the details are in the log of the bridge"
_log = logging.getLogger(__name__)

_Context = grpc.aio.ServicerContext[Any, Any]
_Ask = Callable[[Any], Awaitable[Any]]
"""Calls the rpc itself with a request, as often as needed."""


@dataclass(frozen=True, slots=True)
class _List:
    """The field of a reply with a page, and the resource of an item, which the user must be able to read."""

    field: str
    resource: Callable[[Any], str]


_STREAMS = _List("streams", lambda stream: named_resource(stream.scope, stream.stream))

LISTS: Final[Mapping[str, _List]] = {
    "listScopes": _List("scopes", scope_resource),
    "listStreamsInScope": _STREAMS,
    "listStreamsInScopeForTag": _STREAMS,
    "listKeyValueTablesInScope": _List("kvtables", lambda table: table_resource(table.scope, table.kvtName)),
}
"""The rpcs with pages. They have only what the user may read."""


class Authentication(grpc.aio.ServerInterceptor):
    """The interceptor of a bridge with users. `run` calls a blocking function in a thread."""

    def __init__(self, credentials: Credentials, tokens: ReplyTokens, run: Callable[..., Awaitable[Any]]) -> None:
        self._credentials = credentials
        self._tokens = tokens
        self._run = run

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None  # There is no such rpc.
        if handler_call_details.method == CHECK:
            return handler  # type: ignore[no-any-return]  # The health check says nothing about streams.
        rpc = str(handler_call_details.method).rpartition("/")[2]

        async def answer(request: bytes, context: _Context) -> Any:
            call = call_under_way()
            try:
                user = await self._credentials.user(_header(context), context.peer())
                call.principal = f"{ANYONE}:{user.name}"
                call.request = message = _message(handler, request)
                check_rights(rpc, user, message)
                token = await self._token(rpc, user, message)
            except HeadraceError as error:
                await call.fail(error)
                _log.info("event=rpc_refused rpc=%s code=%s error=%r", rpc, error.specific_code, error.message)
                return await context.abort(code_of(error), error.message)
            except Exception as error:  # noqa: BLE001 - a defect must not show its details to a caller without rights
                await call.fail(error)
                _log.exception("event=rpc_failed rpc=%s", rpc)
                return await context.abort(grpc.StatusCode.INTERNAL, _INTERNAL_MESSAGE)

            reply = await _visible(rpc, user, message, lambda visible: handler.unary_unary(visible, context))
            if token is not None and token.text:
                reply.delegationToken = token.text
                call.grants = token.grants
            return reply

        # Without a deserializer the request stays bytes: those of a caller who is not a user are never parsed.
        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=handler.response_serializer)

    async def _token(self, rpc: str, user: User, request: Any) -> ReplyToken | None:
        wanted = TOKEN_REPLIES[rpc](request) if rpc in TOKEN_REPLIES else None
        if wanted is None:
            return None
        token: ReplyToken = await self._run(self._tokens.token, user, wanted)
        return token


def check_rights(rpc: str, user: User, request: Any) -> None:
    """Raises UnauthorizedError: the user lacks a right that the rpc needs, or it is not known what it needs."""
    if rpc not in REQUIRED_RIGHTS:
        raise UnauthorizedError(f"no user may call {rpc}")
    for right in REQUIRED_RIGHTS[rpc](request):
        if all(user.access(resource) < right.access for resource in right.resources):
            resource = right.resources[0][:_RESOURCE_CHARACTERS_SHOWN]
            raise UnauthorizedError(f"user {user.name} has no {right.access.name} on {resource}")


async def _visible(rpc: str, user: User, request: Any, ask: _Ask) -> Any:
    """The reply, of a list only what the user may read.

    An empty page ends the listing of a client. So pages of which nothing is left are skipped.
    """
    reply, of_items = await ask(request), LISTS.get(rpc)
    while of_items is not None:
        items = getattr(reply, of_items.field)
        readable = [item for item in items if user.access(of_items.resource(item)) >= Access.READ]
        if readable or not items:
            del items[:]
            items.extend(readable)
            break
        request.continuationToken.CopyFrom(reply.continuationToken)
        reply = await ask(request)
    return reply


def _header(context: _Context) -> str | None:
    """The only header `authorization`; None if there is none, or more than one."""
    headers = [value for key, value in context.invocation_metadata() or () if key == HEADER]
    return headers[0] if len(headers) == 1 and isinstance(headers[0], str) else None


def _message(handler: Any, request: bytes) -> Any:
    try:
        return handler.request_deserializer(request)
    except DecodeError as error:
        raise InvalidRequestError("the request is not the message of this call") from error
