"""The ledger port on several copies of each entry: the logs that this process owns, and the links to their members.

The process is a member of its own logs. An entry is acknowledged when two members have it on disk, and nothing depends
on a lease: replicas refuse the entries of an owner that was taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.codec.log_record_header import RECORD_HEADER_BYTES, RecordHeader
from headrace.codec.replica_messages import Ack, AckItem
from headrace.metadata.container_log import ContainerLogRecords
from headrace.model.container_logs import LedgerChain, LedgerStart, ReplicaId
from headrace.model.errors import CorruptError, FencedError, InvalidRequestError, UnavailableError
from headrace.model.store_volume import LogSpace
from headrace.ports.clock import Clock
from headrace.ports.ledger import Done, LedgerEntry, Released
from headrace.ports.replicas import OwnerMessage, ReplicaAnswer, ReplicaLinks
from headrace.replication.bounds import RecoveryBounds, WriterBounds
from headrace.segmentstore.log.journal.entry_runs import HeldBytes
from headrace.segmentstore.log.journal.journal_interface import EntryJournal, holds_back_files
from headrace.segmentstore.log.replicated.owned_log import OwnedLog
from headrace.segmentstore.log.replicated.replica_sessions import ReplicaSessions
from headrace.segmentstore.log.replicated.shared_log_resources import (
    CatchUps,
    LaggingCopies,
    LogPlan,
    ReplicationMetrics,
    SharedLogResources,
)
from headrace.segmentstore.periodic_task import PeriodicTask, Rest

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)

TICK_S: Final = 0.05
"""How often the machines look at the time. The shortest of their times is REOPEN_FIRST_MS."""

LOOK_AT_SPACE_EVERY_TICKS: Final = 20

OPEN_PATIENCE_S: Final = 5.0
"""An opening that waits for replicas fails once after this time, so that it is reported. The next attempt continues the
same recovery, and waits as long as it takes."""

OWN_LINK: Final = 0
"""The number of the link between this process and its own replicas. Other links have greater numbers."""


class ReplicatedLedger:
    """One opening of a container's log by its owner."""

    def __init__(self, owned: OwnedLog, shared: SharedLogResources, held: HeldBytes) -> None:
        self._owned = owned
        self._journal = shared.journal
        self._catch_ups = shared.catch_ups
        self._closed = False
        assert owned.writer is not None
        self._writer = writer = owned.writer
        self._lagging = LaggingCopies(writer, shared.clock)
        self._truncated_before = writer.truncated_before
        self._end = writer.next_entry
        self._chain = writer.chain
        self._held = held

    @property
    def next_entry(self) -> int:
        return self._owned.next_entry

    @property
    def entry_bytes_max(self) -> int:
        return self._journal.entry_bytes_max

    @property
    def held_bytes(self) -> int:
        return self._held.total

    @property
    def unacknowledged_fill(self) -> float:
        return self._writer.unacknowledged_fill

    @property
    def lag_fill(self) -> float:
        return self._lagging.fill()

    @property
    def unreplicated_bytes(self) -> int:
        """About the acknowledged bytes that the slowest member lacks; wrong by less than one mark of the count."""
        writer, acknowledged = self._writer, self._writer.acknowledged_entry
        slowest = min((writer.positions.get(member, -1) for member in writer.log.members), default=acknowledged)
        if slowest >= acknowledged:
            return 0
        unacknowledged = self._held.behind(acknowledged) if acknowledged < self.next_entry - 1 else 0
        return max(0, self._held.behind(slowest) - unacknowledged)

    @property
    def wants_truncation(self) -> bool:
        return holds_back_files(self._journal, self._owned.container)

    @property
    def continued_at(self) -> LedgerStart | None:
        return self._writer.log.continued_at

    def knows(self, epoch: int, entry: int) -> bool:
        return self._chain.knows(epoch, entry)

    def recover(self, first_entry: int = 0) -> Iterator[LedgerEntry]:
        """As in the port; everything is read from the own journal, which has it since the recovery."""
        expected = first = max(first_entry, self._truncated_before)
        for epoch, start, end in self._chain.parts(first, self._end):
            for stored in self._journal.reader.ledger(self._owned.container, epoch, start, end):
                if stored.header.entry != expected:
                    break
                yield LedgerEntry(expected, stored.content())
                expected += 1
            if expected != end:
                raise CorruptError(
                    f"the journal lacks entry {expected} of container {self._owned.container}, which it held when the "
                    f"log was recovered up to {self._end - 1}: restart the store, so that its journal is read again"
                )

    def append(self, parts: Sequence[Buffer], done: Done, released: Released | None = None) -> int:
        owned = self._owned
        if owned.failure is not None:
            raise owned.failure
        if self._closed:
            raise FencedError(f"the ledger of container {owned.container} was closed")
        length = sum(map(len, parts))  # type: ignore[arg-type]
        if length > self._journal.entry_bytes_max:
            raise InvalidRequestError(f"a log entry of {length} bytes exceeds {self._journal.entry_bytes_max}")
        entry = owned.append(parts, length, done, released)
        self._held.count(entry, length + RECORD_HEADER_BYTES)
        self._catch_ups.appended(length)
        return entry

    def truncate(self, before_entry: int) -> None:
        owned = self._owned
        if before_entry <= self._truncated_before:
            return
        if owned.failure is not None:
            raise owned.failure
        self._writer.truncate(before_entry)
        self._truncated_before = before_entry
        self._held.truncate(before_entry)

    def close(self) -> None:
        self._closed = True


def _held_bytes(journal: EntryJournal, container: int, chain: LedgerChain, first: int, end: int) -> HeldBytes:
    """Count what the journal holds of a log. Not for the event loop: there may be millions of entries."""
    held = HeldBytes()
    for epoch, low, high in chain.parts(first, end):
        parts, _ = journal.index.ledger(container, epoch, low, high)
        held.count_parts(parts)
    return held


class ReplicatedLedgers:
    """The logs that a process owns. `plan_of` says who is to hold the log of a container, as far as it is known.

    `compresses` and `on_damage` are as in `SharedLogResources`.
    """

    def __init__(
        self,
        journal: EntryJournal,
        records: ContainerLogRecords,
        clock: Clock,
        plan_of: Callable[[int], LogPlan],
        on_damage: Callable[[int, Exception], None],
        *,
        writer_bounds: WriterBounds | None = None,
        recovery_bounds: RecoveryBounds | None = None,
        open_patience_s: float = OPEN_PATIENCE_S,
        compresses: bool = False,
    ) -> None:
        self._journal = journal
        self._begun: tuple[ReplicaSessions, ReplicaLinks] | None = None
        self._plan_of = plan_of
        self._open_patience_s = open_patience_s
        self._own_link = _OwnLink(self._received_own)
        bounds = writer_bounds or WriterBounds(), recovery_bounds or RecoveryBounds()
        self._shared = SharedLogResources(
            journal, self, records, clock, CatchUps(clock), *bounds, compresses, on_damage
        )
        self._owned: dict[int, OwnedLog] = {}
        self._ledgers: dict[int, ReplicatedLedger] = {}
        self._ticks = PeriodicTask(self._tick, retry_first_s=TICK_S)
        self._ticked = 0
        self._unplanned: set[int] = set()  # that could not be planned when they were looked at last

    def needs_lease(self, container: int) -> bool:
        return False

    def start(self, sessions: ReplicaSessions, links: ReplicaLinks) -> None:
        """Begin to use the own replicas and those of others. Call it when the journal has started."""
        self._begun = sessions, links
        sessions.connected(self._own_link)
        links.start(self)
        self._ticks.start()

    async def close(self) -> None:
        """End all logs, and the links to their members."""
        for owned in self._owned.values():
            owned.end(UnavailableError("the store stops: connect again"))
        await self._ticks.stop()
        if self._begun is not None:
            await self._links.close()
            await self._sessions.close()
        self._shared.threads.close()

    @property
    def owned(self) -> dict[int, OwnedLog]:
        """The logs that are open or being recovered, by container."""
        return {container: each for container, each in self._owned.items() if each.failure is None}

    @property
    def metrics(self) -> ReplicationMetrics:
        """What was counted since the start of the process."""
        return self._shared.metrics

    @property
    def received_bytes(self) -> int:
        """Received from other processes, and not on disk yet."""
        return 0 if self._begun is None else self._sessions.received_bytes

    def unreplicated_bytes(self) -> dict[int, int]:
        """By open container, as `ReplicatedLedger.unreplicated_bytes`."""
        return {container: each.unreplicated_bytes for container, each in sorted(self._ledgers.items())}

    # LedgerStore

    async def open(self, container: int, epoch: int) -> ReplicatedLedger:
        """As in the port. A recovery that waits for replicas goes on in the background after UnavailableError."""
        owned = self._begin(container, epoch)
        patience_s = None if owned.is_reported else self._open_patience_s
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.shield(owned.recovered)
        except TimeoutError:
            owned.is_reported = True
            reason = owned.blocked_by or "too few of its members have answered yet"
            raise UnavailableError(
                f"the log of container {container} cannot be opened: {reason}; it opens by itself when the stores that "
                "hold it are back"
            ) from None
        if owned.failure is not None:
            raise owned.failure
        assert owned.writer is not None
        chain, first, end = owned.writer.chain, owned.writer.truncated_before, owned.writer.next_entry
        held = await self._shared.threads.run(partial(_held_bytes, self._journal, container, chain, first, end))
        if owned.failure is not None:
            raise owned.failure
        ledger = self._ledgers[container] = ReplicatedLedger(owned, self._shared, held)
        return ledger

    def _begin(self, container: int, epoch: int) -> OwnedLog:
        before = self._owned.get(container)
        sessions = 0
        if before is not None:
            if before.epoch > epoch:
                raise FencedError(f"container {container} was opened with epoch {before.epoch}, after {epoch}")
            if before.epoch == epoch:
                if before.failure is None:
                    return before
                if before.writer is not None:
                    raise before.failure
                sessions = before.sessions
            before.end(FencedError(f"container {container} was claimed again with epoch {epoch}"))
        owned = self._owned[container] = OwnedLog(self._shared, container, epoch, self._plan_of(container), sessions)
        owned.start()
        return owned

    async def release(self, container: int) -> None:
        ledger = self._ledgers.pop(container, None)
        owned = self._owned.get(container)
        if ledger is not None and owned is not None:
            ledger.close()
            await owned.all_released()

    def epochs(self) -> dict[int, int]:
        """None: other volumes have these logs, too, and their members drop what belongs to no log."""
        return {}

    def space(self) -> LogSpace:
        return self._journal.space()

    async def forget(self, container: int) -> None:
        ledger = self._ledgers.pop(container, None)
        if ledger is not None:
            ledger.close()
        owned = self._owned.get(container)
        if owned is not None:
            await owned.retire()  # until then it takes the answers of its members
            if self._owned.get(container) is owned:
                del self._owned[container]

    # Members, for the owned logs

    @property
    def own(self) -> ReplicaId:
        return self._sessions.replica

    @property
    def _sessions(self) -> ReplicaSessions:
        return self._started[0]

    @property
    def _links(self) -> ReplicaLinks:
        return self._started[1]

    @property
    def _started(self) -> tuple[ReplicaSessions, ReplicaLinks]:
        if self._begun is None:
            raise UnavailableError("the journal of this store is still being read: try again")
        return self._begun

    def send(self, replica: ReplicaId, message: OwnerMessage) -> None:
        if replica == self.own:
            self._sessions.received(self._own_link, message)
        else:
            self._links.send(replica, message)

    def send_entry(self, replica: ReplicaId, header: RecordHeader, parts: Sequence[Buffer]) -> int:
        if replica != self.own:
            return self._links.send_entry(replica, header, parts)
        self._sessions.take_entry(OWN_LINK, header, parts)
        return 0

    def detach(self) -> None:
        self._links.detach()

    # ReplicaEvents

    def received(self, replica: ReplicaId, message: ReplicaAnswer) -> None:
        if isinstance(message, Ack):
            for item in message.items:
                self._tell(item.container, partial(_acknowledged, replica, item))
        else:
            self._tell(message.container, lambda owned: owned.received(replica, message))

    def _received_own(self, message: ReplicaAnswer) -> None:
        self.received(self.own, message)

    def link_lost(self, replica: ReplicaId) -> None:
        for container in list(self._owned):
            self._tell(container, lambda owned: owned.link_lost(replica))

    def other_replica(self, replica: ReplicaId) -> None:
        for container in list(self._owned):
            self._tell(container, lambda owned: owned.other_replica(replica))

    def _tell(self, container: int, tell: Callable[[OwnedLog], None]) -> None:
        """Tell one log of an event. A defect with one log must not reach the others, or their links."""
        owned = self._owned.get(container)
        if owned is None:
            return
        try:
            tell(owned)
        except Exception as defect:  # noqa: BLE001 - after any defect the log has ended
            _log.exception("event=log_failed container=%d", container)
            owned.end(UnavailableError(f"the log of container {container} has a defect: {defect!r}"))

    # Time

    async def _tick(self) -> Rest:
        self._ticked += 1
        if self._ticked % LOOK_AT_SPACE_EVERY_TICKS == 0:
            self._sessions.look_at_space()
        for container, owned in list(self._owned.items()):
            if owned.failure is None:
                self._tick_one(container, owned)
        return Rest.fixed(TICK_S)

    def _tick_one(self, container: int, owned: OwnedLog) -> None:
        try:
            plan = self._plan_of(container)
            self._unplanned.discard(container)
        except Exception:  # noqa: BLE001 - the log goes on as it was planned before
            if container not in self._unplanned:
                self._unplanned.add(container)
                _log.exception("event=log_not_planned container=%d", container)
            plan = owned.plan
        self._tell(container, lambda owned: owned.tick(plan))


def _acknowledged(replica: ReplicaId, item: AckItem, owned: OwnedLog) -> None:
    owned.acknowledged(replica, item.session, item.epoch, item.next_entry - 1)


class _OwnLink:
    """The link between this process and its own replicas.

    Answers are delivered in a later turn of the loop, in their order, since the machine of the owner is in the middle
    of sending when they are made.
    """

    number: Final = OWN_LINK

    def __init__(self, deliver: Callable[[ReplicaAnswer], None]) -> None:
        self._deliver = deliver
        self._waiting: deque[ReplicaAnswer] = deque()
        self._loop = asyncio.get_running_loop()

    def send(self, message: ReplicaAnswer) -> None:
        if not self._waiting:
            self._loop.call_soon(self._deliver_all)
        self._waiting.append(message)

    def pause(self) -> None:
        """Nothing is received over it: the owner appends as long as the cache has room."""

    def resume(self) -> None:
        """Nothing was held back."""

    def close(self) -> None:
        """It ends with the process."""

    def _deliver_all(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            self._deliver(message)
