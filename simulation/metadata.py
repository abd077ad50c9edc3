"""The claims and log records in a simulated DynamoDB: serializable conditional writes whose outcome may be unknown.

A write may fail before it takes effect, take effect although its caller is told nothing, or take effect long after its
caller has stopped waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from headrace.model.container_logs import ContainerLog, LogState, ReplicaId, check_transition, without_lost_members
from simulation.draws import Draws
from simulation.network import Address
from simulation.scheduler import MS, Scheduler
from simulation.swarm import Swarm

_TIMEOUT: Final = 100 * MS

_Result = TypeVar("_Result")


class Outcome(Enum):
    WRITTEN = "written"
    CLAIM_LOST = "claim lost"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Claim:
    owner: Address | None = None
    version: int = 0


@dataclass(slots=True)
class StoredLog:
    log: ContainerLog | None = None
    version: int = 0


RecordObserver = Callable[[int, ContainerLog | None, ContainerLog, int], None]
"""Is told each record that takes effect: container, record before, record after, epoch of the writer."""

LossObserver = Callable[[int, ContainerLog, ContainerLog], None]
"""Is told each loss that an operator accepts: container, record before, record after."""

ClaimObserver = Callable[[int, int, Address], None]
"""Is told each claim that takes effect: container, epoch, owner."""


class Metadata:
    """Requests arrive after a delay, and their outcome arrives after another one."""

    def __init__(
        self,
        scheduler: Scheduler,
        draws: Draws,
        swarm: Swarm,
        faults: Counter[str],
        on_record: RecordObserver,
        on_claim: ClaimObserver,
        on_loss: LossObserver,
    ) -> None:
        self.claims = [Claim() for _ in range(swarm.containers)]
        self.logs = [StoredLog() for _ in range(swarm.containers)]
        self.has_faults = True
        self.outage_until = 0
        self._on_record = on_record
        self._on_claim = on_claim
        self._on_loss = on_loss
        self._scheduler = scheduler
        self._draws = draws
        self._swarm = swarm
        self._faults = faults

    def read_claim(self, caller: Address, container: int, done: Callable[[int | None], None]) -> None:
        """The version of a claim; None if the request failed."""
        self._request(caller, lambda: self.claims[container].version, done)

    def read_log(
        self, caller: Address, container: int, done: Callable[[tuple[ContainerLog | None, int] | None], None]
    ) -> None:
        """The record and its version; None if the request failed."""
        self._request(caller, lambda: (self.logs[container].log, self.logs[container].version), done)

    def write_claim(
        self, caller: Address, container: int, version: int, done: Callable[[tuple[Outcome, int]], None]
    ) -> None:
        def effect() -> tuple[Outcome, int]:
            claim = self.claims[container]
            if claim.version != version:
                return Outcome.CLAIM_LOST, 0
            claim.owner, claim.version = caller, version + 1
            self._on_claim(container, claim.version, caller)
            return Outcome.WRITTEN, claim.version

        self._write(caller, effect, (Outcome.UNKNOWN, 0), done)

    def write_log(
        self,
        caller: Address,
        container: int,
        log: ContainerLog,
        version: int,
        claim_epoch: int,
        done: Callable[[tuple[Outcome, int]], None],
    ) -> None:
        def effect() -> tuple[Outcome, int]:
            stored = self.logs[container]
            refusal = self._refusal(container, version, claim_epoch)
            if refusal is not None:
                return refusal, 0
            before = stored.log
            stored.log, stored.version = log, stored.version + 1
            self._on_record(container, before, log, claim_epoch)
            return Outcome.WRITTEN, stored.version

        self._write(caller, effect, (Outcome.UNKNOWN, 0), done)

    def accept_loss(self, container: int, destroyed: Collection[ReplicaId]) -> bool:
        """An operator looks at the record, and removes destroyed members. False if a recovery is possible with them."""
        log, version = self.logs[container].log, self.logs[container].version
        if log is None or log.state is not LogState.OPEN:
            return False
        if log.ensemble.is_read_quorum([member for member in log.members if member not in destroyed]):
            return False
        after = without_lost_members(log, destroyed)

        def write() -> None:
            stored = self.logs[container]
            if stored.version == version:
                check_transition(stored.log, after, None)
                stored.log, stored.version = after, version + 1
                self._on_loss(container, log, after)

        delay = self._draws.between(MS, 500 * MS, "operator", container)
        self._scheduler.after(delay, "operator accepts loss", write)
        return True

    # Decisions that the simulator replaces.

    def _refusal(self, container: int, version: int, claim_epoch: int) -> Outcome | None:
        """The condition of the transaction: the claim's version and the record's version."""
        if self.claims[container].version != claim_epoch:
            return Outcome.CLAIM_LOST
        if self.logs[container].version != version:
            return Outcome.CONFLICT
        return None

    # Steps.

    def _request(self, caller: Address, effect: Callable[[], _Result], done: Callable[[_Result | None], None]) -> None:
        """A read: it fails or is true as of some moment between request and answer."""
        store = caller.store

        def arrive() -> None:
            fails = self.is_out or self._happens("read unknown", store)
            result = None if fails else effect()
            delay = _TIMEOUT if fails else self._delay("metadata answer", store)
            self._scheduler.after(delay, "metadata answer", lambda: done(result), store)

        self._scheduler.after(self._delay("metadata request", store), "metadata request", arrive)

    def _write(
        self,
        caller: Address,
        effect: Callable[[], tuple[Outcome, int]],
        unknown: tuple[Outcome, int],
        done: Callable[[tuple[Outcome, int]], None],
    ) -> None:
        store = caller.store

        def answer(result: tuple[Outcome, int], delay: int) -> None:
            self._scheduler.after(delay, "metadata answer", lambda: done(result), store)

        def arrive() -> None:
            if self.is_out or self._happens("record unknown before", store):
                answer(unknown, _TIMEOUT)
            elif self._happens("record late", store):
                late = self._draws.between(_TIMEOUT, 20 * _TIMEOUT, "late", store)
                self._scheduler.after(late, "late metadata write", lambda: (effect(), None)[1])
                answer(unknown, _TIMEOUT)
            elif self._happens("record unknown after", store):
                effect()
                answer(unknown, _TIMEOUT)
            else:
                answer(effect(), self._delay("metadata answer", store))

        self._scheduler.after(self._delay("metadata request", store), "metadata request", arrive)

    def _happens(self, kind: str, store: int) -> bool:
        happens = self.has_faults and self._draws.happens(self._swarm.record.get(kind, 0.0), kind, store)
        if happens:
            self._faults[kind] += 1
        return happens

    def _delay(self, kind: str, store: int) -> int:
        return self._draws.between(MS, 200 * MS if self._happens("record slow", store) else 6 * MS, kind, store)

    @property
    def is_out(self) -> bool:
        return self._scheduler.now < self.outage_until
