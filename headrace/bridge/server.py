"""The gRPC server: binds rpcs to names on the wire, bounds the resources of a peer, and maps errors to replies."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.audit import call_under_way
from headrace.bridge.health import CHECK, Health
from headrace.bridge.service import Rpc
from headrace.bridge.status_codes import code_of, reply_of
from headrace.model.errors import HeadraceError, InvalidRequestError
from headrace.ports.request_queue import requested_by

REQUEST_BYTES_MAX: Final = 1 << 20
"""The largest sensible request is a scale of 1,000 segments, with some 40 bytes each."""

REPLY_BYTES_MAX: Final = 16 << 20
METADATA_BYTES_MAX: Final = 16 << 10
RPCS_MAX: Final = 1024
"""Concurrent calls, including those that wait. More are refused with RESOURCE_EXHAUSTED, which clients repeat."""

CONNECTIONS_MAX: Final = 512
"""Connections of clients. More are closed at once. Each client factory and each manager of an application has one. With
the connections to AWS, they stay below 1,024 open files, which is the usual limit of a process."""

IDLE_S: Final = 600
"""The bridge closes a connection without a call for so long. Clients open another one when they need it."""

PROBE_EVERY_S: Final = 60
PROBE_TIMEOUT_S: Final = 20
"""The bridge closes the connection of a client that has lost its network, and answers no probe in this time."""

HANDSHAKE_S: Final = 20
"""The time for a client to begin with HTTP/2 after it has connected."""

CONNECTION_AGE_S: Final = 60
CONNECTION_AGE_GRACE_S: Final = 5 * 60
"""The bridge asks a client to connect again after this age, up to a tenth more or less. So all bridges behind a load
balancer get their share, and a bridge that gets no new connections has none soon. A call that is running then has the
grace to end."""

QUIET_S: Final = 2.0
"""A bridge that is about to end has no clients any more when there was no call for so long."""
_DRAIN_POLL_S: Final = 0.1

THREADS: Final = 16
"""Concurrent calls to AWS: the number of connections of the metadata store's client."""

SERVICE = pb.DESCRIPTOR.services_by_name["ControllerService"]

_INTERNAL_MESSAGE: Final = "an internal error occurred; the details are in the log of the bridge"
_log = logging.getLogger(__name__)


def _options(connection_age_s: float) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
        ("grpc.max_send_message_length", REPLY_BYTES_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        ("grpc.max_connection_age_ms", int(connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", CONNECTION_AGE_GRACE_S * 1000),
        ("grpc.keepalive_time_ms", PROBE_EVERY_S * 1000),
        ("grpc.keepalive_timeout_ms", PROBE_TIMEOUT_S * 1000),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        # Without this a second server on the same port would share it silently.
        ("grpc.so_reuseport", 0),
    )


class CallThreads:
    """The threads that call the blocking services."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="rpc")

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        run = contextvars.copy_context().run  # The thread must know on whose behalf it works.
        return await asyncio.get_running_loop().run_in_executor(self._executor, run, function, *arguments)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Arrivals(grpc.aio.ServerInterceptor):
    """Notes when the last call arrived, apart from health checks, which never end."""

    def __init__(self) -> None:
        self.last_s = float("-inf")

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != CHECK:
            self.last_s = asyncio.get_running_loop().time()
        return await continuation(handler_call_details)


class BridgeServer:
    """Serves `rpcs` from `start` on."""

    def __init__(
        self,
        rpcs: Mapping[str, Rpc],
        threads: CallThreads,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        connection_age_s: float = CONNECTION_AGE_S,
    ) -> None:
        self._threads = threads
        self._arrivals = _Arrivals()
        self._server = grpc.aio.server(
            interceptors=(self._arrivals, *interceptors),
            options=_options(connection_age_s),
            maximum_concurrent_rpcs=RPCS_MAX,
        )
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._handler(method.name, rpcs[method.name]),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in SERVICE.methods
        }
        self._health = Health()
        served = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)
        self._server.add_generic_rpc_handlers((served, self._health.handler()))

    def listen(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
        """Add an address, and return the port; with `port` 0 the system chooses it. Without credentials it has no TLS.

        Raises:
            InvalidRequestError: the port cannot be bound, for example because another process uses it.
        """
        address = f"{host}:{port}"
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise InvalidRequestError(f"cannot listen on {address}: the port is in use or not allowed") from error

    async def start(self) -> None:
        """Serve the addresses of `listen`."""
        await self._server.start()

    async def drain(self, most_s: float) -> None:
        """Serve until clients are gone, at most for `most_s`, while the health check says that the bridge is ending.

        A load balancer sends no new connections meanwhile, and those of now are closed at their age. gRPC has no
        other way: `stop` cancels the calls that have arrived and not begun, and clients may not repeat these.
        """
        self._health.stop_serving()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + most_s
        while loop.time() < end_s and loop.time() - self._arrivals.last_s < QUIET_S:
            await asyncio.sleep(_DRAIN_POLL_S)

    async def stop(self, deadline_s: float) -> None:
        """Accept no new calls, and wait up to `deadline_s` for running ones."""
        self._health.stop_serving()
        await self._server.stop(deadline_s)
        self._threads.close()

    def _handler(self, name: str, rpc: Rpc) -> Callable[[Any, Any], Awaitable[Any]]:
        waits = inspect.iscoroutinefunction(rpc)

        async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            call = call_under_way()
            call.request = request
            try:
                with requested_by(call.requester):
                    return await rpc(request) if waits else await self._threads.run(rpc, request)
            except HeadraceError as error:
                return await _told(name, error, context)
            except Exception as error:  # noqa: BLE001 - an internal error of one call must not end the bridge
                await call.fail(error)
                _log.exception("event=rpc_failed rpc=%s", name)
                return await context.abort(grpc.StatusCode.INTERNAL, _INTERNAL_MESSAGE)

        return handle


async def _told(name: str, error: HeadraceError, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
    reply = reply_of(name, error)
    await call_under_way().fail(error, is_told_in_reply=reply is not None)
    if reply is not None:
        _log.debug("event=rpc_refused rpc=%s code=%s error=%r", name, error.specific_code, error.message)
        return reply
    code = code_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _log.error("event=rpc_failed rpc=%s code=%s error=%r", name, error.specific_code, error.message)
        return await context.abort(code, _INTERNAL_MESSAGE)
    _log.info("event=rpc_refused rpc=%s code=%s error=%r", name, error.specific_code, error.message)
    return await context.abort(code, error.message)
