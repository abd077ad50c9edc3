"""The health check of a bridge: the service `grpc.health.v1`, and the program that asks it inside of a container.

`python -m headrace.bridge.health` exits with 0 if the bridge at HEADRACE_GRPC_HEALTH_PORT of this machine serves. The
event loop of the bridge answers, so a bridge that hangs fails the check. It asks neither DynamoDB nor another service:
another bridge would not reach them either.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import grpc
import grpc.aio

from headrace.bridge.config import HEALTH_PORT, read_health_port
from headrace.model.errors import InvalidRequestError

SERVICE_NAME: Final = "grpc.health.v1.Health"
CHECK: Final = f"/{SERVICE_NAME}/Check"
SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"
"""The encoded messages HealthCheckResponse. With two possible answers, generated code would be larger than this."""
TIMEOUT_S: Final = 5.0


class Health:
    """The service. Every name of a service gets the answer for the whole server."""

    def __init__(self) -> None:
        self._answer = SERVING

    def stop_serving(self) -> None:
        """Tell balancers of clients that the server is about to end."""
        self._answer = NOT_SERVING

    def handler(self) -> grpc.GenericRpcHandler:
        async def check(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            return self._answer

        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"Check": grpc.unary_unary_rpc_method_handler(check)})


def problem(port: int) -> str:
    """Say why the bridge at this port of this machine does not serve; empty if it does."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(CHECK)
        try:
            answer = ask(b"", timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return f"the bridge does not answer: {error.code().name}"
    return "" if answer == SERVING else "the bridge is about to end"


def main() -> int:
    try:
        port = read_health_port(os.environ)
        unhealthy = problem(port) if port else f"{HEALTH_PORT} names no port to check"
    except InvalidRequestError as error:
        unhealthy = error.message
    if unhealthy:
        print(unhealthy, file=sys.stderr)
    return 1 if unhealthy else 0


if __name__ == "__main__":
    sys.exit(main())
