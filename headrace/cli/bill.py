"""What a deployment costs in a month, line by line, and what services cost that do a part of its work.

All is arithmetic over the declared deployment and over list prices. The counts of what the templates declare are
compared with the templates by a test. Savings plans, free tiers, support and taxes are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.deployment_defaults import CONTAINER_COUNT
from headrace.embedded_metrics import CANARY_METRICS, STORE_METRICS
from headrace.model.errors import InvalidRequestError
from headrace.topology.functions import CANARY, TICKS
from headrace.topology.services import SEGMENT_STORES

PRICES_OF: Final = "us-east-1, November 2026"
HOURS: Final = 730
_GB_OF_A_MB_PER_S: Final = HOURS * 3600 / 1000
"""GB a month of 1 MB/s: 2,628."""
_SECONDS_OF_30_DAYS: Final = 30 * 86_400
ZONES: Final = 3


class Prices:
    """Dollars, by list."""

    CORE_HOUR: Final = 0.03238
    MEMORY_GB_HOUR: Final = 0.00356
    VOLUME_GB_MONTH: Final = 0.08
    ENDPOINT_ZONE_HOUR: Final = 0.01
    GATEWAY_HOUR: Final = 0.05
    """With its address."""
    ALARM_METRIC: Final = 0.10
    COMPOSITE_ALARM: Final = 0.50
    METRIC: Final = 0.30
    DASHBOARD: Final = 3.0
    SECRET_MONTH: Final = 0.40
    KEY_MONTH: Final = 1.0
    PRIVATE_ZONE_MONTH: Final = 0.50
    MILLION_TICKS: Final = 2.20
    """SQS 0.80 (each is received and deleted alone), Lambda 1.24, one read of DynamoDB."""
    FUNCTION_GB_SECOND: Final = 0.0000133334
    MILLION_FUNCTION_CALLS: Final = 0.20
    ZONE_CROSSING_GB: Final = 0.02
    BALANCER_HOUR: Final = 0.0225
    BALANCER_GB: Final = 0.006
    ADDRESS_HOUR: Final = 0.005
    LEAVING_GB: Final = 0.09
    """To the internet; less from 10 TB a month on."""
    STORED_GB_MONTH: Final = 0.023
    MILLION_PUTS: Final = 5.0
    MILLION_GETS: Final = 0.40
    MILLION_LISTINGS: Final = 2.0
    """Of links to history: a call of the API 1.00, its function 0.55, two reads of DynamoDB, and a log line."""
    MILLION_WRITE_UNITS: Final = 0.625

    SHARD_HOUR: Final = 0.015
    SHARD_RETENTION_HOUR: Final = 0.02
    MILLION_PUT_UNITS: Final = 0.014
    CONSUMER_SHARD_HOUR: Final = 0.015
    CONSUMER_GB: Final = 0.013
    STREAM_HOUR: Final = 0.04
    ON_DEMAND_GB_IN: Final = 0.08
    ON_DEMAND_CONSUMER_GB: Final = 0.05
    ON_DEMAND_GB_MONTH: Final = 0.10
    ADVANTAGE_GB_IN: Final = 0.032
    ADVANTAGE_GB_OUT: Final = 0.016
    ADVANTAGE_GB_MONTH: Final = 0.04
    LONG_RETENTION_GB_MONTH: Final = 0.023
    """Of Kinesis, from the eighth day on."""

    BROKER_HOUR: Final = 0.408
    """MSK Express, m7g.large. Larger ones cost as much for the same bytes."""
    BROKER_GB_IN: Final = 0.01
    BROKER_GB_MONTH: Final = 0.10


ENDPOINTS: Final = 5
ALARMS: Final = 127
ALARM_METRICS: Final = 160
COMPOSITE_ALARMS: Final = 5
SECRETS: Final = 5
"""Of three stores, of the token keys, and the one that stores share."""
OWN_METRICS: Final = 20
"""Of functions and of lines that are counted, as alarms name them; those with the dimension `Service` are others."""
STORE_METRICS_IN_ALL: Final = ZONES * len(STORE_METRICS) + len(CANARY_METRICS)
"""Of the stores of each zone, and of the canary."""
DASHBOARDS: Final = 1
EVENT_SOURCE_MAPPINGS: Final = 12

PLANNED_JOURNAL_MB_PER_S: Final = 75.0
"""Of entries of all copies that the volume of one process takes, with a reserve: gp3 includes 125 MiB/s."""
PLANNED_CONNECTION_MB_PER_S: Final = 150.0
"""Of appends, copies and reads that one process moves on one core, with a reserve."""
FLUSH_AGE_S: Final = 5.0
FLUSH_BYTES: Final = 16 << 20
FLUSH_WRITE_UNITS: Final = 4
"""Of a flush: the check of the claim, and the count of the object. Each run in the object costs as many, half of them
when it is deleted."""
LISTED_BYTES: Final = 64 << 20
"""That one listing of links has, for a reader in another zone than the store."""
_SNAPSHOT_EVERY_S: Final = 30.0
CANARY_SECONDS: Final = 1.0
"""Of a call of the canary: an estimate."""
CANARY_SNAPSHOTS: Final = 2
"""That follow an event in a container that has no other: of the event, and of its flush."""

_SHARD_MB_PER_S: Final = 0.7
"""A shard takes 1 MB/s: it is planned for 70 %."""
_PUT_UNIT_BYTES: Final = 25_000
_ADVANTAGE_MIN_MB_PER_S: Final = 25 * 1.048576
_BROKER_IN_MB_PER_S: Final = 15.6
_BROKER_OUT_MB_PER_S: Final = 31.2

MB_PER_S_MAX: Final = 10_000.0
READERS_MAX: Final = 1_000
RETENTION_DAYS_MAX: Final = 3_650.0


class Line(NamedTuple):
    """A line of a bill: what it is, and dollars a month."""

    text: str
    dollars: float


@dataclass(frozen=True, slots=True)
class Load:
    """What a deployment does all the time: writes, readers that each read everything once, and how long it is kept.

    One MB is 10^6 bytes. Clients are spread evenly over three zones, and events are not compressed.
    """

    mb_per_s: float
    readers: int
    retention_days: float
    copies: int = SEGMENT_STORES.copies
    is_outside: bool = False
    """Whether writers and readers are outside the VPC."""
    from_s3: float = 0.0
    """The part of what is read that is history: readers in another zone than its store read it from S3."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("mb-per-s", self.mb_per_s, 0, MB_PER_S_MAX),
            ("readers", self.readers, 0, READERS_MAX),
            ("retention-days", self.retention_days, 0, RETENTION_DAYS_MAX),
            ("copies", self.copies, 1, 3),
            ("from-s3", self.from_s3, 0, 1),
        ):
            if not least <= value <= most:
                raise InvalidRequestError(f"{name} is {value:g}: it must be between {least} and {most:g}")

    @property
    def gb(self) -> float:
        """Written in a month."""
        return self.mb_per_s * _GB_OF_A_MB_PER_S

    @property
    def stored_gb(self) -> float:
        return self.mb_per_s * 86.4 * self.retention_days

    @property
    def stores(self) -> int:
        """Tasks of the declared size, as many in each zone."""
        journal = self.mb_per_s * self.copies / PLANNED_JOURNAL_MB_PER_S
        connections = self.mb_per_s * (2 * self.copies - 1 + self.readers) / PLANNED_CONNECTION_MB_PER_S
        wanted = max(journal, connections) / SEGMENT_STORES.processes
        return ZONES * max(SEGMENT_STORES.stores_per_zone, math.ceil(wanted / ZONES))

    @property
    def segments(self) -> int:
        """Busy ones. More of them cost more runs in tier 2."""
        return max(CONTAINER_COUNT, math.ceil(self.mb_per_s)) if self.mb_per_s else 0


def ticks_per_month() -> int:
    """Of 30 days, all buckets and kinds."""
    return sum(tick.buckets * _SECONDS_OF_30_DAYS // tick.every_s for tick in TICKS)


def idle_lines(stores: int = SEGMENT_STORES.stores, *, spark_job: bool = True) -> list[Line]:
    """What a deployment with so many stores costs without traffic."""
    cores, memory_gb = SEGMENT_STORES.cpu_units / 1024, SEGMENT_STORES.memory_mb / 1024
    hourly = cores * Prices.CORE_HOUR + memory_gb * Prices.MEMORY_GB_HOUR
    ticks, processes = ticks_per_month(), stores * SEGMENT_STORES.processes
    volume_gb, endpoint_hours = SEGMENT_STORES.volume_gib, ENDPOINTS * ZONES * HOURS
    secrets_of_month = SECRETS * Prices.SECRET_MONTH + Prices.KEY_MONTH + Prices.PRIVATE_ZONE_MONTH
    lines = [
        Line(f"{stores} Fargate tasks, ARM, {cores:.0f} vCPU and {memory_gb:.0f} GB", stores * HOURS * hourly),
        Line(f"{stores} \N{MULTIPLICATION SIGN} {volume_gb} GB gp3", stores * volume_gb * Prices.VOLUME_GB_MONTH),
        Line(f"{ENDPOINTS} interface endpoints in {ZONES} zones", endpoint_hours * Prices.ENDPOINT_ZONE_HOUR),
        Line("NAT gateway and its address", HOURS * Prices.GATEWAY_HOUR),
        Line(f"{ALARMS} alarms on {ALARM_METRICS} metrics", ALARM_METRICS * Prices.ALARM_METRIC),
        Line(f"{COMPOSITE_ALARMS} composite alarms", COMPOSITE_ALARMS * Prices.COMPOSITE_ALARM),
        Line(f"{OWN_METRICS} metrics of functions and log lines", OWN_METRICS * Prices.METRIC),
        Line(f"{STORE_METRICS_IN_ALL} metrics of stores and canary", STORE_METRICS_IN_ALL * Prices.METRIC),
        Line(f"canary: an event a minute in {CONTAINER_COUNT} containers", canary_dollars()),
        Line(f"{DASHBOARDS} dashboard", DASHBOARDS * Prices.DASHBOARD),
        Line(f"{ticks:,} ticks", ticks / 1e6 * Prices.MILLION_TICKS),
        Line(f"polling by {EVENT_SOURCE_MAPPINGS} event source mappings", 3.0),
        Line(f"leases of {processes} stores", float(processes)),
        Line("Container Insights", 9.0 * stores),
        Line("logs", 1.6),
        Line(f"{SECRETS} secrets, a key and a zone of TLS and tokens", secrets_of_month),
    ]
    return [line for line in lines if spark_job or not line.text.startswith("NAT gateway")]


def canary_dollars() -> float:
    """The calls of the canary, and the flushes of its events in containers that have no others."""
    calls = HOURS * 60
    flushes = calls * CONTAINER_COUNT
    compute = calls * CANARY_SECONDS * CANARY.memory_mb / 1024 * Prices.FUNCTION_GB_SECOND
    units = FLUSH_WRITE_UNITS * (2 + 1 + CANARY_SNAPSHOTS) * flushes
    return (
        compute
        + calls / 1e6 * Prices.MILLION_FUNCTION_CALLS
        + (1 + CANARY_SNAPSHOTS) * flushes / 1e6 * Prices.MILLION_PUTS
        + units / 1e6 * Prices.MILLION_WRITE_UNITS
    )


def traffic_lines(load: Load) -> list[Line]:
    """What the load adds to the lines of an idle deployment with `load.stores` stores."""
    if not load.mb_per_s:
        return []
    flushes_per_s = max(CONTAINER_COUNT / FLUSH_AGE_S, load.mb_per_s * 1e6 / FLUSH_BYTES)
    runs_per_s = flushes_per_s * load.segments / CONTAINER_COUNT
    snapshots_per_s = CONTAINER_COUNT / _SNAPSHOT_EVERY_S
    puts = (flushes_per_s + snapshots_per_s) * HOURS * 3600
    units = FLUSH_WRITE_UNITS * (2 * flushes_per_s + runs_per_s + snapshots_per_s) * HOURS * 3600
    return [
        *zone_lines(load),
        Line(f"S3: {load.stored_gb:,.0f} GB", load.stored_gb * Prices.STORED_GB_MONTH),
        Line("S3: requests", puts / 1e6 * Prices.MILLION_PUTS),
        Line("DynamoDB: what is in S3", units / 1e6 * Prices.MILLION_WRITE_UNITS),
    ]


def zone_lines(load: Load) -> list[Line]:
    """Bytes between zones, and what it costs that history does not cross them."""
    away = (ZONES - 1) / ZONES  # the part of the bytes whose sender and receiver are in different zones
    crossing, tail = Prices.ZONE_CROSSING_GB * load.gb, 1 - load.from_s3
    copies = Line(f"between zones: {load.copies} copies of the log", crossing * (load.copies - 1))
    if load.is_outside:
        return [copies]  # from outside, the name of a store leads to its zone
    lines = [
        Line("between zones: writes", crossing * away),
        copies,
        Line(f"between zones: reads of {load.readers} readers", crossing * away * load.readers * tail),
    ]
    linked_bytes = load.gb * 1e9 * away * load.readers * load.from_s3
    if linked_bytes:
        run_bytes = FLUSH_BYTES * CONTAINER_COUNT / load.segments
        links = linked_bytes / run_bytes * Prices.MILLION_GETS + linked_bytes / LISTED_BYTES * Prices.MILLION_LISTINGS
        lines.append(Line("links to history in S3", links / 1e6))
    return lines


def external_lines(load: Load) -> list[Line]:
    """What clients outside the VPC add: a load balancer, and what goes through it. History is read from S3."""
    if not load.is_outside:
        return []
    lines = [
        Line("load balancer for clients outside", HOURS * Prices.BALANCER_HOUR),
        Line(f"public addresses in {ZONES} zones", HOURS * ZONES * Prices.ADDRESS_HOUR),
    ]
    if not load.mb_per_s:
        return lines
    return [
        *lines,
        Line("bytes through the load balancer", load.gb * (1 + load.readers) * Prices.BALANCER_GB),
        Line(f"reads of {load.readers} readers that leave AWS", load.gb * load.readers * Prices.LEAVING_GB),
    ]


def bill(load: Load) -> list[Line]:
    """All lines of a deployment without the Spark job."""
    return [*idle_lines(load.stores, spark_job=False), *traffic_lines(load), *external_lines(load)]


def total(lines: Sequence[Line]) -> float:
    return sum(line.dollars for line in lines)


def other_services(load: Load) -> list[Line]:
    """What the same bytes cost elsewhere; each reader of Kinesis has enhanced fan-out."""
    days = max(0.0, min(load.retention_days, 7) - 1)
    days_long = max(0.0, load.retention_days - 7)
    kept_gb, long_gb = load.mb_per_s * 86.4 * days, load.mb_per_s * 86.4 * days_long
    long_term = long_gb * Prices.LONG_RETENTION_GB_MONTH
    shards = max(1, math.ceil(load.mb_per_s / _SHARD_MB_PER_S))
    provisioned = HOURS * shards * (Prices.SHARD_HOUR + load.readers * Prices.CONSUMER_SHARD_HOUR)
    put_units = load.gb * 1e9 / _PUT_UNIT_BYTES
    provisioned += put_units / 1e6 * Prices.MILLION_PUT_UNITS + load.gb * load.readers * Prices.CONSUMER_GB
    provisioned += long_term + (HOURS * shards * Prices.SHARD_RETENTION_HOUR if days else 0)
    on_demand = HOURS * Prices.STREAM_HOUR + kept_gb * Prices.ON_DEMAND_GB_MONTH + long_term
    on_demand += load.gb * (Prices.ON_DEMAND_GB_IN + load.readers * Prices.ON_DEMAND_CONSUMER_GB)
    least_gb = _ADVANTAGE_MIN_MB_PER_S * _GB_OF_A_MB_PER_S
    advantage = max(load.gb, least_gb) * Prices.ADVANTAGE_GB_IN + kept_gb * Prices.ADVANTAGE_GB_MONTH + long_term
    advantage += max(load.gb * load.readers, least_gb) * Prices.ADVANTAGE_GB_OUT
    brokers = ZONES * max(
        1,
        math.ceil(load.mb_per_s / (ZONES * _BROKER_IN_MB_PER_S)),
        math.ceil(load.mb_per_s * load.readers / (ZONES * _BROKER_OUT_MB_PER_S)),
    )
    crossing = load.gb * Prices.ZONE_CROSSING_GB * (ZONES - 1) / ZONES * (1 + load.readers)
    msk = HOURS * brokers * Prices.BROKER_HOUR + load.gb * Prices.BROKER_GB_IN + crossing
    msk += load.stored_gb * Prices.BROKER_GB_MONTH
    return [
        Line(f"Kinesis provisioned, {shards} shards", provisioned),
        Line("Kinesis on demand", on_demand),
        Line("Kinesis On-demand Advantage", advantage),
        Line(f"MSK Express, {brokers} brokers", msk),
    ]
