"""What the logs that a process owns share, and who is to hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.codec.log_record_header import RecordHeader
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import ReplicaId
from headrace.model.replica_placement import Placement
from headrace.ports.clock import Clock
from headrace.ports.replicas import OwnerMessage
from headrace.replication.bounds import RecoveryBounds, WriterBounds
from headrace.segmentstore.log.journal.journal_interface import EntryJournal
from headrace.segmentstore.log.local_threads import LocalThreads
from headrace.segmentstore.log.replicated.catch_ups import CatchUps
from headrace.segmentstore.log.replicated.replication_metrics import ReplicationMetrics

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
