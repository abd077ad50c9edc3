"""What the logs that a process owns share, and who is to hold them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from headrace.codec.log_record_header import RecordHeader
from headrace.codec.replica_messages import (
    NACK_CORRUPT,
    NACK_DISK_FULL,
    NACK_FENCED,
    NACK_GAP,
    NACK_PROTOCOL,
    NACK_STOPPING,
)
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import ReplicaId
from headrace.model.replica_placement import Placement
from headrace.ports.clock import Clock
from headrace.ports.replicas import OwnerMessage
from headrace.replication.bounds import CATCH_UPS_MAX, RecoveryBounds, WriterBounds
from headrace.replication.ledger_writer import LedgerWriter
from headrace.replication.member_states import AppendRate, MemberState, catch_up_bytes_per_s, lag_fill
from headrace.segmentstore.log.appended_entries import LocalThreads
from headrace.segmentstore.log.journal.journal_interface import EntryJournal
from headrace.segmentstore.metrics import LATENCY_BOUNDS_S, SIZE_BOUNDS_BYTES, Histogram

if TYPE_CHECKING:
    from typing_extensions import Buffer


# Counters of the replicated logs of a process. All are written and read on the event loop.

_NACK_NAMES: Final = {
    NACK_FENCED: "fenced",
    NACK_GAP: "gap",
    NACK_CORRUPT: "corrupt",
    NACK_DISK_FULL: "disk_full",
    NACK_PROTOCOL: "protocol",
    NACK_STOPPING: "stopping",
}


class LogMetrics:
    """The metrics of one container's log, over all its openings in this process.

    `acknowledge_seconds` has a histogram for each zone: that of the member whose answer completed the quorum.
    """

    __slots__ = ("_began_s", "_members", "acknowledge_seconds", "ensemble_changes", "recovery_seconds")

    def __init__(self) -> None:
        self.acknowledge_seconds: dict[str, Histogram] = {}
        self.recovery_seconds = Histogram(LATENCY_BOUNDS_S)
        self.ensemble_changes = 0
        self._began_s = 0.0
        self._members: tuple[ReplicaId, ...] = ()

    def acknowledged(self, seconds: float | None, zone: str) -> None:
        """Entries were acknowledged, the oldest `seconds` after it was sent; None if no caller waited for them."""
        if seconds is None:
            return
        histogram = self.acknowledge_seconds.get(zone)
        if histogram is None:
            histogram = self.acknowledge_seconds[zone] = Histogram(LATENCY_BOUNDS_S)
        histogram.record(seconds)

    def begin(self, now_s: float) -> None:
        """A recovery begins. Times are those of a monotonic clock."""
        self._began_s = now_s

    def recovered(self, now_s: float, members: tuple[ReplicaId, ...]) -> None:
        """This process has recovered the log, which begins with these members."""
        self.recovery_seconds.record(now_s - self._began_s)
        self._members = members

    def has_members(self, members: tuple[ReplicaId, ...]) -> None:
        """The members that the record names now."""
        if members != self._members:
            self._members = members
            self.ensemble_changes += 1


class ReplicationMetrics:
    """The metrics of a process. `nacks` counts the refusals that its owners got from replicas, by name.

    `batch_bytes` are the sizes of what a link sends in one turn of the loop, `corrupt_messages` the messages of other
    stores that could not be decoded. `sent_bytes` counts what went to replicas, by the zone of their store.
    """

    __slots__ = ("batch_bytes", "catch_up_bytes", "corrupt_messages", "logs", "nacks", "sent_bytes")

    def __init__(self) -> None:
        self.batch_bytes = Histogram(SIZE_BOUNDS_BYTES)
        self.catch_up_bytes = 0
        self.corrupt_messages = 0
        self.nacks = dict.fromkeys(_NACK_NAMES.values(), 0)
        self.logs: dict[int, LogMetrics] = {}
        self.sent_bytes: Counter[str] = Counter()

    def begin(self, container: int, now_s: float) -> LogMetrics:
        """The metrics of a log whose recovery begins."""
        log = self.logs.setdefault(container, LogMetrics())
        log.begin(now_s)
        return log

    def count_sent(self, zone: str, count: int) -> None:
        """So many bytes went to a store in `zone`."""
        self.sent_bytes[zone] += count

    def count_corrupt_message(self) -> None:
        self.corrupt_messages += 1

    def count_nack(self, code: int) -> None:
        """Count a refusal. The decoder has let only known codes through."""
        self.nacks[_NACK_NAMES[code]] += 1


# Bounds what the members that catch up with the logs of a process take from it, all together.

# Notices that a copy of a log does not catch up, so that the throttle slows its writers down.

_log = logging.getLogger(__name__)


class LaggingCopies:
    """Of the log of one writer."""

    def __init__(self, writer: LedgerWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._lacking_since_s: float | None = None
        self._is_slowed = False

    def fill(self) -> float:
        """As `Ledger.lag_fill`. It is measured at each call."""
        if MemberState.CATCHING_UP not in self._writer.member_states().values():
            self._lacking_since_s = None
            self._note(slowed=False)
            return 0.0
        now_s = self._clock.monotonic_s()
        if self._lacking_since_s is None:
            self._lacking_since_s = now_s
        lag = lag_fill(now_s - self._lacking_since_s)
        self._note(slowed=lag > 0.0)
        return lag

    def _note(self, *, slowed: bool) -> None:
        if slowed != self._is_slowed:
            self._is_slowed = slowed
            _log.warning("event=log_lacks_copy container=%d slowed=%s", self._writer.container, slowed)


class CatchUps:
    """One per process. A catch-up holds one of `slots` while it has a window in memory.

    The copies of a recovery have `takeovers` of their own: its container is not served meanwhile, and a bulk copy holds
    its slot for as long as the common rate says.
    """

    def __init__(self, clock: Clock) -> None:
        self.slots = asyncio.Semaphore(CATCH_UPS_MAX)
        self.takeovers = asyncio.Semaphore(CATCH_UPS_MAX)
        self._clock = clock
        self._free_from_s = clock.monotonic_s()
        self._appended = AppendRate(self._free_from_s)

    def appended(self, length: int) -> None:
        """Count an entry that was appended to a log of the process. Catching up must be faster than appending."""
        self._appended.count(length)

    def delay_s(self, sent_bytes: int) -> float:
        """How long to wait after sending so many bytes, before the next window of any member."""
        now_s = self._clock.monotonic_s()
        rate = catch_up_bytes_per_s(self._appended.look(now_s))
        self._free_from_s = max(now_s, self._free_from_s) + sent_bytes / rate
        return self._free_from_s - now_s


class Members(Protocol):
    """How an owner reaches the replicas of its logs, its own among them."""

    @property
    def own(self) -> ReplicaId: ...

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None: ...

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Buffer]) -> int:
        """As `ReplicaLinks.send_entry`."""
        ...

    def detach(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Who is to hold a log: the replicas of a new one, the number of copies, and the current placement."""

    wanted: tuple[ReplicaId, ...]
    copies: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class SharedLogResources:
    """What the owned logs of a process share. `compresses`: members are in other zones, and traffic to them costs."""

    journal: EntryJournal
    members: Members
    records: ContainerLogRecords
    clock: Clock
    catch_ups: CatchUps
    writer_bounds: WriterBounds
    recovery_bounds: RecoveryBounds
    compresses: bool
    on_damage: Callable[[int, Exception], None]
    """Called with the container when its entries in the own journal cannot be read any more."""
    threads: LocalThreads = field(default_factory=LocalThreads)
    metrics: ReplicationMetrics = field(default_factory=ReplicationMetrics)
