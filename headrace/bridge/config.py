"""The settings of the bridge. Only this module of it reads the environment.

| variable | meaning | default |
|---|---|---|
| HEADRACE_GRPC_LISTEN_HOST, HEADRACE_GRPC_LISTEN_PORT | where to serve; port 0: the system chooses | 127.0.0.1, 9090 |
| HEADRACE_ADVERTISED_HOST | the address that clients are told that ask for controllers | LISTEN_HOST |
| HEADRACE_METADATA_TABLE | DynamoDB table | required |
| HEADRACE_REQUESTS_QUEUE_URL, HEADRACE_TABLES_QUEUE_URL | SQS queues | required |
| HEADRACE_COMMITS_QUEUE_URL, HEADRACE_ABORTS_QUEUE_URL | SQS queues for transactions | required |
| HEADRACE_CONTAINER_COUNT | containers of the deployment, a number that never changes | topology.CONTAINER_COUNT |
| HEADRACE_S3_CONTAINERS | more containers, whose appends S3 acknowledges | 0 |
| HEADRACE_STREAM_DEADLINE_S | how long a call may wait for a stream to be created, sealed or deleted | 60 |
| HEADRACE_STOP_DEADLINE_S | for calls under way after SIGTERM | 10 |
| HEADRACE_LOG_LEVEL | of the standard library's logging | INFO |

Region, credentials and endpoints come from the standard AWS_* variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace import topology
from headrace.model.errors import InvalidRequestError

LISTEN_PORT_DEFAULT: Final = 9090
"""The default port of a controller in Pravega's clients."""

STREAM_DEADLINE_DEFAULT_S: Final = 60
STOP_DEADLINE_DEFAULT_S: Final = 10
_PORT_MAX: Final = 65535
_LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """The settings of one bridge process."""

    listen_host: str
    listen_port: int
    advertised_host: str
    metadata_table: str
    requests_queue_url: str
    tables_queue_url: str
    commits_queue_url: str
    aborts_queue_url: str
    container_count: int
    s3_containers: int
    stream_deadline_s: int
    stop_deadline_s: int
    log_level: str


def read_config(environment: Mapping[str, str]) -> BridgeConfig:
    """Read the settings; raises InvalidRequestError with the name of a variable that is missing or invalid."""
    listen_host = environment.get("HEADRACE_GRPC_LISTEN_HOST") or "127.0.0.1"
    log_level = environment.get("HEADRACE_LOG_LEVEL", "INFO").upper()
    if log_level not in _LOG_LEVELS:
        raise InvalidRequestError(f"HEADRACE_LOG_LEVEL is {log_level!r}, expected one of {', '.join(_LOG_LEVELS)}")
    return BridgeConfig(
        listen_host=listen_host,
        listen_port=_integer(environment, "HEADRACE_GRPC_LISTEN_PORT", LISTEN_PORT_DEFAULT, 0, _PORT_MAX),
        advertised_host=environment.get("HEADRACE_ADVERTISED_HOST") or listen_host,
        metadata_table=_text(environment, "HEADRACE_METADATA_TABLE"),
        requests_queue_url=_text(environment, "HEADRACE_REQUESTS_QUEUE_URL"),
        tables_queue_url=_text(environment, "HEADRACE_TABLES_QUEUE_URL"),
        commits_queue_url=_text(environment, "HEADRACE_COMMITS_QUEUE_URL"),
        aborts_queue_url=_text(environment, "HEADRACE_ABORTS_QUEUE_URL"),
        container_count=_integer(environment, "HEADRACE_CONTAINER_COUNT", topology.CONTAINER_COUNT, 1),
        s3_containers=_integer(environment, "HEADRACE_S3_CONTAINERS", 0, 0),
        stream_deadline_s=_integer(environment, "HEADRACE_STREAM_DEADLINE_S", STREAM_DEADLINE_DEFAULT_S, 1),
        stop_deadline_s=_integer(environment, "HEADRACE_STOP_DEADLINE_S", STOP_DEADLINE_DEFAULT_S, 0),
        log_level=log_level,
    )


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise InvalidRequestError(f"the environment variable {name} is missing")
    return value


def _integer(environment: Mapping[str, str], name: str, default: int, least: int, most: int = 1 << 31) -> int:
    value = environment.get(name) or str(default)
    if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
        raise InvalidRequestError(f"{name} is {value[:40]!r}, expected a whole number from {least} to {most}")
    return int(value)
