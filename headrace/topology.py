"""What is deployed, declared once as data: functions, routes, queues, schedules, tables, buckets, segment stores.

`infra/` turns this table into CloudFormation, `local_stack/` into processes and threads on a laptop; a test proves that
they agree. Nothing here knows AWS's API, and nothing else of the library is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# What a function may do. `infra/` maps each word to a least-privilege policy on exactly one resource.
Grant = Literal[
    "metadata:read",
    "metadata:write",
    "requests:send",
    "ticks:send",
    "chunks:read",
    "chunks:write",
    "chunks:list",
]


@dataclass(frozen=True, slots=True)
class Table:
    """A DynamoDB table with a string partition key `partition` and a string sort key `sort`."""

    name: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """An S3 bucket for tier 2."""

    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """A Lambda function. `handler` is a dotted path whose last part is callable as `handler(event, context)`."""

    name: str
    handler: str
    description: str
    grants: tuple[Grant, ...]
    memory_mb: int = 512
    timeout_s: int = 29
    reaches_segment_stores: bool = False
    """In the VPC, and allowed to open TCP connections to segment stores."""


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the HTTP API; `{x}` in `path` is a path parameter. Every route demands IAM authorization on AWS."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    function: str


@dataclass(frozen=True, slots=True)
class Queue:
    """An SQS queue with its dead-letter queue and the function that works on it."""

    name: str
    function: str
    fifo: bool
    visibility_timeout_s: int
    max_receive_count: int
    batch_size: int = 10
    concurrency_max: int = 10
    """Batches worked on at once: what keeps a burst from drowning the metadata table or the segment stores."""

    @property
    def dead_letter_name(self) -> str:
        """Dead-letter queues of FIFO queues are FIFO too."""
        stem, dot, suffix = self.name.partition(".fifo")
        return f"{stem}-dead-letters{dot}{suffix}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Invokes `function` with the constant `event` every `every_minutes` minutes."""

    name: str
    function: str
    every_minutes: int
    event: dict[str, str] = field(default_factory=dict)


METADATA_TABLE = Table("headrace-metadata")
CHUNK_BUCKET = Bucket("headrace-chunks")

CONTAINER_COUNT = 8
"""Segment containers of a deployment: fixed for its life, since it decides where every segment lives."""

INTENT_BUCKET_COUNT = 8
"""Buckets over which pending intents are spread, so that one tick message sweeps one bucket."""

TICK_DELAYS_S = (0, 10, 20, 30, 40, 50)
"""A schedule is minute-grained: each minute it queues one tick message per delay and bucket."""

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
TICKS_QUEUE = Queue(
    "headrace-ticks",
    function="ticks",
    fifo=False,
    visibility_timeout_s=180,
    max_receive_count=5,
    concurrency_max=INTENT_BUCKET_COUNT,
)
QUEUES = (REQUESTS_QUEUE, TICKS_QUEUE)

FUNCTIONS = (
    Function(
        "scopes",
        handler="functions.controller.scopes.handler",
        description="Scopes: create, get, list, delete",
        grants=("metadata:read", "metadata:write"),
    ),
    Function(
        "streams",
        handler="functions.controller.streams.handler",
        description="Streams: create, get, list, scale, seal, delete",
        grants=("metadata:read", "metadata:write", "requests:send"),
    ),
    Function(
        "segments",
        handler="functions.controller.segments.handler",
        description="Segments at head, tail, a time or an epoch, successors, predecessors, endpoints, stream cuts",
        grants=("metadata:read",),
        reaches_segment_stores=True,
    ),
    Function(
        "history",
        handler="functions.controller.history.handler",
        description="Chunks of a segment range, with links to read them straight from S3",
        grants=("metadata:read", "chunks:read"),
    ),
    Function(
        "stream-requests",
        handler="functions.processors.stream_requests.handler",
        description="Works on queued stream operations: create, scale, seal, delete",
        grants=("metadata:read", "metadata:write"),
        timeout_s=60,
        reaches_segment_stores=True,
    ),
    Function(
        "schedule-ticks",
        handler="functions.processors.schedule_ticks.handler",
        description="Spreads a minute into delayed tick messages",
        grants=("ticks:send",),
        memory_mb=256,
    ),
    Function(
        "ticks",
        handler="functions.processors.ticks.handler",
        description="Works on ticks: sends intents again whose message was lost",
        grants=("metadata:read", "requests:send"),
    ),
)

SCHEDULES = (Schedule("every-minute", function="schedule-ticks", every_minutes=1),)

_STREAM = "/v1/scopes/{scope}/streams/{stream}"
ROUTES = (
    Route("GET", "/v1/scopes", "scopes"),
    Route("POST", "/v1/scopes", "scopes"),
    Route("GET", "/v1/scopes/{scope}", "scopes"),
    Route("DELETE", "/v1/scopes/{scope}", "scopes"),
    Route("GET", "/v1/scopes/{scope}/streams", "streams"),
    Route("POST", "/v1/scopes/{scope}/streams", "streams"),
    Route("GET", _STREAM, "streams"),
    Route("DELETE", _STREAM, "streams"),
    Route("PUT", f"{_STREAM}/state", "streams"),
    Route("POST", f"{_STREAM}/scale", "streams"),
    Route("GET", f"{_STREAM}/scale/{{epoch}}", "streams"),
    Route("GET", f"{_STREAM}/segments", "segments"),
    Route("POST", f"{_STREAM}/segments/between", "segments"),
    Route("GET", f"{_STREAM}/segments/{{segment}}/successors", "segments"),
    Route("GET", f"{_STREAM}/segments/{{segment}}/predecessors", "segments"),
    Route("GET", f"{_STREAM}/segments/{{segment}}/endpoint", "segments"),
    Route("GET", f"{_STREAM}/stream-cut", "segments"),
    Route("GET", f"{_STREAM}/segments/{{segment}}/chunks", "history"),
)


_CPU_UNITS_PER_CORE = 1024


@dataclass(frozen=True, slots=True)
class SegmentStoreService:
    """The segment stores of one deployment: one ECS service with one task per availability zone."""

    module: str = "segmentstore_fargate"
    stores: int = 3
    wire_port: int = 12345
    health_port: int = 12545
    """The first of as many ports as there are processes, like `wire_port`."""
    cpu_units: int = 1024
    memory_mb: int = 4096
    volume_gib: int = 50
    volume_path: str = "/var/lib/headrace"
    stop_timeout_s: int = 120
    grants: tuple[Grant, ...] = ("metadata:read", "metadata:write", "chunks:read", "chunks:write", "chunks:list")

    @property
    def processes(self) -> int:
        """One for each core of a task."""
        return max(1, self.cpu_units // _CPU_UNITS_PER_CORE)

    @property
    def wire_ports(self) -> tuple[int, int]:
        """The first and the last."""
        return self.wire_port, self.wire_port + self.processes - 1

    @property
    def health_ports(self) -> tuple[int, int]:
        """The first and the last; only the task itself asks there."""
        return self.health_port, self.health_port + self.processes - 1


SEGMENT_STORES = SegmentStoreService()


def function(name: str) -> Function:
    """The declared function of that name; KeyError if there is none."""
    return {declared.name: declared for declared in FUNCTIONS}[name]
