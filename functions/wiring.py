"""Builds services from adapters: the only module of the functions that chooses adapters.

Each object is built at its first use and kept until the process ends. A warm function then builds nothing, and a
function that does not use S3 never creates an S3 client. Adapters are imported where they are built, because imports
are most of a cold start.

On Lambda a function builds what it needs while this module is imported. Until a function is initialized Lambda gives
it a whole processor; afterwards it gets only the share that its memory buys, a third.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable
from secrets import randbits
from typing import TYPE_CHECKING

from functions.built_once import forget_all
from functions.built_once import once as _once
from functions.environment import Environment
from headrace import topology
from headrace.adapters.system_clock import SystemClock
from headrace.model.requests import ResourceKind

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_sqs import SQSClient

    from headrace.adapters.audit_log import AuditLog
    from headrace.adapters.cloudwatch_logs import LogStream
    from headrace.adapters.tcp.segment_stores import TcpSegmentStores
    from headrace.controller.acceptance import Acceptance, CheckWritten
    from headrace.controller.engine import RequestProcessor, Tools
    from headrace.controller.operations.abort_transaction import AbortProcessor
    from headrace.controller.operations.commit_transactions import CommitProcessor
    from headrace.controller.services.auto_scaling import AutoScalingService
    from headrace.controller.services.cluster_service import ClusterService
    from headrace.controller.services.dead_letter_service import DeadLetterService
    from headrace.controller.services.endpoints import SegmentEndpoints
    from headrace.controller.services.history import HistoryService
    from headrace.controller.services.key_value_table_service import KeyValueTableService
    from headrace.controller.services.reader_group_service import ReaderGroupService
    from headrace.controller.services.retention_service import RetentionService, SubscriberService
    from headrace.controller.services.scope_deletion import ScopeDeletionService
    from headrace.controller.services.scope_service import ScopeService
    from headrace.controller.services.segment_service import SegmentService
    from headrace.controller.services.stream_cut_service import StreamCutService
    from headrace.controller.services.stream_service import ScalingEventService, StreamService
    from headrace.controller.services.transaction_service import TransactionService
    from headrace.controller.services.watermark_service import WatermarkService
    from headrace.controller.ticks.advance_watermarks import ScheduleEntry
    from headrace.controller.ticks.apply_retention import RetentionTicks
    from headrace.controller.ticks.due_work import DueWorkTicks
    from headrace.metadata.fixed_settings import FixedSettingsReader
    from headrace.metadata.format_gate import FormatGate
    from headrace.metadata.optimistic_retry import ConflictBackoff
    from headrace.metadata.request_messages import RequestQueues
    from headrace.metadata.transaction_messages import TransactionQueues
    from headrace.ports.chunk_storage import ChunkLinks
    from headrace.ports.clock import Clock
    from headrace.ports.metadata_store import MetadataStore
    from headrace.ports.request_queue import RequestQueue
    from headrace.ports.segment_stores import SegmentStores
    from headrace.ports.workers import Workers

CHUNK_LINKS_EXPIRE_S = 900
WORKERS_PER_TICK = 32
"""The number of connections that the DynamoDB client keeps open."""


def forget_services() -> None:
    """Make the next call build each object again, because the environment or the targets of connections changed."""
    forget_all()


@_once
def environment() -> Environment:
    return Environment()


@_once
def clock() -> Clock:
    return SystemClock()


@_once
def audit_log() -> AuditLog:
    from headrace.adapters.audit_log import AuditLog

    return AuditLog.from_environment(os.environ)


@_once
def audit_log_stream() -> LogStream:
    """A stream of this process in the log group of audit lines, to which it copies those of other functions."""
    from headrace.adapters.cloudwatch_logs import LogStream

    return LogStream(environment().audit_log_group, os.environ.get("AWS_LAMBDA_LOG_STREAM_NAME", "local"))


@_once
def aws_session() -> Session:
    """The session of all clients: the data files of botocore that it reads are then read once."""
    import botocore.session

    return botocore.session.get_session()


@_once
def metadata_store() -> MetadataStore:
    from headrace.adapters.dynamodb.client import dynamodb_client
    from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore

    return DynamoMetadataStore(environment().metadata_table, dynamodb_client(aws_session()))


@_once
def check_bucket_count() -> None:
    """Check once per process, or again after a failure; raises as `check_fixed_setting` does."""
    from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting

    check_fixed_setting(metadata_store(), FixedSetting.BUCKETS, topology.BUCKET_COUNT)


@_once
def fixed_settings() -> FixedSettingsReader:
    """For functions of the API and of queues, some of which may only read. Stores and ticks record the values."""
    from headrace.metadata.fixed_settings import FixedSetting, FixedSettingsReader

    containers, s3_containers = environment().containers
    settings = {FixedSetting.CONTAINERS: containers, FixedSetting.S3_CONTAINERS: s3_containers}
    return FixedSettingsReader(metadata_store(), settings | {FixedSetting.BUCKETS: topology.BUCKET_COUNT})


@_once
def format_gate() -> FormatGate:
    from headrace.metadata.format_gate import FormatGate

    return FormatGate(metadata_store(), clock())


@_once
def sqs_client() -> SQSClient:
    from headrace.adapters.sqs import sqs_client

    return sqs_client(aws_session())


@_once
def request_queue() -> RequestQueue:
    from headrace.adapters.sqs import SqsRequestQueue

    return SqsRequestQueue(environment().requests_queue_url, sqs_client())


@_once
def table_queue() -> RequestQueue:
    from headrace.adapters.sqs import SqsRequestQueue

    return SqsRequestQueue(environment().tables_queue_url, sqs_client())


@_once
def transaction_queues() -> TransactionQueues:
    from headrace.metadata.transaction_messages import TransactionQueues

    return TransactionQueues(commit_queue(), abort_queue())


def request_queues() -> RequestQueues:
    """The queue of the requests on each kind of resource."""
    return dict.fromkeys(ResourceKind, request_queue()) | {ResourceKind.KEY_VALUE_TABLE: table_queue()}


@_once
def _tcp_segment_stores() -> TcpSegmentStores:
    from functions.token_wiring import internal_token
    from headrace.adapters.tcp.segment_stores import TcpSegmentStores
    from headrace.adapters.tcp.store_calls import locate_by_claims
    from headrace.adapters.tcp.store_trust import StoreTrust

    store = metadata_store()
    return TcpSegmentStores(
        locate_by_claims(store), *environment().containers, token=internal_token(), trust=StoreTrust(store)
    )


def segment_stores() -> SegmentStores:
    return _tcp_segment_stores()


def is_store_unreachable(segment: str) -> bool:
    """Whether the store of the segment did not answer a recent call. A tick then continues with other streams."""
    return _tcp_segment_stores().is_unreachable(segment)


def note_undecodable(kind: str) -> None:
    """Count a record that a tick of this kind skipped because it could not be decoded."""
    from functions.observability import count

    count("RecordsUndecodable", kind=kind)


@_once
def workers() -> Workers:
    """The threads of ticks, plans and commit sets, which wait for other services most of the time."""
    from headrace.adapters.worker_threads import WorkerThreads

    return WorkerThreads(WORKERS_PER_TICK)


@_once
def scope_service() -> ScopeService:
    from headrace.controller.services.scope_service import ScopeService

    return ScopeService(metadata_store())


@_once
def scope_deletion_service() -> ScopeDeletionService:
    from headrace.controller.services.scope_deletion import ScopeDeletionService

    return ScopeDeletionService(metadata_store(), request_queue(), clock())


@_once
def stream_service() -> StreamService:
    from headrace.controller.services.stream_service import StreamService

    return StreamService(metadata_store(), request_queue(), clock(), _conflict_backoff(), environment().s3_containers)


def acceptance() -> Acceptance:
    """What the requests of ticks, reports and replayed dead letters are accepted with."""
    return stream_service().acceptance


@_once
def auto_scaling_service() -> AutoScalingService:
    from headrace.controller.services.auto_scaling import AutoScalingService

    return AutoScalingService(metadata_store(), acceptance(), clock())


def _check_written() -> CheckWritten:
    from headrace.controller.services.stream_ends import WrittenCuts

    return WrittenCuts(segment_stores()).check


@_once
def reader_group_service() -> ReaderGroupService:
    from headrace.controller.services.reader_group_service import ReaderGroupService

    return ReaderGroupService(metadata_store(), request_queue(), clock(), _check_written())


@_once
def table_service() -> KeyValueTableService:
    from headrace.controller.services.key_value_table_service import KeyValueTableService

    return KeyValueTableService(metadata_store(), table_queue(), clock())


@_once
def segment_endpoints() -> SegmentEndpoints:
    """For functions that may not read the keys with which stores are called."""
    from headrace.controller.services.endpoints import SegmentEndpoints

    return SegmentEndpoints(metadata_store(), *environment().containers)


@_once
def segment_service() -> SegmentService:
    from headrace.controller.services.segment_service import SegmentService

    return SegmentService(metadata_store(), segment_stores(), acceptance, *environment().containers)


@_once
def transaction_service() -> TransactionService:
    from headrace.controller.services.transaction_service import TransactionService

    return TransactionService(
        metadata_store(), segment_stores(), transaction_queues(), clock(), randbits, _conflict_backoff(), workers()
    )


@_once
def cluster_service() -> ClusterService:
    from headrace.controller.services.cluster_service import ClusterService

    return ClusterService(metadata_store(), environment().all_containers)


@_once
def watermark_service() -> WatermarkService:
    from headrace.controller.services.watermark_service import WatermarkService

    return WatermarkService(metadata_store())


@_once
def watermark_ticks() -> DueWorkTicks[ScheduleEntry]:
    from headrace.controller.ticks.advance_watermarks import WatermarkAdvancer, watermark_ticks

    advancer = WatermarkAdvancer(metadata_store(), segment_stores(), clock(), is_store_unreachable)
    return watermark_ticks(metadata_store(), clock(), advancer.advance, workers(), note_undecodable)


@_once
def stream_cut_service() -> StreamCutService:
    from headrace.controller.services.stream_cut_service import StreamCutService

    return StreamCutService(metadata_store(), segment_stores(), segment_service())


@_once
def scaling_event_service() -> ScalingEventService:
    from headrace.controller.services.stream_service import ScalingEventService

    return ScalingEventService(metadata_store())


@_once
def subscriber_service() -> SubscriberService:
    from headrace.controller.services.retention_service import SubscriberService

    return SubscriberService(metadata_store(), clock(), _check_written())


@_once
def retention_service() -> RetentionService:
    from headrace.controller.services.retention_service import RetentionService

    return RetentionService(metadata_store(), segment_stores(), clock())


@_once
def retention_ticks() -> RetentionTicks:
    from headrace.controller.operations.truncate_stream import accept
    from headrace.controller.ticks.apply_retention import RetentionTicks

    truncate, period_ms = functools.partial(accept, acceptance()), environment().retention_period_ms
    return RetentionTicks(metadata_store(), segment_stores(), clock(), truncate, period_ms, workers(), note_undecodable)


@_once
def chunk_links() -> ChunkLinks:
    from headrace.adapters.s3.chunk_links import S3ChunkLinks
    from headrace.adapters.s3.client import s3_client

    return S3ChunkLinks(environment().chunk_bucket, s3_client(aws_session()), CHUNK_LINKS_EXPIRE_S, clock())


@_once
def history_service() -> HistoryService:
    from headrace.controller.services.history import HistoryService

    return HistoryService(metadata_store(), segment_stores(), chunk_links())


@_once
def commit_queue() -> RequestQueue:
    from headrace.adapters.sqs import SqsRequestQueue

    return SqsRequestQueue(environment().commits_queue_url, sqs_client())


@_once
def abort_queue() -> RequestQueue:
    from headrace.adapters.sqs import SqsRequestQueue

    return SqsRequestQueue(environment().aborts_queue_url, sqs_client())


def queue_named(name: str) -> RequestQueue:
    """The FIFO queue of this name in the topology; a function may send only to queues that its grants include."""
    queues: dict[str, Callable[[], RequestQueue]] = {
        topology.REQUESTS_QUEUE.name: lambda: request_queue(),
        topology.TABLES_QUEUE.name: lambda: table_queue(),
        topology.COMMITS_QUEUE.name: lambda: commit_queue(),
        topology.ABORTS_QUEUE.name: lambda: abort_queue(),
    }
    return queues[name]()


@_once
def dead_letter_service() -> DeadLetterService:
    from headrace.controller.services.dead_letter_service import DeadLetterService

    fifo_queues = (topology.REQUESTS_QUEUE, topology.TABLES_QUEUE, topology.COMMITS_QUEUE, topology.ABORTS_QUEUE)
    queues = {queue.name: queue_named(queue.name) for queue in fifo_queues}
    return DeadLetterService(metadata_store(), queues, acceptance())


def _conflict_backoff() -> ConflictBackoff:
    from headrace.metadata.optimistic_retry import ConflictBackoff

    return ConflictBackoff(time.sleep, random.random)


def tools() -> Tools:
    from headrace.controller.operations import registry

    return registry.tools(metadata_store(), segment_stores(), clock(), request_queue, workers())


@_once
def commit_processor() -> CommitProcessor:
    from headrace.controller.operations.commit_transactions import CommitProcessor

    return CommitProcessor(tools())


@_once
def abort_processor() -> AbortProcessor:
    from headrace.controller.operations.abort_transaction import AbortProcessor

    return AbortProcessor(tools())


@_once
def request_processor() -> RequestProcessor:
    from headrace.controller.engine import RequestProcessor

    return RequestProcessor(tools())


def build_what_is_needed(declared: topology.Function) -> None:
    """Build the objects that nearly every call of this function uses, according to its grants."""
    if "metadata:read" in declared.grants:
        metadata_store()
    if not declared.sends_rarely and any(grant in topology.SENDS_TO for grant in declared.grants):
        sqs_client()
    if "chunks:read" in declared.grants:
        chunk_links()
    if declared.reaches_segment_stores:
        segment_stores()
    elif "token-keys:read" in declared.grants:
        from functions.token_wiring import delegation_tokens

        delegation_tokens()


if "AWS_LAMBDA_FUNCTION_NAME" in os.environ:
    build_what_is_needed(topology.function(os.environ["POWERTOOLS_SERVICE_NAME"]))
