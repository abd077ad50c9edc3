"""The settings of the bridge. Only this module of it reads the environment.

| variable | meaning | default |
|---|---|---|
| HEADRACE_GRPC_LISTEN_HOST, HEADRACE_GRPC_LISTEN_PORT | where to serve; port 0: the system chooses | 127.0.0.1, 9090 |
| HEADRACE_ADVERTISED_HOST | the address that clients are told that ask for controllers | LISTEN_HOST |
| HEADRACE_NETWORK | vpc, or external: clients get the addresses of stores at the load balancer | vpc |
| HEADRACE_STORE_NAME | with TLS: the DNS name of all stores that clients are told | that of each store |
| HEADRACE_METADATA_TABLE | DynamoDB table | required |
| HEADRACE_REQUESTS_QUEUE_URL, HEADRACE_TABLES_QUEUE_URL | SQS queues | required |
| HEADRACE_COMMITS_QUEUE_URL, HEADRACE_ABORTS_QUEUE_URL | SQS queues for transactions | required |
| HEADRACE_CONTAINER_COUNT | containers of the deployment, a number that never changes | topology.CONTAINER_COUNT |
| HEADRACE_S3_CONTAINERS | more containers, whose appends S3 acknowledges | 0 |
| HEADRACE_STREAM_DEADLINE_S | how long a call may wait for a stream to be created, sealed or deleted | 60 |
| HEADRACE_STOP_DEADLINE_S | for calls under way after SIGTERM | 10 |
| HEADRACE_GRPC_DRAIN_S | after SIGTERM, how long to serve until clients behind a load balancer are gone | 0 |
| HEADRACE_LOG_LEVEL | of the standard library's logging | INFO |
| HEADRACE_LOG_FORMAT | form of log lines: text, or json | text |
| HEADRACE_AUDIT_FILE | the file to which audit lines are appended | standard error |
| HEADRACE_GRPC_USERS_FILE, HEADRACE_GRPC_USERS_SECRET | path, or id of a secret, with the users | one of both |
| HEADRACE_GRPC_PLAINTEXT | `allowed`: serve users on other addresses than loopback, without TLS | refused |
| HEADRACE_GRPC_HEALTH_PORT | a port of 127.0.0.1, without TLS, for the health check of a container | none |

The two before the last apply if HEADRACE_TOKENS is `required`. This variable and others about tokens are described in
`adapters/token_keys.py`, and HEADRACE_TLS and its variables in `adapters/leaf_secrets.py`. With any mode but `off` the
bridge serves only with TLS. Region, credentials and endpoints come from the standard AWS_* variables.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace import topology
from headrace.adapters import audit_log
from headrace.adapters.leaf_secrets import MODE, TlsSettings, tls_settings
from headrace.adapters.log_lines import LogFormat, log_format, log_level
from headrace.adapters.token_keys import KEYS_FILE, KEYS_SECRET, LIFE
from headrace.deployment_defaults import TOKENS_REQUIRED, TOKENS_VARIABLE
from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import NETWORK_VARIABLE, Network, parse_network

LISTEN_PORT_DEFAULT: Final = 9090
"""The default port of a controller in Pravega's clients."""

STREAM_DEADLINE_DEFAULT_S: Final = 60
STOP_DEADLINE_DEFAULT_S: Final = 10
_PORT_MAX: Final = 65535
USERS_FILE: Final = "HEADRACE_GRPC_USERS_FILE"
USERS_SECRET: Final = "HEADRACE_GRPC_USERS_SECRET"
PLAINTEXT: Final = "HEADRACE_GRPC_PLAINTEXT"
PLAINTEXT_ALLOWED: Final = "allowed"
HEALTH_PORT: Final = "HEADRACE_GRPC_HEALTH_PORT"


@dataclass(frozen=True, slots=True)
class UsersConfig:
    """Where the users are: one of both is set."""

    file: str
    secret: str


@dataclass(frozen=True, slots=True)
class BridgeConfig:
    """The settings of one bridge process."""

    listen_host: str
    listen_port: int
    advertised_host: str
    network: Network
    """The network of the clients."""
    store_name: str
    """The DNS name in the certificates of all stores that clients are told; "": of each store its own."""
    metadata_table: str
    requests_queue_url: str
    tables_queue_url: str
    commits_queue_url: str
    aborts_queue_url: str
    container_count: int
    s3_containers: int
    stream_deadline_s: int
    drain_s: int
    stop_deadline_s: int
    log_level: str
    log_format: LogFormat
    audit_file: Path | None
    users: UsersConfig | None
    """None: tokens are off, and there is no authentication."""
    token_environment: Mapping[str, str]
    """The variables of delegation tokens."""
    tls: TlsSettings
    health_port: int
    """0: none."""


def read_config(environment: Mapping[str, str]) -> BridgeConfig:
    """Read the settings; raises InvalidRequestError with the name of a variable that is missing or invalid."""
    listen_host = environment.get("HEADRACE_GRPC_LISTEN_HOST") or "127.0.0.1"
    tls = tls_settings(environment)
    return BridgeConfig(
        listen_host=listen_host,
        listen_port=_integer(environment, "HEADRACE_GRPC_LISTEN_PORT", LISTEN_PORT_DEFAULT, 0, _PORT_MAX),
        advertised_host=environment.get("HEADRACE_ADVERTISED_HOST") or listen_host,
        network=parse_network(environment.get(NETWORK_VARIABLE) or Network.VPC),
        store_name=environment.get("HEADRACE_STORE_NAME", ""),
        metadata_table=_text(environment, "HEADRACE_METADATA_TABLE"),
        requests_queue_url=_text(environment, "HEADRACE_REQUESTS_QUEUE_URL"),
        tables_queue_url=_text(environment, "HEADRACE_TABLES_QUEUE_URL"),
        commits_queue_url=_text(environment, "HEADRACE_COMMITS_QUEUE_URL"),
        aborts_queue_url=_text(environment, "HEADRACE_ABORTS_QUEUE_URL"),
        container_count=_integer(environment, "HEADRACE_CONTAINER_COUNT", topology.CONTAINER_COUNT, 1),
        s3_containers=_integer(environment, "HEADRACE_S3_CONTAINERS", 0, 0),
        stream_deadline_s=_integer(environment, "HEADRACE_STREAM_DEADLINE_S", STREAM_DEADLINE_DEFAULT_S, 1),
        stop_deadline_s=_integer(environment, "HEADRACE_STOP_DEADLINE_S", STOP_DEADLINE_DEFAULT_S, 0),
        drain_s=_integer(environment, "HEADRACE_GRPC_DRAIN_S", 0, 0),
        log_level=log_level(environment),
        log_format=log_format(environment),
        audit_file=Path(environment[audit_log.FILE]) if environment.get(audit_log.FILE) else None,
        users=_users(environment, listen_host, has_tls=tls.source is not None),
        token_environment={
            name: environment[name] for name in (TOKENS_VARIABLE, KEYS_FILE, KEYS_SECRET, LIFE) if name in environment
        },
        tls=tls,
        health_port=read_health_port(environment),
    )


def read_health_port(environment: Mapping[str, str]) -> int:
    """The port of the health check, or 0. Raises InvalidRequestError."""
    return _integer(environment, HEALTH_PORT, 0, 0, _PORT_MAX)


def _users(environment: Mapping[str, str], listen_host: str, *, has_tls: bool) -> UsersConfig | None:
    """Passwords on a network need TLS, of the bridge or of a program before it on this host."""
    if environment.get(TOKENS_VARIABLE, "") != TOKENS_REQUIRED:
        return None
    config = UsersConfig(environment.get(USERS_FILE, ""), environment.get(USERS_SECRET, ""))
    if bool(config.file) == bool(config.secret):
        which = "both are set" if config.file else "none is set"
        raise InvalidRequestError(
            f"{TOKENS_VARIABLE} is {TOKENS_REQUIRED}: set either {USERS_FILE} or {USERS_SECRET}; {which}"
        )
    allowed = environment.get(PLAINTEXT, "")
    if allowed not in ("", PLAINTEXT_ALLOWED):
        raise InvalidRequestError(f"{PLAINTEXT} is {allowed[:40]!r}, expected {PLAINTEXT_ALLOWED}")
    if not has_tls and not allowed and not _is_loopback(listen_host):
        raise InvalidRequestError(
            f"the bridge has no TLS, and passwords would cross the network as plain text: set {MODE}=required and its "
            f"certificate, listen on 127.0.0.1 instead of {listen_host}, or set {PLAINTEXT}={PLAINTEXT_ALLOWED} if "
            "another program encrypts the network"
        )
    return config


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


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
