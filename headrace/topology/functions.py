"""Functions, the queues that feed them, the schedule and the ticks that set the pace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from headrace.topology.kinds import (
    DEAD_LETTER_FUNCTION,
    Bucket,
    EventRule,
    Function,
    Grant,
    LogGroup,
    Queue,
    Schedule,
    Table,
    Tick,
)

AUDIT_LOG_FUNCTION = "audit-log"
"""Subscriptions of the logs of API functions call it."""

METADATA_TABLE = Table("headrace-metadata")
TOKEN_KEYS_SECRET = "headrace-token-keys"
"""The secret with the keys for delegation tokens, in a deployment with tokens."""
CHUNK_BUCKET = Bucket("headrace-chunks")
AUDIT_LOG = LogGroup("/headrace/audit", days=400)
"""The audit lines of all functions, for more than a year."""


def _bucket_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"HEADRACE_BUCKET_COUNT is {text!r}: expected a whole number, at least 1")
    return int(text)


BUCKET_COUNT = _bucket_count(os.environ.get("HEADRACE_BUCKET_COUNT", "8"))
"""Buckets over which the background work of streams is spread (`bucket_of_stream`). A deployment never changes it.

A deployment chooses it with the setting `buckets`, and every function finds it in its environment.
"""

TICKS_AT_ONCE_PER_BUCKET = 3
"""Ticks of so many kinds may work on a bucket at the same time."""

TICKS = (
    Tick("resend-intents", every_s=10, buckets=BUCKET_COUNT),
    Tick("transactions", every_s=10, buckets=BUCKET_COUNT),
    Tick("watermarks", every_s=10, buckets=BUCKET_COUNT),
    Tick("retention", every_s=60, buckets=BUCKET_COUNT),
    Tick("creations", every_s=600, buckets=BUCKET_COUNT),
    Tick("failed-stores", every_s=10, buckets=1),
)
"""Every kind has its entry in functions/processors/tick_work.py. What the messages cost: docs/operating/deploy.md."""

REQUESTS_QUEUE = Queue(
    "headrace-requests.fifo",
    function="stream-requests",
    fifo=True,
    visibility_timeout_s=360,
    max_receive_count=10,
    # A request whose segment store is down takes half of the function's time: a neighbour would be stopped with it.
    batch_size=1,
    concurrency_max=50,
)
TABLES_QUEUE = Queue(
    "headrace-tables.fifo",
    function="table-requests",
    fifo=True,
    visibility_timeout_s=360,
    max_receive_count=10,
    batch_size=1,
    concurrency_max=10,
)
COMMITS_QUEUE = Queue(
    "headrace-commits.fifo",
    function="commits",
    fifo=True,
    visibility_timeout_s=360,
    # A commit comes again while another operation runs on its stream, each time later: a quarter of an hour in all.
    max_receive_count=20,
    batch_size=1,
    concurrency_max=50,
)
ABORTS_QUEUE = Queue(
    "headrace-aborts.fifo",
    function="aborts",
    fifo=True,
    visibility_timeout_s=360,
    max_receive_count=10,
    concurrency_max=10,
)
TICKS_QUEUE = Queue(
    "headrace-ticks",
    function="ticks",
    fifo=False,
    visibility_timeout_s=360,
    max_receive_count=5,
    # A tick may work for half a minute: of another kind or bucket, none waits for it.
    batch_size=1,
    concurrency_max=TICKS_AT_ONCE_PER_BUCKET * BUCKET_COUNT,
)
SCALING_REPORTS_QUEUE = Queue(
    "headrace-scaling-reports",
    function="scaling-reports",
    fifo=False,
    visibility_timeout_s=180,
    # A report comes again while its stream is busy, each time later; in ten minutes, before it would become a dead
    # letter, it is too old to be acted on. So a dead letter is one that could not be read, or a fault that lasts.
    max_receive_count=25,
    concurrency_max=5,
)
QUEUES = (REQUESTS_QUEUE, TABLES_QUEUE, COMMITS_QUEUE, ABORTS_QUEUE, TICKS_QUEUE, SCALING_REPORTS_QUEUE)

SENDS_TO: Mapping[Grant, Queue] = MappingProxyType(
    {
        "requests:send": REQUESTS_QUEUE,
        "tables:send": TABLES_QUEUE,
        "commits:send": COMMITS_QUEUE,
        "aborts:send": ABORTS_QUEUE,
        "ticks:send": TICKS_QUEUE,
        "scaling-reports:send": SCALING_REPORTS_QUEUE,
    }
)
"""The queue that a grant allows to send to."""

FUNCTIONS = (
    Function(
        "scopes",
        handler="functions.controller.scopes.handler",
        description="Scopes: create, get, list, delete, also with everything in them",
        grants=("metadata:read", "metadata:write", "requests:send"),
    ),
    Function(
        "streams",
        handler="functions.controller.streams.handler",
        description="Streams: create, get, list, update, scale, seal, delete; scaling events",
        grants=("metadata:read", "metadata:write", "requests:send"),
    ),
    Function(
        "segments",
        handler="functions.controller.segments.handler",
        description="Segments at head, tail, a time or an epoch, successors, predecessors, endpoints, stream cuts",
        # The successors of a segment that a client has sealed over the wire need a scale.
        grants=("metadata:read", "metadata:write", "requests:send", "token-keys:read"),
        reaches_segment_stores=True,
        sends_rarely=True,
    ),
    Function(
        "transactions",
        handler="functions.controller.transactions.handler",
        description="Transactions: create, ping, commit, abort, list; commit sets",
        grants=("metadata:read", "metadata:write", "commits:send", "aborts:send", "token-keys:read"),
        reaches_segment_stores=True,
    ),
    Function(
        "watermarks",
        handler="functions.controller.watermarks.handler",
        description="Time and positions of writers, and the newest watermark",
        grants=("metadata:read", "metadata:write"),
    ),
    Function(
        "stream-cuts",
        handler="functions.controller.stream_cuts.handler",
        description="Stream cuts: truncate there, check one, distance of two",
        grants=("metadata:read", "metadata:write", "requests:send", "token-keys:read"),
        reaches_segment_stores=True,
    ),
    Function(
        "retention",
        handler="functions.controller.retention.handler",
        description="What is kept of a stream, and what goes next and why",
        grants=("metadata:read", "token-keys:read"),
        reaches_segment_stores=True,
    ),
    Function(
        "subscribers",
        handler="functions.controller.subscribers.handler",
        description="Subscribers of streams: list, register, publish a position, unregister",
        # Positions beyond the tail are refused, and only the stores know the tail. So it is with reader groups.
        grants=("metadata:read", "metadata:write", "token-keys:read"),
        reaches_segment_stores=True,
    ),
    Function(
        "history",
        handler="functions.controller.history.handler",
        description="Chunks of a segment range, with links to read them straight from S3",
        grants=("metadata:read", "chunks:read", "token-keys:read"),
        # Bytes that were truncated are not listed, and only the stores know where a segment starts.
        reaches_segment_stores=True,
    ),
    Function(
        "plans",
        handler="functions.controller.plans.handler",
        description="Plans of readers: the next batch of a stream; pieces, links and endpoints of many ranges",
        grants=("metadata:read", "chunks:read", "token-keys:read"),
        # A whole processor: 3,000 links take 1.7 seconds of one to sign.
        memory_mb=1_769,
        reaches_segment_stores=True,
    ),
    Function(
        "dead-letters",
        handler="functions.controller.dead_letters.handler",
        description="Dead letters: list, inspect, replay, drop",
        grants=("metadata:read", "metadata:write", "requests:send", "tables:send", "commits:send", "aborts:send"),
    ),
    Function(
        "reader-groups",
        handler="functions.controller.reader_groups.handler",
        description="Reader groups: create, get, list, update, reset, delete",
        grants=("metadata:read", "metadata:write", "requests:send", "token-keys:read"),
        reaches_segment_stores=True,
    ),
    Function(
        "key-value-tables",
        handler="functions.controller.key_value_tables.handler",
        description="Key-value tables: create, get, list, segments, endpoints, delete",
        grants=("metadata:read", "metadata:write", "tables:send"),
    ),
    Function(
        "delegation-tokens",
        handler="functions.controller.delegation_tokens.handler",
        description="Delegation tokens: what a caller may do on the segment stores",
        grants=("token-keys:read",),
        memory_mb=256,
    ),
    Function(
        "stream-requests",
        handler="functions.processors.stream_requests.handler",
        description="Works on queued operations on streams and scopes: from creation to deletion",
        grants=("metadata:read", "metadata:write", "requests:send", "token-keys:read"),
        timeout_s=60,
        reaches_segment_stores=True,
    ),
    Function(
        "commits",
        handler="functions.processors.commits.handler",
        description="Commits the transactions of a stream, in order",
        grants=("metadata:read", "metadata:write", "commits:send", "token-keys:read"),
        timeout_s=60,
        reaches_segment_stores=True,
    ),
    Function(
        "aborts",
        handler="functions.processors.aborts.handler",
        description="Aborts transactions, many at a time",
        grants=("metadata:read", "metadata:write", "aborts:send", "token-keys:read"),
        timeout_s=60,
        reaches_segment_stores=True,
    ),
    Function(
        "scaling-reports",
        handler="functions.processors.scaling_reports.handler",
        description="Works on reports of hot and cold segments: splits and merges them",
        grants=("metadata:read", "metadata:write", "requests:send"),
    ),
    Function(
        "table-requests",
        handler="functions.processors.tables.handler",
        description="Works on queued key-value table operations: create, delete",
        grants=("metadata:read", "metadata:write", "tables:send", "token-keys:read"),
        timeout_s=60,
        reaches_segment_stores=True,
    ),
    Function(
        "cluster",
        handler="functions.controller.cluster.handler",
        description="Segment stores, their leases, the container map, and the logs of containers",
        grants=("metadata:read", "metadata:write"),
    ),
    Function(
        "store-tasks",
        handler="functions.processors.store_tasks.handler",
        description="Ends the lease of segment stores whose task has stopped",
        grants=("metadata:read", "metadata:write"),
    ),
    Function(
        "schedule-ticks",
        handler="functions.processors.schedule_ticks.handler",
        description="Spreads a minute into delayed tick messages",
        grants=("ticks:send",),
        memory_mb=256,
        # Started once a minute; the second is for an event that EventBridge delivers twice.
        reserved_concurrency=2,
    ),
    Function(
        "ticks",
        handler="functions.processors.ticks.handler",
        description="Works on ticks: one bounded piece of periodic work on one bucket each",
        grants=(
            *("metadata:read", "metadata:write"),
            *("requests:send", "tables:send", "commits:send", "aborts:send", "ticks:send"),
            "token-keys:read",
        ),
        # One vCPU, which is what threads under one interpreter lock can use: with 512 MB the 32 workers of a tick share
        # 0.29 of one. A tick process holds about 50 MB with its imports, so memory itself is not the reason.
        memory_mb=1769,
        timeout_s=60,
        reaches_segment_stores=True,
        # All periodic work depends on ticks: a burst of API calls must not take their executions.
        reserved_concurrency=TICKS_QUEUE.concurrency_max,
    ),
    Function(
        AUDIT_LOG_FUNCTION,
        handler="functions.processors.audit_log.handler",
        description="Copies audit lines from the logs of functions into their own log group",
        grants=("audit-log:write",),
        memory_mb=256,
        # A burst of API calls must not take its executions: lines would be late, and lost after some hours.
        reserved_concurrency=10,
    ),
    Function(
        DEAD_LETTER_FUNCTION,
        handler="functions.processors.dead_letters.handler",
        description="Keeps a letter of each message that its processor died of, and frees its stream",
        grants=("metadata:read", "metadata:write"),
        timeout_s=20,
        # A dead letter says why a request failed and unblocks its stream, most of all while the account is overloaded.
        reserved_concurrency=sum(queue.dead_letters.concurrency_max for queue in QUEUES),
    ),
)

REPLICATION_GATE = Function(
    "replication-gate",
    handler="functions.deployment.replication_gate.handler",
    description="Lets a deployment continue with the next zone when all logs have their copies",
    grants=("metadata:read",),
    memory_mb=256,
    # The longest that Lambda allows: it waits.
    timeout_s=900,
)
"""Neither a route nor a queue calls it. CloudFormation does, when it has updated the stores of a zone."""

TOKEN_KEY_ROTATION = Function(
    "token-keys",
    handler="functions.deployment.token_keys.handler",
    description="Adds a key for delegation tokens, and lets the older ones end",
    grants=(),
    memory_mb=256,
)
"""Secrets Manager calls it, in a deployment with delegation tokens."""

TOKEN_KEY_GATE = Function(
    "token-key-gate",
    handler="functions.deployment.token_key_gate.handler",
    description="Lets a deployment continue when a key signs delegation tokens",
    grants=("token-keys:read",),
    memory_mb=256,
    # It waits for the first rotation.
    timeout_s=300,
)
"""CloudFormation calls it, in a deployment with delegation tokens."""

CERTIFICATES = Function(
    "certificates",
    handler="functions.deployment.certificates.handler",
    description="Issues the certificates of segment stores and the gRPC bridge, and publishes their authorities",
    # It may read and write one record, and so it has a policy of its own.
    grants=(),
    # CloudFormation waits for the first certificates.
    timeout_s=300,
    has_own_bundle=True,
)
"""EventBridge calls it once a day, and CloudFormation at a deployment, in a deployment with TLS."""

EXTERNAL_TARGETS = Function(
    "external-targets",
    handler="functions.deployment.external_targets.handler",
    description="Tells the load balancer for clients outside where the segment stores are",
    grants=("metadata:read",),
    memory_mb=256,
    # It waits for the lease of a store whose task has just been started.
    timeout_s=300,
    has_own_bundle=True,
)
"""EventBridge calls it each minute, and when a task of a store starts or stops, in a deployment with such clients."""

PREFIX_LISTS = Function(
    "prefix-lists",
    handler="functions.deployment.prefix_lists.handler",
    description="Finds the lists of the addresses of S3 and DynamoDB in the Region, for security groups",
    grants=(),
    memory_mb=256,
    timeout_s=60,
    has_own_bundle=True,
)
"""CloudFormation calls it when it creates or updates the network."""

CANARY = Function(
    "canary",
    handler="functions.processors.canary.handler",
    description="Writes an event to each container and reads it again",
    # It may also write the records of its own streams, and so it has a policy of its own for them.
    grants=("metadata:read", "requests:send", "token-keys:read"),
    # A whole processor: the delay that it measures is to be that of the stores.
    memory_mb=1_769,
    timeout_s=45,
    reaches_segment_stores=True,
    has_own_bundle=True,
    sends_rarely=True,
)
"""EventBridge calls it each minute, in a deployment with a canary."""

CANARY_SCOPE = "headrace-checks"
"""The scope of the streams that it writes to."""

DEPLOYMENT_FUNCTIONS = (
    CANARY,
    REPLICATION_GATE,
    TOKEN_KEY_ROTATION,
    TOKEN_KEY_GATE,
    CERTIFICATES,
    EXTERNAL_TARGETS,
    PREFIX_LISTS,
)
"""Functions that are part of some deployments only."""

EVENT_RULES = (
    EventRule(
        "store-tasks",
        function="store-tasks",
        source="aws.ecs",
        detail_type="ECS Task State Change",
        detail={"lastStatus": ["STOPPED"], "group": [{"prefix": "service:headrace-store-"}]},
    ),
)
"""The local stack has no such events: there the tick finds lost stores."""

SCHEDULES = (Schedule("every-minute", function="schedule-ticks", every_minutes=1),)


def function(name: str) -> Function:
    """The declared function of that name; KeyError if there is none."""
    return {declared.name: declared for declared in (*FUNCTIONS, *DEPLOYMENT_FUNCTIONS)}[name]


def feeds_itself(declared: Function) -> bool:
    """Whether a message that the function sends can start it again, by itself or through other functions.

    Lambda takes such a chain for a runaway loop and stops it after 16 calls, unless the function allows recursion.
    """
    reached: set[str] = set()
    waiting = [declared]
    while waiting:
        started = {SENDS_TO[grant].function for grant in waiting.pop().grants if grant in SENDS_TO}
        waiting += [function(name) for name in started - reached]
        reached |= started
    return declared.name in reached
