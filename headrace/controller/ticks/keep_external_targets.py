"""The load balancer for clients outside gets the addresses of the stores, as their leases have them.

Targets are read before leases. So a target that no lease names is one whose store has ended, and not one that another
run has just added. Runs may overlap, and one may end anywhere: the next run continues with what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.metadata.cluster_records import ClusterRecords
from headrace.model.cluster import StoreLease
from headrace.model.errors import UnavailableError
from headrace.ports.external_targets import ExternalTargets, Target
from headrace.ports.metadata_store import MetadataStore


@dataclass(frozen=True, slots=True)
class TargetsKept:
    """What a run did, and the stores that clients outside do not reach: without a port, or unhealthy."""

    added: tuple[str, ...]
    removed: tuple[Target, ...]
    unreachable: tuple[str, ...]
    leases: Sequence[StoreLease]


def keep_targets(store: MetadataStore, targets: ExternalTargets) -> TargetsKept:
    """Add the stores that have a lease, and remove those whose lease has ended.

    A port that the load balancer refuses to change does not keep the others from their stores.

    Raises:
        ThrottledError: the metadata store or the load balancer does not answer so many requests.
        UnavailableError: the metadata store or the load balancer does not answer, or refuses a target.
    """
    refused: list[UnavailableError] = []
    present: dict[int, dict[Target, bool]] = {}
    for port in targets.ports():
        with _noted(refused):
            present[port] = targets.targets(port)
    leases = [stored.lease for stored in ClusterRecords(store).leases() if not stored.lease.has_ended]
    wanted = {
        lease.external.port: (lease.store_id, Target(lease.host, lease.port))
        for lease in leases
        if lease.external is not None and lease.external.port in present
    }
    added, removed, unhealthy = [], [], set()
    for port, registered in present.items():
        store_id, target = wanted.get(port, ("", None))
        with _noted(refused):
            if target is not None and target not in registered:
                targets.add(port, target)
                added.append(store_id)
            elif target is not None and registered[target]:
                unhealthy.add(store_id)
        with _noted(refused):
            if gone := sorted(each for each in registered if each != target):
                targets.remove(port, gone)
                removed += gone
    if refused:
        raise refused[0]
    reached = {store_id for store_id, _ in wanted.values()} - unhealthy
    unreachable = sorted(lease.store_id for lease in leases if lease.store_id not in reached)
    return TargetsKept(tuple(added), tuple(removed), tuple(unreachable), leases)


@contextmanager
def _noted(refused: list[UnavailableError]) -> Iterator[None]:
    """Go on after a refusal, and note it. Throttling ends the run: more requests would prolong it."""
    try:
        yield
    except UnavailableError as error:
        refused.append(error)
