"""One change of a log's ensemble at a time: its choice, and the joint rule while its outcome is not known.

A write of the log record whose outcome is unknown is written again under the same version. A read that still shows the
old version proves nothing: the first write may yet arrive. So the joint rule ends only when a record with a higher
version has been seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.model.container_logs import COPIES_MIN, ContainerLog, Ensemble, ReplicaId
from headrace.model.replica_placement import Placement
from headrace.replication.bounds import WriterBounds
from headrace.replication.effects import ReadRecord, WriteRecord, WriterEffect


class ChangePhase(Enum):
    """NONE: no change. WAITING: decided, not written. WRITING, READING: a request is under way. UNKNOWN: to repeat."""

    NONE = "none"
    WAITING = "waiting"
    WRITING = "writing"
    READING = "reading"
    UNKNOWN = "unknown"


class EnsembleChange:
    """The record as the owner knows it, and the change of its members that is in progress."""

    def __init__(self, log: ContainerLog, version: int, epoch: int, bounds: WriterBounds) -> None:
        self.log = log
        self.version = version
        self.phase = ChangePhase.NONE
        self.wanted: Ensemble | None = None
        self._epoch = epoch
        self._bounds = bounds
        self._to_write: Ensemble | None = None
        self._written: ContainerLog | None = None
        self._since_ms = 0
        self._retry_at_ms = 0

    @property
    def current(self) -> Ensemble:
        return self.log.ensemble

    @property
    def is_asking(self) -> bool:
        """Whether a request to the metadata store is under way."""
        return self.phase in (ChangePhase.WRITING, ChangePhase.READING)

    def begin(self, wanted: Ensemble, now_ms: int) -> None:
        """Decide a change. From here on both ensembles count."""
        assert self.phase is ChangePhase.NONE
        self.wanted = self._to_write = wanted
        self.phase = ChangePhase.WAITING
        self._since_ms = now_ms

    def advance(
        self, wanted_position: int, acknowledged_entry: int, truncated_before: int, now_ms: int, *, stalls: bool
    ) -> list[WriterEffect]:
        """Write the record as soon as the new ensemble has all that is acknowledged; repeat unknown writes.

        `stalls`: the new ensemble holds less than the current one, so that it holds up acknowledgements.
        """
        if self.phase is ChangePhase.WAITING:
            if self._has_reached(wanted_position, acknowledged_entry):
                assert self._to_write is not None
                self._written = self.log.with_members(self._to_write.members, truncated_before)
                return self._write()
            if now_ms - self._since_ms >= self._bounds.change_patience_ms:
                self.phase, self.wanted = ChangePhase.NONE, None
        elif self.phase is ChangePhase.UNKNOWN and now_ms >= self._retry_at_ms:
            if stalls and now_ms - self._since_ms >= self._bounds.change_patience_ms:
                self._withdraw(truncated_before, now_ms)
            return self._write()
        return []

    def written(self, version: int) -> None:
        """The record that was written last is in force."""
        assert self._written is not None
        self._end(self._written, version)

    def unknown(self, now_ms: int) -> None:
        """The outcome of a request is not known."""
        self.phase = ChangePhase.UNKNOWN
        self._retry_at_ms = now_ms + self._bounds.record_retry_ms

    def conflict(self) -> list[WriterEffect]:
        """The record has another version: one of the earlier writes may have arrived."""
        self.phase = ChangePhase.READING
        return [ReadRecord()]

    def record_read(self, log: ContainerLog, version: int, now_ms: int) -> None:
        """The record as DynamoDB has it."""
        if self._ends_change(version):
            self._end(log, version)
        else:
            self.unknown(now_ms)

    # Decisions that the simulator replaces.

    def _has_reached(self, wanted_position: int, acknowledged_entry: int) -> bool:
        return wanted_position >= acknowledged_entry

    def _ends_change(self, version: int) -> bool:
        return version > self.version

    # Steps.

    def _withdraw(self, truncated_before: int, now_ms: int) -> None:
        """Write the old ensemble: only a higher version proves that the change can no longer arrive."""
        self._written = self.log.with_members(self.current.members, truncated_before)
        self._since_ms = now_ms

    def _write(self) -> list[WriterEffect]:
        assert self._written is not None
        self.phase = ChangePhase.WRITING
        return [WriteRecord(self._written, self.version, self._epoch)]

    def _end(self, log: ContainerLog, version: int) -> None:
        self.log, self.version = log, version
        self.phase, self.wanted, self._written = ChangePhase.NONE, None, None


# Decides how the ensemble of a log changes: one member removed, added or replaced at a time.
#
# An ensemble never has fewer than two members. A learner receives the log without counting, until it has caught up.


@dataclass(frozen=True, slots=True)
class MemberView:
    """What the owner knows of a member or learner.

    `silent_ms` is the time since it answered last, 0 while it is connected. `lag_bytes` is what it lacks of the
    acknowledged entries. `is_ready`: it has all closed ledgers and lacks little of the open one.
    """

    is_streaming: bool
    silent_ms: int
    lag_bytes: int
    is_ready: bool


@dataclass(frozen=True, slots=True)
class RepairBounds:
    silence_ms: int
    lag_bytes: int


def wanted_learners(ensemble: Ensemble, own: ReplicaId, placement: Placement) -> tuple[ReplicaId, ...]:
    """The replicas that are to receive the log before they become members."""
    zones = {placement.zones.get(member): member for member in ensemble.members}
    # The zone of a destroyed member may not be known any more. If there are two, neither can only be removed.
    there = sum(member not in placement.destroyed for member in ensemble.members)
    return tuple(
        replica
        for zone, replica in sorted(placement.wanted.items())
        if replica != own
        and replica not in ensemble.members
        and replica not in placement.destroyed
        and zones.get(zone) != own
        and (zone in zones or there < ensemble.copies)
    )


def next_ensemble(
    ensemble: Ensemble,
    own: ReplicaId,
    views: Mapping[ReplicaId, MemberView],
    placement: Placement,
    bounds: RepairBounds,
) -> Ensemble | None:
    """The ensemble after the most urgent change; None if there is nothing to change now."""
    ready = [
        learner for learner in wanted_learners(ensemble, own, placement) if learner in views and views[learner].is_ready
    ]
    destroyed = [member for member in ensemble.members if member != own and member in placement.destroyed]
    replaced = [(each, _replaced(ensemble, each, ready, placement)) for each in destroyed]
    removed = [(each, _removed(ensemble, each, views, placement)) for each in destroyed]
    for member, changed in (*replaced, *removed):
        if changed is not None and not _is_relied_on(member, changed, views):
            return changed
    for learner in ready:
        changed = _with(ensemble, learner, placement)
        if changed is not None:
            return changed
    for member in ensemble.members:
        if member != own and _is_dispensable(ensemble, member, views, bounds):
            return Ensemble(tuple(each for each in ensemble.members if each != member), ensemble.copies)
    return None


def members_after_takeover(
    candidates: tuple[ReplicaId, ...], ensemble: Ensemble, zones: Mapping[ReplicaId, str]
) -> tuple[ReplicaId, ...]:
    """One candidate of each zone, in their order: members of the ensemble, and others if these are too few.

    The first candidate is the new owner. Another one whose zone is not known is left out: its store is newer than what
    the owner has read, and may be in a zone that is taken.
    """
    chosen: list[ReplicaId] = []
    taken: set[str | None] = {None}
    for candidate in candidates:
        is_needed = not chosen or candidate in ensemble.members or len(chosen) < ensemble.ack_quorum
        zone = zones.get(candidate) if chosen else zones.get(candidate, candidate.hex())
        if zone not in taken and is_needed and len(chosen) < ensemble.copies:
            chosen.append(candidate)
            taken.add(zone)
    return tuple(chosen)


def _replaced(ensemble: Ensemble, member: ReplicaId, ready: list[ReplicaId], placement: Placement) -> Ensemble | None:
    """The ensemble with a learner that is ready instead of a destroyed member."""
    rest = tuple(each for each in ensemble.members if each != member)
    taken = {placement.zones.get(each) for each in rest}
    learner = next((each for each in ready if placement.zones.get(each) not in taken), None)
    return None if learner is None else Ensemble((*rest, learner), ensemble.copies)


def _removed(
    ensemble: Ensemble, member: ReplicaId, views: Mapping[ReplicaId, MemberView], placement: Placement
) -> Ensemble | None:
    """The ensemble without a destroyed member, if two remain.

    Another destroyed member that does not stream must not be one of them: no quorum could ever be reached with it.
    """
    rest = tuple(each for each in ensemble.members if each != member)
    is_reached = all(each not in placement.destroyed or (each in views and views[each].is_streaming) for each in rest)
    return Ensemble(rest, ensemble.copies) if len(rest) >= COPIES_MIN and is_reached else None


def _with(ensemble: Ensemble, learner: ReplicaId, placement: Placement) -> Ensemble | None:
    """Add a learner of a free zone, or replace the member of its zone."""
    zone = placement.zones.get(learner)
    rest = tuple(member for member in ensemble.members if placement.zones.get(member) != zone)
    if len(rest) < ensemble.copies:
        return Ensemble((*rest, learner), ensemble.copies)
    return None


def _is_relied_on(member: ReplicaId, rest: Ensemble, views: Mapping[ReplicaId, MemberView]) -> bool:
    """Whether a member still answers, and without it too few do. A store that leaves stays until no record names it."""
    streaming = {member for member, view in views.items() if view.is_streaming}
    return member in streaming and len(streaming.intersection(rest.members)) < COPIES_MIN


def _is_dispensable(
    ensemble: Ensemble, member: ReplicaId, views: Mapping[ReplicaId, MemberView], bounds: RepairBounds
) -> bool:
    """Whether a member is silent or lags for too long, and all others have what is appended."""
    others = [each for each in ensemble.members if each != member]
    view = views.get(member)
    if view is None or len(others) < COPIES_MIN:
        return False
    is_late = view.silent_ms >= bounds.silence_ms or view.lag_bytes > bounds.lag_bytes
    return is_late and all(other in views and views[other].is_streaming for other in others)
