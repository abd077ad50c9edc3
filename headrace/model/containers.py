"""Segment containers: their claims, the pointers to the snapshots of their metadata, and the progress of an opening."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.model.backoff import doubled_pause
from headrace.model.errors import CorruptError, HeadraceError

# Claims of segment containers, and pointers to the snapshots of their metadata.
#
# The claim of a container is one metadata record that names the owner and its address. Its record version is the
# container's epoch. A store that takes the container over replaces the record, and every later write of the old owner
# that checks the version fails. A store without the container's log starts from the snapshot in tier 2.

CLUSTER_PARTITION = "cluster"

FIRST_EPOCH = 0
"""The epoch of the first claim of a container: no store has served it before."""


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """The owner of a container. Clients connect to `host` and `port`.

    `zone` is the availability zone id, "local" on a laptop. `from_clean`: tier 2 had all data at the time of the claim,
    and the owner removes the mark `clean` from the snapshot before it serves. While that mark exists, the owner's log
    is not needed. `log_in_s3`: the owner's log consists of objects in S3, so its disk is not needed.
    """

    store_id: str
    host: str
    port: int
    zone: str
    from_clean: bool = False
    log_in_s3: bool = False
    tls_name: str = ""
    """The name in the owner's certificate, which clients verify; "" if they connect without TLS."""


@dataclass(frozen=True, slots=True)
class SnapshotPointer:
    """The newest snapshot of a container in tier 2: `length` bytes in the object `object_name`, with their CRC-32C.

    `epoch` is the epoch of the owner that wrote it. `clean`: the owner wrote it last, when tier 2 had all data. The
    next owner removes this mark before it serves. `restored`: a restore of the deployment wrote it. The chunk directory
    may be newer then, although it is clean.
    """

    object_name: str
    length: int
    checksum: int
    epoch: int
    clean: bool
    restored: bool = False


def containers_of_store(store_index: int, store_count: int, container_count: int) -> tuple[int, ...]:
    """The containers of the store with this index: every `store_count`-th, starting at the index."""
    return tuple(range(store_index, container_count, store_count))


# The progress of a container's opening, and the pause before a failed step is retried.
#
# Every step can be repeated. All attempts keep the first claim, so that a retry does not increase the epoch.

RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
"""If an opening fails for this long, the cause is an outage. More frequent attempts would add load to it."""

QUARANTINE_RETRY_S: Final = 60.0
"""A damaged object needs an operator. The store retries, so that it needs no restart once the object is restored."""


class OpeningStep(enum.StrEnum):
    """The steps of an opening, in their order."""

    CLAIM = "claim"
    LEDGER = "ledger"
    """Open the container's log and replay it."""
    RESTORE = "restore"
    """Restore the state from tier 2 if the log contained no state."""
    CHECKPOINT = "checkpoint"
    """Write the state that came from tier 2 into the log, before any other operation."""
    CONFIRM = "confirm"
    """Check that the claim is still valid."""


_AFTER: Final = {
    OpeningStep.CLAIM: OpeningStep.LEDGER,
    OpeningStep.LEDGER: OpeningStep.RESTORE,
    OpeningStep.RESTORE: OpeningStep.CHECKPOINT,
    OpeningStep.CHECKPOINT: OpeningStep.CONFIRM,
}
_RETRIED_FROM: Final = {OpeningStep.CHECKPOINT: OpeningStep.LEDGER}
"""After a failed checkpoint the log may contain a part of it, so the log is read again. Other steps are idempotent."""


@dataclass(frozen=True, slots=True)
class OpeningProgress:
    """The state of an opening between two attempts.

    `failures` counts by step, since the container was last served. `retry_s` is the pause before `step`, in seconds.
    """

    step: OpeningStep = OpeningStep.CLAIM
    failures: Mapping[OpeningStep, int] = field(default_factory=dict)
    retry_s: float = 0.0
    quarantined: bool = False
    """The container's log or its data in tier 2 is damaged. The container is not served until that is repaired."""
    error: str = ""

    def done(self) -> OpeningProgress:
        """The progress after the step has succeeded; not for the last step."""
        return replace(self, step=_AFTER[self.step], retry_s=0.0)

    def failed(self, error: Exception) -> OpeningProgress:
        """The progress after the step has failed with `error`."""
        failures = self.failures.get(self.step, 0) + 1
        quarantined = isinstance(error, CorruptError)
        return OpeningProgress(
            _RETRIED_FROM.get(self.step, self.step),
            {**self.failures, self.step: failures},
            QUARANTINE_RETRY_S if quarantined else doubled_pause(failures, RETRY_FIRST_S, RETRY_MAX_S),
            quarantined,
            error.message if isinstance(error, HeadraceError) else repr(error),
        )
