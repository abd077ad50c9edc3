"""What is deployed, declared once as data: functions, routes, queues, schedules, tables, buckets, segment stores.

`infra/` turns these tables into CloudFormation, `headrace/local/` into processes and threads on a laptop; a test proves
that they agree. Nothing here knows AWS's API, and of the library only the defaults below it are imported.
"""

from __future__ import annotations

from headrace.deployment_defaults import CONTAINER_COUNT
from headrace.topology.functions import (
    ABORTS_QUEUE,
    AUDIT_LOG,
    AUDIT_LOG_FUNCTION,
    BUCKET_COUNT,
    CERTIFICATES,
    CHUNK_BUCKET,
    COMMITS_QUEUE,
    DEPLOYMENT_FUNCTIONS,
    EVENT_RULES,
    EXTERNAL_TARGETS,
    FUNCTIONS,
    METADATA_TABLE,
    PREFIX_LISTS,
    QUEUES,
    REPLICATION_GATE,
    REQUESTS_QUEUE,
    SCALING_REPORTS_QUEUE,
    SCHEDULES,
    SENDS_TO,
    TABLES_QUEUE,
    TICKS,
    TICKS_AT_ONCE_PER_BUCKET,
    TICKS_QUEUE,
    TOKEN_KEY_GATE,
    TOKEN_KEY_ROTATION,
    TOKEN_KEYS_SECRET,
    feeds_itself,
    function,
)
from headrace.topology.kinds import Bucket, EventRule, Function, Grant, LogGroup, Queue, Route, Schedule, Table, Tick
from headrace.topology.routes import ROUTE_BY_KEY, ROUTES
from headrace.topology.segment_store_service import LARGEST_STORES, SEGMENT_STORES, SegmentStoreService

__all__ = [
    "ABORTS_QUEUE",
    "AUDIT_LOG",
    "AUDIT_LOG_FUNCTION",
    "BUCKET_COUNT",
    "CERTIFICATES",
    "CHUNK_BUCKET",
    "COMMITS_QUEUE",
    "CONTAINER_COUNT",
    "DEPLOYMENT_FUNCTIONS",
    "EVENT_RULES",
    "EXTERNAL_TARGETS",
    "FUNCTIONS",
    "LARGEST_STORES",
    "METADATA_TABLE",
    "PREFIX_LISTS",
    "QUEUES",
    "REPLICATION_GATE",
    "REQUESTS_QUEUE",
    "ROUTES",
    "ROUTE_BY_KEY",
    "SCALING_REPORTS_QUEUE",
    "SCHEDULES",
    "SEGMENT_STORES",
    "SENDS_TO",
    "TABLES_QUEUE",
    "TICKS",
    "TICKS_AT_ONCE_PER_BUCKET",
    "TICKS_QUEUE",
    "TOKEN_KEYS_SECRET",
    "TOKEN_KEY_GATE",
    "TOKEN_KEY_ROTATION",
    "Bucket",
    "EventRule",
    "Function",
    "Grant",
    "LogGroup",
    "Queue",
    "Route",
    "Schedule",
    "SegmentStoreService",
    "Table",
    "Tick",
    "feeds_itself",
    "function",
]
