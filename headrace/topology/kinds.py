"""The kinds of things that the topology declares: shapes only, in plain data."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

SECONDS_PER_MINUTE = 60

# What a function may do. `infra/` maps each word to a least-privilege policy on exactly one resource. The word for
# token keys counts only in a deployment with delegation tokens.
Grant = Literal[
    "metadata:read",
    "metadata:write",
    "requests:send",
    "tables:send",
    "commits:send",
    "aborts:send",
    "ticks:send",
    "scaling-reports:send",
    "chunks:read",
    "chunks:write",
    "chunks:list",
    "tasks:protect",
    "token-keys:read",
    "audit-log:write",
]


class Table(msgspec.Struct, frozen=True):
    """A DynamoDB table with a string partition key `partition` and a string sort key `sort`."""

    name: str


class Bucket(msgspec.Struct, frozen=True):
    """An S3 bucket for tier 2."""

    name: str


class LogGroup(msgspec.Struct, frozen=True):
    """A group of CloudWatch Logs that is kept for `days`."""

    name: str
    days: int


class Function(msgspec.Struct, frozen=True):
    """A Lambda function. `handler` is a dotted path whose last part is callable as `handler(event, context)`."""

    name: str
    handler: str
    description: str
    grants: tuple[Grant, ...]
    memory_mb: int = 512
    timeout_s: int = 29
    reaches_segment_stores: bool = False
    """In the VPC, and allowed to open TCP connections to segment stores."""
    reserved_concurrency: int = 0
    """Executions that the account keeps free for this function, and the most that it has at once; 0: none and no bound.

    At least what its queues may start together, or the queues would be throttled.
    """
    has_own_bundle: bool = False
    """It needs packages that no other function does, which would make their cold starts longer."""
    sends_rarely: bool = False
    """So few calls send to a queue that no start of the function makes the client for it."""


class Access(StrEnum):
    """The classes of routes; a policy for callers allows the routes of some (`headrace.topology.caller_access`)."""

    READ = "read"
    """Read events, and ask about scopes and what is in them."""
    CONSUME = "consume"
    """Read as a member of a group: take part in it, and publish positions up to which events were read."""
    WRITE = "write"
    """Write events, also in transactions; note times; update key-value tables."""
    MANAGE = "manage"
    """Create, change and delete what is in scopes, and scopes."""
    OPERATE = "operate"
    """Look at stores, logs and dead letters, and decide about them."""


class Route(msgspec.Struct, frozen=True):
    """One route of the HTTP API; `{x}` in `path` is a path parameter. Every route demands IAM authorization on AWS.

    `action` names what the route changes or grants, as its audit lines say it; a route that does neither has none.
    `created` is the field of the body with the name of what the route creates, because the path does not have it.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    function: str
    access: Access
    action: str = ""
    created: str = ""

    @property
    def key(self) -> str:
        """The name that API Gateway gives to the route."""
        return f"{self.method} {self.path}"


DEAD_LETTER_FUNCTION = "dead-letter-queues"
"""The one function that works on the dead-letter queues of all queues."""


class Queue(msgspec.Struct, frozen=True):
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

    @property
    def dead_letters(self) -> Queue:
        """The dead-letter queue. Nothing is dead twice: what its function cannot note down stays there for weeks."""
        return Queue(
            self.dead_letter_name,
            function=DEAD_LETTER_FUNCTION,
            fifo=self.fifo,
            visibility_timeout_s=120,
            max_receive_count=0,
            concurrency_max=2,
        )


class EventRule(msgspec.Struct, frozen=True):
    """Invokes `function` with each event of the account's default bus that comes from `source` and matches `detail`.

    `detail` is a pattern as EventBridge has it: lists of values, or of matches such as {"prefix": "x"}.
    """

    name: str
    function: str
    source: str
    detail_type: str
    detail: dict[str, list[Any]]


class Schedule(msgspec.Struct, frozen=True):
    """Invokes `function` with the constant `event` every `every_minutes` minutes."""

    name: str
    function: str
    every_minutes: int
    event: dict[str, str] = msgspec.field(default_factory=dict)


class Tick(msgspec.Struct, frozen=True):
    """Periodic work: each of `buckets` buckets gets one message every `every_s` seconds.

    `every_s` divides a minute, or is a number of whole minutes up to SQS's longest delay of 900 s.
    """

    kind: str
    every_s: int
    buckets: int

    def delays_s(self, bucket: int, minute: int) -> range:
        """The delays, from the start of `minute` (minutes since 1970), of the messages for `bucket` sent in it.

        The buckets of a kind take turns over its period, so that they do not all work at once.
        """
        turn_s = self.every_s * bucket // self.buckets
        if self.every_s <= SECONDS_PER_MINUTE:
            return range(turn_s, SECONDS_PER_MINUTE, self.every_s)
        is_due = minute % (self.every_s // SECONDS_PER_MINUTE) == 0
        return range(turn_s, turn_s + 1) if is_due else range(0)
