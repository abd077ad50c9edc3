"""Claims of containers: each records the owner and its address, and fences the former owner."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.metadata.cluster_records import ClusterRecords, ContainerState, check_lease, check_snapshot, write_claim
from headrace.model.cluster import may_be_taken_over
from headrace.model.containers import ContainerClaim
from headrace.model.errors import ThrottledError, UnavailableError
from headrace.ports.metadata_store import MetadataStore, Write, WriteConflictError

_log = logging.getLogger(__name__)

TASK_METADATA_VARIABLE: Final = "ECS_CONTAINER_METADATA_URI_V4"
TASK_METADATA_TIMEOUT_S: Final = 5.0
TASK_ARN_LABEL: Final = "com.amazonaws.ecs.task-arn"
TASK_REVISION_LABEL: Final = "com.amazonaws.ecs.task-definition-version"


class UnansweredClaimError(UnavailableError):
    """The write of a claim had no answer: the claim may have been written, or may be written later."""


def claim_if_unchanged(
    store: MetadataStore, container: int, claim: ContainerClaim, version: int | None, *checks: Write
) -> int | None:
    """Take a container over whose claim has this version (None: no claim yet), if the checks hold, too.

    Its epoch, which is the version of the new claim; None if anything has changed meanwhile.

    Raises:
        UnansweredClaimError: the metadata store does not answer.
    """
    try:
        store.write(write_claim(container, claim, version), *checks)
    except WriteConflictError:
        _log.warning("event=claim_contended container=%d", container)
        return None
    except (ThrottledError, UnavailableError) as error:  # an earlier attempt of a throttled request may have succeeded
        raise UnansweredClaimError(error.message) from error
    return 0 if version is None else version + 1


def claim_free_container(
    records: ClusterRecords, state: ContainerState, claim: ContainerClaim, now_ms: int
) -> int | None:
    """Claim a container in the state that was read. Returns its epoch, or None if it is not free.

    A container is not free while its owner may still acknowledge. The transaction of the claim therefore checks that
    the owner's lease has not changed since it was read as ended. A store that reads its claims under a new lease can
    rely on them.

    Raises:
        UnansweredClaimError: the write of the claim had no answer.
        ThrottledError, UnavailableError: the metadata store does not answer; no claim was written.
    """
    checks = []
    if state.hold is None and state.pointer is not None:
        # The clean snapshot says that no owner has acknowledged anything since. It must still be there.
        claim = replace(claim, from_clean=True)
        checks.append(check_snapshot(state))
    elif state.hold is not None and state.hold.store_id != claim.store_id:
        owner = records.lease(state.hold.store_id)
        if not may_be_taken_over(owner.lease if owner else None, now_ms, log_in_s3=state.hold.log_in_s3):
            _log.info("event=holder_waited_for container=%d store=%s", state.container, state.hold.store_id)
            return None
        checks.append(check_lease(state.hold.store_id, owner))
    return claim_if_unchanged(records.store, state.container, claim, state.epoch, *checks)


@dataclass(frozen=True, slots=True)
class OwnTask:
    """This process's ECS task: its address in the VPC, its ARN, and the revision of its task definition."""

    address: str
    arn: str
    revision: int


def own_task(environment: Mapping[str, str]) -> OwnTask | None:
    """What ECS says of the task that this process runs in; None if this is not ECS.

    Raises:
        UnavailableError: ECS does not say.
    """
    uri = environment.get(TASK_METADATA_VARIABLE)
    if not uri:
        return None
    try:
        with urllib.request.urlopen(uri, timeout=TASK_METADATA_TIMEOUT_S) as response:
            body = json.load(response)
        labels = body["Labels"]
        address = str(body["Networks"][0]["IPv4Addresses"][0])
        return OwnTask(address, str(labels[TASK_ARN_LABEL]), int(labels[TASK_REVISION_LABEL]))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UnavailableError(f"the task metadata endpoint does not tell this task's address: {error!r}") from error
