"""The configuration of a segment store process. Only this module reads the environment.

| variable | meaning | default |
|---|---|---|
| HEADRACE_STORE_ID | name of this store in claims and logs | zone and task on ECS, else required |
| HEADRACE_STORE_INDEX, HEADRACE_STORE_COUNT | of unowned containers it takes every COUNT-th from INDEX on | 0, 1 |
| HEADRACE_CAPACITY | weight of a process in the assignment of containers | 100 |
| HEADRACE_TAKE_OVER_AFTER_S | how long other stores wait for it to return on its own disk when it is lost | 300 |
| HEADRACE_PROCESSES | processes of this store; each has its share of containers and cache, and its ports | 1 |
| HEADRACE_PROCESS | index of this process among them; set by the supervisor | 0 |
| HEADRACE_CONTAINER_COUNT | containers of the deployment; the number never changes | 8 |
| HEADRACE_S3_CONTAINERS | additional containers whose appends S3 acknowledges; from 0 changed once, never again | 0 |
| HEADRACE_DATA_DIR | directory of the journal, on a volume of its own | required |
| HEADRACE_LISTEN_HOST, HEADRACE_LISTEN_PORT | address to listen on; port 0: the system chooses | 127.0.0.1, 0 |
| HEADRACE_COPIES | stores that keep each entry of a log until S3 has it: 1 or 3 | 1 |
| HEADRACE_REPLICA_PORT | port for other stores, with 3 copies; port 0: the system chooses | 0 |
| HEADRACE_REPLICA_SECRET | what its stores prove to each other, from 32 characters | required with 3 copies |
| HEADRACE_LOG_COMPRESSION | compress log entries of 3 copies: on, off, or auto (on outside of the zone local) | auto |
| HEADRACE_CLUSTER_ID | names the deployment to its stores, 32 hexadecimal digits | required with 3 copies |
| HEADRACE_ADVERTISED_HOST | address that clients get | the task's on ECS, else LISTEN_HOST |
| HEADRACE_ZONE | availability zone id | local |
| HEADRACE_ZONE_NETWORKS | networks of clients with their zones, such as use1-az1=10.0.0.0/24; for metrics | none |
| HEADRACE_METADATA_TABLE, HEADRACE_CHUNK_BUCKET | DynamoDB table and S3 bucket | required |
| HEADRACE_SCALING_REPORTS_QUEUE_URL | SQS queue for reports of hot and cold segments | none: they are only logged |
| HEADRACE_CACHE_BYTES | memory for data: appended, and read from S3 | 512 MiB |
| HEADRACE_READ_CACHE_BYTES | the part of it for data read from S3 | an eighth |
| HEADRACE_RECEIVE_BYTES | the part of it for partly received commands | an eighth, at least 22 MiB a process |
| HEADRACE_JOURNAL_FILE_BYTES | size of one journal file | 64 MiB |
| HEADRACE_FLUSH_BYTES, HEADRACE_FLUSH_AGE_S | when a container writes to S3 | 16 MiB, 5 |
| HEADRACE_OBJECT_BYTES | maximum size of an object that holds runs of many segments | 32 MiB |
| HEADRACE_OBJECTS_IN_FLIGHT | maximum number of objects of a container that are written to S3 at the same time | 4 |
| HEADRACE_STORAGE_RETRY_MAX_S | longest pause between two attempts while S3 or DynamoDB do not answer | 10 |
| HEADRACE_SNAPSHOT_EVERY_S | interval of snapshots of a container's metadata in S3, while it changes | 30 |
| HEADRACE_GARBAGE_EVERY_S | interval of the search for unused objects | 21600 |
| HEADRACE_GARBAGE_GRACE_S | how long an unused object is kept; history links are valid for 900 s | 7200 |
| HEADRACE_CHECKPOINT_BYTES | how much log a container writes between two checkpoints | 64 MiB |
| HEADRACE_COMPACTION_BYTES_PER_S | rate of merging small runs in S3, of the whole process; 0: never | 8 MiB |
| HEADRACE_IDLE_SEGMENT_S, HEADRACE_SEGMENTS_KEPT | when idle segments are evicted, and how many stay | 600, 1000 |
| HEADRACE_TABLE_MEMORY_BYTES | memory for table entries that are not in S3, of a process | 32 MiB |
| HEADRACE_TABLE_CACHE_BYTES | memory for cached blocks of table indexes, of a process | 16 MiB |
| HEADRACE_CONNECTIONS_MAX | connections of a process; more are refused | 4096, with TLS 1024 |
| HEADRACE_CONNECTIONS_PER_ADDRESS_MAX | connections of a process from one address; more are refused | a quarter |
| HEADRACE_RESERVED_NETWORKS | networks (CIDR, comma-separated) with 64 reserved connections of a process | none |
| HEADRACE_TOKENS | off, or required: each request needs a delegation token | off |
| HEADRACE_TOKEN_KEYS_FILE | path of the keys of delegation tokens, of mode 600 | one of both is required |
| HEADRACE_TOKEN_KEYS_SECRET | id or ARN of a secret of AWS Secrets Manager with the keys | with tokens |
| HEADRACE_TLS | off; permissive: peers may use TLS; required: peers without TLS are refused | off |
| HEADRACE_TLS_FILE | path of certificate and key, of mode 600 | one of both is required |
| HEADRACE_TLS_SECRET | id or ARN of a secret of AWS Secrets Manager with both | with TLS |
| HEADRACE_TLS_NAME | DNS name in the certificate, which clients verify | required with TLS |
| HEADRACE_EXTERNAL_NAME | DNS name for clients outside the network, also in the certificate; needs TLS | none |
| HEADRACE_EXTERNAL_PORTS | the ports there, such as 12345-12346, of which each process takes one | with that name |
| HEADRACE_EXTERNAL_HOST | address that such clients connect to | the name |
| HEADRACE_HEALTH_PORT | serve GET /health, /ready and /metrics there; port 0: the system chooses | nowhere |
| HEADRACE_STOP_DEADLINE_S | time to write the data in memory to S3 after SIGTERM | 60 |
| HEADRACE_LOG_LEVEL | level of the standard library's logging | INFO |
| HEADRACE_LOG_FORMAT | form of log lines: text, or json | text |
| HEADRACE_METRICS_SERVICE | with JSON lines: write metrics for CloudWatch each minute, as this service | none |

Region, credentials and endpoints come from the standard AWS_* variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Final

from headrace.adapters.leaf_secrets import TlsSettings, tls_settings
from headrace.adapters.log_lines import LogFormat, log_format, log_level
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.listener import CONNECTIONS_MAX, TLS_CONNECTIONS_MAX, Network
from headrace.adapters.token_keys import token_key_source
from headrace.deployment_defaults import CONTAINER_COUNT, S3_CONTAINERS_MAX
from headrace.model.cluster import CAPACITY_DEFAULT, TAKE_OVER_AFTER_DEFAULT_S
from headrace.model.containers import containers_of_store
from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import EXTERNAL_PORTS_MAX, ExternalOffer
from headrace.model.limits import WIRE_FRAME_PAYLOAD_BYTES_MAX
from headrace.model.log_classes import ContainerLayout
from headrace.model.tls_modes import NAME_CHARACTERS_MAX, TlsMode, is_tls_name
from headrace.ports.token_keys import TokenKeySource
from headrace.segmentstore.connections.receive_memory import receive_bytes_min
from headrace.segmentstore.log.journal.journal_commits import JOURNAL_FILE_BYTES
from headrace.segmentstore.tables.table_limits import TableLimits
from headrace.segmentstore.tiering.storage_limits import StorageLimits
from headrace.zones import LOCAL_ZONE, ZoneNetworks
from segmentstore_fargate.layout import Layout, journal_directory

CACHE_BYTES_DEFAULT: Final = 512 << 20
CACHE_BYTES_MIN: Final = 64 << 20
"""Four times the largest frame: less could not be sure to take an append while another is on its way to S3."""

READ_CACHE_BYTES_MIN: Final = 8 << 20
APPEND_CACHE_BYTES_MIN: Final = 2 * WIRE_FRAME_PAYLOAD_BYTES_MAX
"""What must be left for appended data: an append may take half of it."""

JOURNAL_FILE_BYTES_MIN: Final = 32 << 20
STOP_DEADLINE_DEFAULT_S: Final = 60.0
PROCESSES_MAX: Final = 64
COPIES: Final = (1, 3)
"""One: the journal of the owner. Three: the owner and a store in each of two other zones."""

REPLICA_SECRET_CHARACTERS: Final = (32, 1024)
"""The smallest and the largest number. As many random characters as a key of HMAC-SHA256 has bytes, or more."""

CLUSTER_ID_BYTES: Final = 16
_PORT_MAX: Final = 65535
EXTERNAL_NAME: Final = "HEADRACE_EXTERNAL_NAME"
EXTERNAL_PORTS: Final = "HEADRACE_EXTERNAL_PORTS"
EXTERNAL_HOST: Final = "HEADRACE_EXTERNAL_HOST"


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One process. `advertised_host` None: ask the platform. `health_port` None: no pages.
    `connections_per_address_max` None: a quarter. `scaling_reports_queue_url` None: reports are logged only.
    `classes` are the containers of each class of logs.

    All processes of the store share `data_dir`; `layout` maps its journal directories to containers. `process` is the
    number of this process among them.

    With one copy `replica_secret` may be empty and `cluster_id` zeros: no other store is asked for anything.
    `token_keys` None: requests need no delegation token. `metrics_service` empty: no metrics among the log lines.
    """

    store_id: str
    process: int
    containers: tuple[int, ...]
    classes: ContainerLayout
    data_dir: Path
    journal_dir: Path
    layout: Layout
    listen_host: str
    listen_port: int
    advertised_host: str | None
    zone: str
    zone_networks: ZoneNetworks
    metadata_table: str
    chunk_bucket: str
    scaling_reports_queue_url: str | None
    cache_bytes: int
    receive_bytes: int
    journal_file_bytes: int
    limits: StorageLimits
    table_limits: TableLimits
    connections_max: int
    connections_per_address_max: int | None
    reserved_networks: tuple[Network, ...]
    health_port: int | None
    stop_deadline_s: float
    log_level: str
    log_format: LogFormat
    metrics_service: str
    capacity: int
    take_over_after_s: float
    copies: int
    replica_port: int
    replica_secret: bytes = field(repr=False)
    cluster_id: bytes
    compresses_log: bool
    token_keys: TokenKeySource | None
    tls: TlsSettings
    external: ExternalOffer | None
    """What clients outside the network may be told; None: nothing."""

    @property
    def container_count(self) -> int:
        """All containers of the deployment."""
        return self.classes.count


def read_config(environment: Mapping[str, str]) -> StoreConfig:
    """Raises InvalidRequestError: a variable is missing or wrong; the message names it."""
    read = _Reader(environment)
    container_count = read.integer("HEADRACE_CONTAINER_COUNT", CONTAINER_COUNT, least=1)
    processes = read.integer("HEADRACE_PROCESSES", 1, least=1, most=PROCESSES_MAX)
    process = read.integer("HEADRACE_PROCESS", 0, least=0, most=processes - 1)
    s3_containers = read.integer("HEADRACE_S3_CONTAINERS", 0, least=0, most=S3_CONTAINERS_MAX)
    classes = ContainerLayout(container_count, s3_containers)
    shares = _read_shares(read, classes, processes)
    cache_bytes = read.integer("HEADRACE_CACHE_BYTES", CACHE_BYTES_DEFAULT, least=processes * CACHE_BYTES_MIN)
    tls = tls_settings(environment)
    connections_default = TLS_CONNECTIONS_MAX if tls.mode.accepts_tls else CONNECTIONS_MAX
    connections_max = read.integer("HEADRACE_CONNECTIONS_MAX", connections_default, least=1)
    limits = _read_limits(read, cache_bytes, processes)
    receive_bytes = _read_receive_bytes(read, cache_bytes, processes, connections_max)
    left_bytes = cache_bytes // processes - limits.read_cache_bytes - receive_bytes
    if left_bytes < APPEND_CACHE_BYTES_MIN:
        raise InvalidRequestError(
            f"HEADRACE_CACHE_BYTES leaves {left_bytes} bytes a process for appended data, at least "
            f"{APPEND_CACHE_BYTES_MIN} are needed: HEADRACE_READ_CACHE_BYTES and HEADRACE_RECEIVE_BYTES are parts of it"
        )
    journal_dir = journal_directory(process, processes)
    ports = _read_ports(read, process, processes)
    copies, zone = _read_copies(read), environment.get("HEADRACE_ZONE", LOCAL_ZONE)
    usual_tables = TableLimits()
    return StoreConfig(
        store_id=read.text("HEADRACE_STORE_ID") + (f".{process}" if processes > 1 else ""),
        process=process,
        containers=shares[journal_dir],
        classes=classes,
        data_dir=Path(read.text("HEADRACE_DATA_DIR")),
        journal_dir=Path(read.text("HEADRACE_DATA_DIR")) / journal_dir,
        # Logs in S3 are not on the volume: its layout stays when a deployment gets containers of this class.
        layout={name: tuple(each for each in share if each < container_count) for name, share in shares.items()},
        listen_host=environment.get("HEADRACE_LISTEN_HOST", "127.0.0.1"),
        listen_port=ports["HEADRACE_LISTEN_PORT"] or 0,
        advertised_host=environment.get("HEADRACE_ADVERTISED_HOST") or None,
        zone=zone,
        zone_networks=_read_zone_networks(environment),
        metadata_table=read.text("HEADRACE_METADATA_TABLE"),
        chunk_bucket=read.text("HEADRACE_CHUNK_BUCKET"),
        scaling_reports_queue_url=environment.get("HEADRACE_SCALING_REPORTS_QUEUE_URL") or None,
        cache_bytes=cache_bytes // processes,
        receive_bytes=receive_bytes,
        journal_file_bytes=read.integer(
            "HEADRACE_JOURNAL_FILE_BYTES", JOURNAL_FILE_BYTES, least=JOURNAL_FILE_BYTES_MIN
        ),
        limits=limits,
        table_limits=TableLimits(
            all_tails_memory_bytes=read.integer(
                "HEADRACE_TABLE_MEMORY_BYTES", usual_tables.all_tails_memory_bytes, least=usual_tables.tail_memory_bytes
            ),
            cached_blocks_bytes=read.integer(
                "HEADRACE_TABLE_CACHE_BYTES", usual_tables.cached_blocks_bytes, least=usual_tables.index_block_bytes
            ),
        ),
        connections_max=connections_max,
        connections_per_address_max=read.integer("HEADRACE_CONNECTIONS_PER_ADDRESS_MAX", 0, least=1) or None,
        reserved_networks=_read_networks(environment, "HEADRACE_RESERVED_NETWORKS"),
        health_port=ports["HEADRACE_HEALTH_PORT"],
        stop_deadline_s=read.seconds("HEADRACE_STOP_DEADLINE_S", STOP_DEADLINE_DEFAULT_S),
        log_level=log_level(environment),
        log_format=log_format(environment),
        metrics_service=_read_metrics_service(environment),
        capacity=read.integer("HEADRACE_CAPACITY", CAPACITY_DEFAULT, least=1),
        take_over_after_s=read.seconds("HEADRACE_TAKE_OVER_AFTER_S", TAKE_OVER_AFTER_DEFAULT_S),
        copies=copies,
        replica_port=ports["HEADRACE_REPLICA_PORT"] or 0,
        replica_secret=_read_replica_secret(environment, copies),
        cluster_id=_read_cluster_id(environment, copies),
        compresses_log=_read_log_compression(environment, zone),
        token_keys=token_key_source(environment, SystemClock()),
        tls=tls,
        external=_read_external(environment, tls),
    )


def _read_external(environment: Mapping[str, str], tls: TlsSettings) -> ExternalOffer | None:
    name, ports = environment.get(EXTERNAL_NAME, ""), environment.get(EXTERNAL_PORTS, "")
    if not name:
        return None
    if not is_tls_name(name):
        raise InvalidRequestError(f"{EXTERNAL_NAME} is {name[:300]!r}, expected a DNS name in lower case")
    if tls.mode is not TlsMode.REQUIRED:
        raise InvalidRequestError(f"{EXTERNAL_NAME} is set: clients outside the network need HEADRACE_TLS=required")
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", ports, re.ASCII)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= _PORT_MAX:
        raise InvalidRequestError(f"{EXTERNAL_PORTS} is {ports[:40]!r}, expected ports such as 12345-12346")
    offered = range(first, last + 1)
    if len(offered) > EXTERNAL_PORTS_MAX:
        raise InvalidRequestError(f"{EXTERNAL_PORTS} is {ports!r}: expected at most {EXTERNAL_PORTS_MAX} ports")
    host = environment.get(EXTERNAL_HOST, "")
    if not (len(host) <= NAME_CHARACTERS_MAX and re.fullmatch(r"[A-Za-z0-9.:_-]*", host, re.ASCII)):
        raise InvalidRequestError(f"{EXTERNAL_HOST} is {host[:40]!r}, expected a name or an address")
    return ExternalOffer(name, offered, host)


def _read_shares(read: _Reader, classes: ContainerLayout, processes: int) -> dict[str, tuple[int, ...]]:
    """Containers by journal directory: the processes of all stores together count through them."""
    store_count = read.integer("HEADRACE_STORE_COUNT", 1, least=1)
    store_index = read.integer("HEADRACE_STORE_INDEX", 0, least=0, most=store_count - 1)
    if processes > 1 and store_count * processes > classes.store_containers:
        raise InvalidRequestError(
            f"HEADRACE_PROCESSES is {processes}: with {store_count} stores that is more processes than the "
            f"{classes.store_containers} containers of HEADRACE_CONTAINER_COUNT"
        )
    first, count = store_index * processes, store_count * processes
    return {
        journal_directory(process, processes): containers_of_store(first + process, count, classes.count)
        for process in range(processes)
    }


def _read_ports(read: _Reader, process: int, processes: int) -> dict[str, int | None]:
    """The ports of one process by variable: the first has the ports that are named, the others those that follow.

    0: the system chooses. None: no health port is named.
    """
    most = _PORT_MAX + 1 - processes
    named = {
        "HEADRACE_LISTEN_PORT": read.integer("HEADRACE_LISTEN_PORT", 0, least=0, most=most),
        "HEADRACE_HEALTH_PORT": read.integer("HEADRACE_HEALTH_PORT", -1, least=0, most=most),
        "HEADRACE_REPLICA_PORT": read.integer("HEADRACE_REPLICA_PORT", 0, least=0, most=most),
    }
    for (name, port), (other_name, other) in combinations(named.items(), 2):
        if port > 0 and other > 0 and abs(port - other) < processes:
            raise InvalidRequestError(
                f"{other_name} is {other} and {name} {port}: {processes} processes need as many ports from each of "
                "them on"
            )
    return {name: port + process if port > 0 else None if port < 0 else 0 for name, port in named.items()}


def _read_metrics_service(environment: Mapping[str, str]) -> str:
    service = environment.get("HEADRACE_METRICS_SERVICE", "")
    if not re.fullmatch(r"[A-Za-z0-9._-]{0,255}", service, re.ASCII):
        expected = "at most 255 letters, digits, dots, hyphens and underscores"
        raise InvalidRequestError(f"HEADRACE_METRICS_SERVICE is {service[:40]!r}, expected {expected}")
    return service


def _read_log_compression(environment: Mapping[str, str], zone: str) -> bool:
    """Traffic between zones is paid for; stores of the zone `local` are on one machine."""
    chosen = environment.get("HEADRACE_LOG_COMPRESSION", "auto").lower()
    if chosen not in ("auto", "on", "off"):
        raise InvalidRequestError(f"HEADRACE_LOG_COMPRESSION is {chosen!r}, expected auto, on or off")
    return chosen == "on" or (chosen == "auto" and zone != LOCAL_ZONE)


def _read_networks(environment: Mapping[str, str], name: str) -> tuple[Network, ...]:
    value = environment.get(name, "")
    try:
        return tuple(ip_network(network.strip()) for network in value.split(",") if network.strip())
    except ValueError as error:
        raise InvalidRequestError(f"{name} is {value!r}, expected networks such as 10.0.0.0/16: {error}") from error


def _read_zone_networks(environment: Mapping[str, str]) -> ZoneNetworks:
    try:
        return ZoneNetworks.parse(environment.get("HEADRACE_ZONE_NETWORKS", ""))
    except ValueError as error:
        raise InvalidRequestError(f"HEADRACE_ZONE_NETWORKS: {error}") from error


def _read_copies(read: _Reader) -> int:
    copies = read.integer("HEADRACE_COPIES", 1, least=0)
    if copies not in COPIES:
        raise InvalidRequestError(f"HEADRACE_COPIES is {copies}, expected 1 or 3")
    return copies


def _read_replica_secret(environment: Mapping[str, str], copies: int) -> bytes:
    """Raises InvalidRequestError, whose message never contains the secret."""
    secret = environment.get("HEADRACE_REPLICA_SECRET", "")
    if not secret and copies == 1:
        return b""
    least, most = REPLICA_SECRET_CHARACTERS
    if not least <= len(secret) <= most or not secret.isascii() or not secret.isprintable():
        raise InvalidRequestError(
            f"HEADRACE_REPLICA_SECRET has {len(secret)} characters, expected {least} to {most} printable ASCII "
            "characters, the same for all stores of the deployment"
        )
    return secret.encode("ascii")


def _read_cluster_id(environment: Mapping[str, str], copies: int) -> bytes:
    """Of all stores of the deployment the same. With one copy it may be missing."""
    value = environment.get("HEADRACE_CLUSTER_ID", "")
    if not value and copies == 1:
        return bytes(CLUSTER_ID_BYTES)
    if re.fullmatch(r"[0-9a-fA-F]{32}", value) is None:
        raise InvalidRequestError(
            f"HEADRACE_CLUSTER_ID is {value!r}, expected 32 hexadecimal digits that all stores of the deployment share"
        )
    return bytes.fromhex(value)


def _read_receive_bytes(read: _Reader, cache_bytes: int, processes: int, connections_max: int) -> int:
    """Of one process."""
    least = processes * receive_bytes_min(connections_max)
    default = max(cache_bytes // 8, least)
    return read.integer("HEADRACE_RECEIVE_BYTES", default, least=least) // processes


def _read_limits(read: _Reader, cache_bytes: int, processes: int) -> StorageLimits:
    usual = StorageLimits()
    read_cache_bytes = read.integer(
        "HEADRACE_READ_CACHE_BYTES", cache_bytes // 8, least=processes * READ_CACHE_BYTES_MIN, most=cache_bytes // 2
    )
    return StorageLimits(
        idle_segment_s=read.seconds("HEADRACE_IDLE_SEGMENT_S", usual.idle_segment_s),
        idle_segments_kept=read.integer("HEADRACE_SEGMENTS_KEPT", usual.idle_segments_kept, least=0),
        flush_bytes=read.integer("HEADRACE_FLUSH_BYTES", usual.flush_bytes, least=1),
        flush_age_s=read.seconds("HEADRACE_FLUSH_AGE_S", usual.flush_age_s),
        object_bytes_max=read.integer("HEADRACE_OBJECT_BYTES", usual.object_bytes_max, least=1),
        objects_in_flight_max=read.integer("HEADRACE_OBJECTS_IN_FLIGHT", usual.objects_in_flight_max, least=1),
        checkpoint_every_bytes=read.integer("HEADRACE_CHECKPOINT_BYTES", usual.checkpoint_every_bytes, least=1),
        retry_max_s=read.seconds("HEADRACE_STORAGE_RETRY_MAX_S", usual.retry_max_s),
        snapshot_every_s=read.seconds("HEADRACE_SNAPSHOT_EVERY_S", usual.snapshot_every_s),
        sweep_every_s=read.seconds("HEADRACE_GARBAGE_EVERY_S", usual.sweep_every_s),
        object_grace_s=read.seconds("HEADRACE_GARBAGE_GRACE_S", usual.object_grace_s),
        compaction_bytes_per_s=read.integer("HEADRACE_COMPACTION_BYTES_PER_S", usual.compaction_bytes_per_s, least=0),
        read_cache_bytes=read_cache_bytes // processes,
    )


def process_environments(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """The environment of each process of a store, whose own this is.

    Raises:
        InvalidRequestError: HEADRACE_PROCESSES is wrong.
    """
    processes = _Reader(environment).integer("HEADRACE_PROCESSES", 1, least=1, most=PROCESSES_MAX)
    return [{**environment, "HEADRACE_PROCESS": str(process)} for process in range(processes)]


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str:
        value = self._environment.get(name, "")
        if not value:
            raise InvalidRequestError(f"the environment variable {name} is missing")
        return value

    def integer(self, name: str, default: int, *, least: int, most: int | None = None) -> int:
        value = self._environment.get(name, "")
        if not value:
            return default
        if not value.isascii() or not value.isdigit():
            raise InvalidRequestError(f"{name} is {value!r}, expected a whole number")
        number = int(value)
        if number < least or (most is not None and number > most):
            bounds = f"at least {least}" if most is None else f"{least} to {most}"
            raise InvalidRequestError(f"{name} is {number}, expected {bounds}")
        return number

    def seconds(self, name: str, default: float) -> float:
        value = self._environment.get(name, "")
        if not value:
            return default
        try:
            number = float(value)
        except ValueError as error:
            raise InvalidRequestError(f"{name} is {value!r}, expected a number of seconds") from error
        if not 0 <= number < float("inf"):  # also false for nan
            raise InvalidRequestError(f"{name} is {value}, expected a number of seconds that is not negative")
        return number
