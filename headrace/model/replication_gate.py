"""Whether a deployment may continue with the stores of the next zone: only while every log has all its copies.

The next zone then loses one copy of each log at most, and two others are left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.model.container_logs import NO_COPIES, ContainerLog, LogState
from headrace.model.ensembles import COPIES, ReplicaId


def missing_copies(
    logs: Mapping[int, ContainerLog | None], zone_of: Mapping[ReplicaId, str], blocked: Collection[int], zones: int
) -> list[str]:
    """Describe each container for which the deployment must wait, in the order of their numbers.

    `logs` has the record of each container, None without one. `zone_of` has the zone of each replica whose store
    serves. `blocked` are the containers that wait for replicas. `zones` is the number of zones of the deployment.

    A container without a record has no history. Of a log that is EMPTY or LOST no replica is needed. A log in S3 has no
    replicas. None of them waits.
    """
    wanted = min(COPIES, zones)
    found = []
    for container, log in sorted(logs.items()):
        if container in blocked:
            found.append(f"container {container} is blocked: it waits for replicas")
        elif log is not None and log.state is LogState.OPEN and log.copies != NO_COPIES:
            covered = {zone_of[member] for member in log.members if member in zone_of}
            if len(covered) < wanted:
                found.append(f"the log of container {container} has copies in {len(covered)} of {wanted} zones")
    return found
