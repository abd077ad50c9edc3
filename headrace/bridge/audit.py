"""Audit lines of the bridge: one for each call that changes something, gives a token, or is refused for its caller.

The interceptor is the outermost one. What it does not see, the others note in the call that is under way: who calls,
the request, the token's grants, and the error.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio

from headrace.bridge.credentials import address_of
from headrace.bridge.health import CHECK
from headrace.bridge.status_codes import code_of
from headrace.codec.audit_lines import AuditLine, Outcome, correlation_id
from headrace.model.access import Access
from headrace.model.errors import HeadraceError, UnauthorizedError
from headrace.model.requests import Requester
from headrace.ports.clock import Clock

COMPONENT: Final = "grpc-bridge"
ANYONE: Final = "grpc"
"""The principal of all calls if the bridge has no users."""
CORRELATION_KEY: Final = "x-headrace-correlation-id"
READ: Final = "read"
"""The action of a call that would only read, and was refused for its caller."""
GIVE_TOKEN: Final = "token.give"
"""The action of a call whose answer has a delegation token, if it changes nothing."""

LINES_S: Final = 5.0
"""The time at the end of a bridge for lines that are not written yet: a disk may be slow."""

_CANCELLED: Final = "cancelled"
_INTERNAL: Final = "internal"
_log = logging.getLogger(__name__)

Write = Callable[[AuditLine], None]
Names = Callable[[Any], tuple[str, ...]]
"""The names in a request, from the outside in."""


def _scope(request: Any) -> tuple[str, ...]:
    return (request.scope,)


def _stream(request: Any) -> tuple[str, ...]:
    return request.scope, request.stream


def _info(request: Any) -> tuple[str, ...]:
    return _stream(request.streamInfo)


def _transaction(request: Any) -> tuple[str, ...]:
    return *_info(request), f"{request.txnId.highBits & (1 << 64) - 1:016x}{request.txnId.lowBits & (1 << 64) - 1:016x}"


def _group(request: Any) -> tuple[str, ...]:
    return request.scope, request.readerGroupName


def _group_info(request: Any) -> tuple[str, ...]:
    return request.scope, request.readerGroup


def _table(request: Any) -> tuple[str, ...]:
    return request.scope, request.kvtName


ACTIONS: Final[Mapping[str, tuple[str, Names]]] = {
    "createScope": ("scope.create", _scope),
    "deleteScope": ("scope.delete", _scope),
    "deleteScopeRecursive": ("scope.delete", _scope),
    "createStream": ("stream.create", _info),
    "updateStream": ("stream.update", _info),
    "truncateStream": ("stream.truncate", _info),
    "sealStream": ("stream.set-state", _stream),
    "deleteStream": ("stream.delete", _stream),
    "scale": ("stream.scale", _info),
    "createTransaction": ("transaction.create", _info),
    "pingTransaction": ("transaction.renew", _transaction),
    "commitTransaction": ("transaction.set-state", _transaction),
    "abortTransaction": ("transaction.set-state", _transaction),
    "updateSubscriberStreamCut": (
        "subscriber.publish",
        lambda request: (*_stream(request.streamCut.streamInfo), request.subscriber),
    ),
    "noteTimestampFromWriter": (
        "writer.note-position",
        lambda request: (*_stream(request.position.streamInfo), request.writer),
    ),
    "removeWriter": ("writer.remove", lambda request: (*_stream(request.stream), request.writer)),
    "createReaderGroup": ("reader-group.create", _group),
    "updateReaderGroup": ("reader-group.update", _group),
    "deleteReaderGroup": ("reader-group.delete", _group_info),
    "createKeyValueTable": ("table.create", _table),
    "deleteKeyValueTable": ("table.delete", _table),
}
"""What the rpcs change, with the actions of the HTTP API, and the names in their requests."""


@dataclass(slots=True)
class CallUnderWay:
    """What is known of a call so far. `on_end` writes its line."""

    rpc: str
    principal: str
    request_id: str
    correlation_id: str
    on_end: Callable[[CallUnderWay], Awaitable[None]]
    request: Any = None
    error: BaseException | None = None
    is_told_in_reply: bool = False
    """Whether the client gets a reply with a status for the error, and the status OK of the call."""
    is_accepted: bool = False
    """Whether the change may happen, although the call fails while it waits for it."""
    grants: Mapping[str, Access] = field(default_factory=dict)
    is_ended: bool = False

    async def fail(self, error: BaseException, *, is_told_in_reply: bool = False) -> None:
        """End the call with an error, before the client is told of it."""
        self.error, self.is_told_in_reply = error, is_told_in_reply
        await self.end()

    async def end(self) -> None:
        """The line is written once: at the first end."""
        if not self.is_ended:
            self.is_ended = True
            await self.on_end(self)

    @property
    def requester(self) -> Requester:
        return Requester(self.principal, self.correlation_id)


_current: contextvars.ContextVar[CallUnderWay] = contextvars.ContextVar("call")


def call_under_way() -> CallUnderWay:
    """The call in whose context this runs; for a server without the interceptor one that nothing reads."""
    try:
        return _current.get()
    except LookupError:
        return CallUnderWay("", ANYONE, "", "", _nothing)


async def _nothing(_: CallUnderWay) -> None:
    pass


class Audit(grpc.aio.ServerInterceptor):
    """Writes the lines. `principal` is who calls until an authentication says more.

    A line is written before its call is answered, in a thread: a disk that hangs holds up only the calls with a line.
    """

    def __init__(self, write: Write, clock: Clock, principal: str) -> None:
        self._write = write
        self._clock = clock
        self._principal = principal
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._calls: set[asyncio.Future[Any]] = set()
        self._lines: set[asyncio.Future[Any]] = set()
        """Those that are not written yet. A line may outlast its call."""

    async def close(self) -> None:
        """Wait for calls that are ending, and for their lines, but not for a disk that hangs. Take no more lines."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + LINES_S
        while (unfinished := self._calls | self._lines) and (left_s := end_s - loop.time()) > 0:
            await asyncio.wait(unfinished, timeout=left_s)
        if self._lines:
            _log.error("event=audit_lines_lost count=%d", len(self._lines))
        self._thread.shutdown(wait=False)

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

        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            call = self._begun(rpc, context)
            _keep(self._calls, asyncio.current_task())
            token = _current.set(call)
            try:
                return await handler.unary_unary(request, context)
            except asyncio.CancelledError as error:
                await call.fail(error)  # The client has gone, and the call may have had its effect.
                raise
            finally:
                await call.end()
                _current.reset(token)

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )

    def _begun(self, rpc: str, context: grpc.aio.ServicerContext[Any, Any]) -> CallUnderWay:
        identity = secrets.token_hex(8)
        given = [value for key, value in context.invocation_metadata() or () if key == CORRELATION_KEY]
        text = given[0] if len(given) == 1 and isinstance(given[0], str) else None
        address = address_of(context.peer())
        return CallUnderWay(
            rpc, self._principal, identity, correlation_id(text, identity), lambda call: self._tell(call, address)
        )

    async def _tell(self, call: CallUnderWay, address: str) -> None:
        action, names = ACTIONS.get(call.rpc, ("", _no_names))
        if not action and isinstance(call.error, UnauthorizedError):
            action = READ
        if not action and call.grants and call.error is None:
            action = GIVE_TOKEN
        if not action:
            return
        status, code, outcome = _result(call)
        grants = {resource: level.name for resource, level in call.grants.items()} if call.error is None else {}
        line = AuditLine(
            time_ms=self._clock.now_ms(),
            action=action,
            resource="" if call.request is None else "/".join(names(call.request)),
            principal=call.principal,
            source=address,
            outcome=outcome,
            status=status,
            code=code,
            call=call.rpc,
            component=COMPONENT,
            request_id=call.request_id,
            correlation_id=call.correlation_id,
            details={"grants": grants} if grants else {},
        )
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._try_to_write, line)
        _keep(self._lines, writing)
        await asyncio.shield(writing)  # A client that goes now takes no line with it.

    def _try_to_write(self, line: AuditLine) -> None:
        try:
            self._write(line)
        except OSError as error:
            _log.error("event=audit_line_lost action=%s principal=%r error=%r", line.action, line.principal, error)


def _keep(unfinished: set[asyncio.Future[Any]], future: asyncio.Future[Any] | None) -> None:
    """Keep it until it is done."""
    if future is not None:
        unfinished.add(future)
        future.add_done_callback(unfinished.discard)


def _no_names(_request: Any) -> tuple[str, ...]:
    return ()


def _result(call: CallUnderWay) -> tuple[str, str, Outcome]:
    """The status of the call, the code of its error, and the outcome."""
    error = call.error
    if error is None:
        return grpc.StatusCode.OK.name, "", Outcome.DONE
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED.name, _CANCELLED, Outcome.FAILED
    if not isinstance(error, HeadraceError):
        return grpc.StatusCode.INTERNAL.name, _INTERNAL, Outcome.FAILED
    status = grpc.StatusCode.OK if call.is_told_in_reply else code_of(error)
    is_refused = error.reported_as.http_status < 500 and not call.is_accepted
    return status.name, error.specific_code, Outcome.REFUSED if is_refused else Outcome.FAILED
