"""Decides how the ensemble of a log changes: one member removed, added or replaced at a time.

An ensemble never has fewer than two members. A learner receives the log without counting, until it has caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.model.container_logs import COPIES_MIN, Ensemble, ReplicaId
from headrace.model.replica_placement import Placement


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
    ready = [one for one in wanted_learners(ensemble, own, placement) if one in views and views[one].is_ready]
    destroyed = [one for one in ensemble.members if one != own and one in placement.destroyed]
    replaced = [(one, _replaced(ensemble, one, ready, placement)) for one in destroyed]
    removed = [(one, _removed(ensemble, one, views, placement)) for one in destroyed]
    for member, changed in (*replaced, *removed):
        if changed is not None and not _is_relied_on(member, changed, views):
            return changed
    for learner in ready:
        changed = _with(ensemble, learner, placement)
        if changed is not None:
            return changed
    for member in ensemble.members:
        if member != own and _is_dispensable(ensemble, member, views, bounds):
            return Ensemble(tuple(one for one in ensemble.members if one != member), ensemble.copies)
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
    for one in candidates:
        is_needed = not chosen or one in ensemble.members or len(chosen) < ensemble.ack_quorum
        zone = zones.get(one) if chosen else zones.get(one, one.hex())
        if zone not in taken and is_needed and len(chosen) < ensemble.copies:
            chosen.append(one)
            taken.add(zone)
    return tuple(chosen)


def _replaced(ensemble: Ensemble, member: ReplicaId, ready: list[ReplicaId], placement: Placement) -> Ensemble | None:
    """The ensemble with a learner that is ready instead of a destroyed member."""
    rest = tuple(one for one in ensemble.members if one != member)
    taken = {placement.zones.get(one) for one in rest}
    learner = next((one for one in ready if placement.zones.get(one) not in taken), None)
    return None if learner is None else Ensemble((*rest, learner), ensemble.copies)


def _removed(
    ensemble: Ensemble, member: ReplicaId, views: Mapping[ReplicaId, MemberView], placement: Placement
) -> Ensemble | None:
    """The ensemble without a destroyed member, if two remain.

    Another destroyed member that does not stream must not be one of them: no quorum could ever be reached with it.
    """
    rest = tuple(one for one in ensemble.members if one != member)
    is_reached = all(one not in placement.destroyed or (one in views and views[one].is_streaming) for one in rest)
    return Ensemble(rest, ensemble.copies) if len(rest) >= COPIES_MIN and is_reached else None


def _with(ensemble: Ensemble, learner: ReplicaId, placement: Placement) -> Ensemble | None:
    """Add a learner of a free zone, or replace the member of its zone."""
    zone = placement.zones.get(learner)
    rest = tuple(one for one in ensemble.members if placement.zones.get(one) != zone)
    if len(rest) < ensemble.copies:
        return Ensemble((*rest, learner), ensemble.copies)
    return None


def _is_relied_on(member: ReplicaId, rest: Ensemble, views: Mapping[ReplicaId, MemberView]) -> bool:
    """Whether a member still answers, and without it too few do. A store that leaves stays until no record names it."""
    streaming = {one for one, view in views.items() if view.is_streaming}
    return member in streaming and len(streaming.intersection(rest.members)) < COPIES_MIN


def _is_dispensable(
    ensemble: Ensemble, member: ReplicaId, views: Mapping[ReplicaId, MemberView], bounds: RepairBounds
) -> bool:
    """Whether a member is silent or lags for too long, and all others have what is appended."""
    others = [one for one in ensemble.members if one != member]
    view = views.get(member)
    if view is None or len(others) < COPIES_MIN:
        return False
    is_late = view.silent_ms >= bounds.silence_ms or view.lag_bytes > bounds.lag_bytes
    return is_late and all(one in views and views[one].is_streaming for one in others)
