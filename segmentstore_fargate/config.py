"""What a segment store process reads from its environment, and nothing else of it does.

| variable | meaning | default |
|---|---|---|
| HEADRACE_STORE_ID | name of this store in claims and logs, for example store-0 | required |
| HEADRACE_STORE_INDEX, HEADRACE_STORE_COUNT | which containers it takes: every COUNT-th from INDEX on | 0, 1 |
| HEADRACE_CONTAINER_COUNT | containers of the deployment, fixed for its life | topology.CONTAINER_COUNT |
| HEADRACE_DATA_DIR | directory of the journal, on a volume of its own | required |
| HEADRACE_LISTEN_HOST, HEADRACE_LISTEN_PORT | where to serve; port 0: the system chooses | 127.0.0.1, 0 |
| HEADRACE_ADVERTISED_HOST | the address that clients are told | the task's on ECS, else LISTEN_HOST |
| HEADRACE_ZONE | availability zone id | local |
| HEADRACE_METADATA_TABLE, HEADRACE_CHUNK_BUCKET | DynamoDB table and S3 bucket | required |
| HEADRACE_CACHE_BYTES | memory for appended data | 512 MiB |
| HEADRACE_JOURNAL_FILE_BYTES | size of one journal file | 64 MiB |
| HEADRACE_FLUSH_BYTES, HEADRACE_FLUSH_AGE_S | when a container writes to S3 | 16 MiB, 5 |
| HEADRACE_CHECKPOINT_BYTES | how much log a container writes between two checkpoints | 64 MiB |
| HEADRACE_COMPACTION_BYTES_PER_S | for merging small runs in S3, of the whole process; 0: never | 8 MiB |
| HEADRACE_HEALTH_PORT | serve GET /health, /ready and /metrics there; port 0: the system chooses | nowhere |
| HEADRACE_STOP_DEADLINE_S | for storing what is in memory after SIGTERM | 60 |
| HEADRACE_LOG_LEVEL | of the standard library's logging | INFO |

Region, credentials and endpoints come from the standard AWS_* variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace import topology
from headrace.model.containers import containers_of_store
from headrace.model.errors import InvalidRequestError
from headrace.segmentstore.log.journal import JOURNAL_FILE_BYTES
from headrace.segmentstore.storage.limits import StorageLimits

CACHE_BYTES_DEFAULT: Final = 512 << 20
CACHE_BYTES_MIN: Final = 64 << 20
"""Four times the largest frame: less could not be sure to take an append while another is on its way to S3."""

JOURNAL_FILE_BYTES_MIN: Final = 32 << 20
STOP_DEADLINE_DEFAULT_S: Final = 60.0
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """One process. `advertised_host` None: ask the platform. `health_port` None: no pages."""

    store_id: str
    containers: tuple[int, ...]
    container_count: int
    data_dir: Path
    listen_host: str
    listen_port: int
    advertised_host: str | None
    zone: str
    metadata_table: str
    chunk_bucket: str
    cache_bytes: int
    journal_file_bytes: int
    limits: StorageLimits
    health_port: int | None
    stop_deadline_s: float
    log_level: str


def read_config(environment: Mapping[str, str]) -> StoreConfig:
    """Raises InvalidRequestError: a variable is missing or wrong; the message names it."""
    read = _Reader(environment)
    container_count = read.integer("HEADRACE_CONTAINER_COUNT", topology.CONTAINER_COUNT, least=1)
    store_count = read.integer("HEADRACE_STORE_COUNT", 1, least=1)
    store_index = read.integer("HEADRACE_STORE_INDEX", 0, least=0, most=store_count - 1)
    usual = StorageLimits()
    log_level = environment.get("HEADRACE_LOG_LEVEL", "INFO").upper()
    if log_level not in LOG_LEVELS:
        raise InvalidRequestError(f"HEADRACE_LOG_LEVEL is {log_level!r}, expected one of {', '.join(LOG_LEVELS)}")
    return StoreConfig(
        store_id=read.text("HEADRACE_STORE_ID"),
        containers=containers_of_store(store_index, store_count, container_count),
        container_count=container_count,
        data_dir=Path(read.text("HEADRACE_DATA_DIR")),
        listen_host=environment.get("HEADRACE_LISTEN_HOST", "127.0.0.1"),
        listen_port=read.integer("HEADRACE_LISTEN_PORT", 0, least=0, most=65535),
        advertised_host=environment.get("HEADRACE_ADVERTISED_HOST") or None,
        zone=environment.get("HEADRACE_ZONE", "local"),
        metadata_table=read.text("HEADRACE_METADATA_TABLE"),
        chunk_bucket=read.text("HEADRACE_CHUNK_BUCKET"),
        cache_bytes=read.integer("HEADRACE_CACHE_BYTES", CACHE_BYTES_DEFAULT, least=CACHE_BYTES_MIN),
        journal_file_bytes=read.integer(
            "HEADRACE_JOURNAL_FILE_BYTES", JOURNAL_FILE_BYTES, least=JOURNAL_FILE_BYTES_MIN
        ),
        limits=StorageLimits(
            flush_bytes=read.integer("HEADRACE_FLUSH_BYTES", usual.flush_bytes, least=1),
            flush_age_s=read.seconds("HEADRACE_FLUSH_AGE_S", usual.flush_age_s),
            checkpoint_every_bytes=read.integer("HEADRACE_CHECKPOINT_BYTES", usual.checkpoint_every_bytes, least=1),
            compaction_bytes_per_s=read.integer(
                "HEADRACE_COMPACTION_BYTES_PER_S", usual.compaction_bytes_per_s, least=0
            ),
        ),
        health_port=read.optional_integer("HEADRACE_HEALTH_PORT", least=0, most=65535),
        stop_deadline_s=read.seconds("HEADRACE_STOP_DEADLINE_S", STOP_DEADLINE_DEFAULT_S),
        log_level=log_level,
    )


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str:
        value = self._environment.get(name, "")
        if not value:
            raise InvalidRequestError(f"the environment variable {name} is missing")
        return value

    def optional_integer(self, name: str, *, least: int, most: int) -> int | None:
        return self.integer(name, least, least=least, most=most) if self._environment.get(name) else None

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
