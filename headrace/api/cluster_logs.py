"""The replicated logs of containers, and what operators change about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.cluster import StoreLease, StoreState
from headrace.model.container_logs import ContainerLog, LedgerStart, LogState
from headrace.model.ensembles import ReplicaId
from headrace.model.replica_placement import is_destroyed, lease_of, may_be_removed


@dataclass(frozen=True, slots=True)
class LogMemberView:
    """A replica that holds a log.

    `store`, `store_state` and `zone` are None if no store has registered this replica last. `may_be_removed`: its
    store has ended for certain, so an operator may accept the loss of the replica.
    """

    replica: str
    store: str | None
    store_state: StoreState | None
    zone: str | None
    may_be_removed: bool

    @classmethod
    def of(cls, replica: ReplicaId, leases: Sequence[StoreLease]) -> LogMemberView:
        lease = lease_of(replica, leases)
        if lease is None:
            return cls(replica.hex(), None, None, None, may_be_removed(None))
        return cls(replica.hex(), lease.store_id, lease.state, lease.zone, may_be_removed(lease))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LogMemberView:
        state = document["storeState"]
        return cls(
            replica=str(document["replica"]),
            store=None if document["store"] is None else str(document["store"]),
            store_state=None if state is None else StoreState(state),
            zone=None if document["zone"] is None else str(document["zone"]),
            may_be_removed=bool(document["mayBeRemoved"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "replica": self.replica,
            "store": self.store,
            "storeState": None if self.store_state is None else self.store_state.value,
            "zone": self.zone,
            "mayBeRemoved": self.may_be_removed,
        }


@dataclass(frozen=True, slots=True)
class ContainerLogView:
    """The log of a container. `state` and `copies` are None, and `version` is 0, if it has no record.

    The entries from `truncated` on are not all in tier 2. `next_entry` is the first entry of the next ledger of a log
    that is not open. `complete`: all wanted copies exist. `blocked`: its recovery waits for members that do not answer.
    """

    container: int
    state: LogState | None
    copies: int | None
    version: int
    members: tuple[LogMemberView, ...]
    ledgers: tuple[LedgerStart, ...]
    truncated: int
    next_entry: int | None
    complete: bool
    blocked: bool

    @classmethod
    def of(
        cls, container: int, log: ContainerLog | None, version: int, leases: Sequence[StoreLease]
    ) -> ContainerLogView:
        blocked = any(container in lease.replication.blocked for lease in leases if not lease.has_ended)
        if log is None:
            return cls(container, None, None, version, (), (), 0, None, complete=True, blocked=blocked)
        there = [member for member in log.members if not is_destroyed(member, leases)]
        return cls(
            container=container,
            state=log.state,
            copies=log.copies,
            version=version,
            members=tuple(LogMemberView.of(member, leases) for member in log.members),
            ledgers=log.ledgers,
            truncated=log.truncated_before,
            next_entry=log.next_entry,
            complete=log.state is not LogState.OPEN or len(there) == log.copies,
            blocked=blocked,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ContainerLogView:
        state, copies, next_entry = (document[name] for name in ("state", "copies", "nextEntry"))
        return cls(
            container=int(document["container"]),
            state=None if state is None else LogState(state),
            copies=None if copies is None else int(copies),
            version=int(document["version"]),
            members=tuple(map(LogMemberView.from_json, document["members"])),
            ledgers=tuple(LedgerStart(int(each["epoch"]), int(each["first"])) for each in document["ledgers"]),
            truncated=int(document["truncated"]),
            next_entry=None if next_entry is None else int(next_entry),
            complete=bool(document["complete"]),
            blocked=bool(document["blocked"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "container": self.container,
            "state": None if self.state is None else self.state.value,
            "copies": self.copies,
            "version": self.version,
            "members": [each.to_json() for each in self.members],
            "ledgers": [{"epoch": each.epoch, "first": each.first} for each in self.ledgers],
            "truncated": self.truncated,
            "nextEntry": self.next_entry,
            "complete": self.complete,
            "blocked": self.blocked,
        }


@dataclass(frozen=True, slots=True)
class ContainerLogsView:
    """The logs of all containers, sorted by number."""

    logs: tuple[ContainerLogView, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ContainerLogsView:
        return cls(tuple(map(ContainerLogView.from_json, document["logs"])))

    def to_json(self) -> dict[str, Any]:
        return {"logs": [one.to_json() for one in self.logs]}


@dataclass(frozen=True, slots=True)
class CopiesChanged:
    """The containers whose log record has the other number of copies now, and open logs that keep theirs."""

    copies: int
    changed: tuple[int, ...]
    kept: tuple[int, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CopiesChanged:
        return cls(int(document["copies"]), _containers(document["changed"]), _containers(document["kept"]))

    def to_json(self) -> dict[str, Any]:
        return {"copies": self.copies, "changed": list(self.changed), "kept": list(self.kept)}


@dataclass(frozen=True, slots=True)
class EpochsRaised:
    """The containers whose epoch was raised, and those that still need another request."""

    raised: tuple[int, ...]
    remaining: tuple[int, ...]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EpochsRaised:
        return cls(_containers(document["raised"]), _containers(document["remaining"]))

    def to_json(self) -> dict[str, Any]:
        return {"raised": list(self.raised), "remaining": list(self.remaining)}


def _containers(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(int, numbers))
