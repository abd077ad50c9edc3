"""What a restore of a deployment to an earlier time decides: about objects, epochs, logs and snapshot pointers.

The functions are pure. `then` is a record as the copy of the table at that time has it, `now` as the deployment's
table has it; None without a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from headrace.model.container_logs import LOST_ENTRIES_MAX, ContainerLog, LogState
from headrace.model.containers import ContainerClaim, SnapshotPointer

UNKNOWN_LENGTH: Final = -1

NO_OWNER: Final = ContainerClaim("restored", "restored", 0, "restored")
"""The claim of a container of which the bucket has objects, and neither table a claim."""


class ObjectVersion(NamedTuple):
    """A version of an object, or the mark of its deletion, as a listing of the bucket shows it."""

    name: str
    version_id: str
    is_marker: bool
    is_latest: bool
    length: int
    modified_ms: int


class ObjectState(StrEnum):
    """DELETED: a version is left, which comes back without its delete markers. EXPIRED: no version is left.

    ALTERED: the length is another one, or there are several versions. No part of Headrace does that.
    """

    PRESENT = "present"
    DELETED = "deleted"
    EXPIRED = "expired"
    ALTERED = "altered"

    @property
    def is_readable(self) -> bool:
        """Whether the object can be read after the restore."""
        return self in (ObjectState.PRESENT, ObjectState.DELETED)


class NeededObject(NamedTuple):
    """An object that a record names. Its length in bytes may be unknown."""

    name: str
    length: int = UNKNOWN_LENGTH


@dataclass(frozen=True, slots=True)
class JudgedObject:
    """What the bucket has under a name. `markers` are to be removed, so that the object is there again."""

    name: str
    state: ObjectState
    length: int
    markers: tuple[ObjectVersion, ...] = ()


def judged(needed: NeededObject, versions: Sequence[ObjectVersion]) -> JudgedObject:
    """The state of an object that is needed, from all versions of its name.

    Each name is written once. So its only version is the object, for any time of the restore.
    """
    kept = [each for each in versions if not each.is_marker]
    if not kept:
        return JudgedObject(needed.name, ObjectState.EXPIRED, max(0, needed.length))
    length = kept[0].length
    if len(kept) > 1 or needed.length not in (UNKNOWN_LENGTH, length):
        return JudgedObject(needed.name, ObjectState.ALTERED, length)
    if kept[0].is_latest:
        return JudgedObject(needed.name, ObjectState.PRESENT, length)
    markers = tuple(each for each in versions if each.is_marker)
    return JudgedObject(needed.name, ObjectState.DELETED, length, markers)


class RestoredEpochs(NamedTuple):
    """The restored snapshot pointer names `pointer`, and the restored claim has the version `claim`."""

    pointer: int
    claim: int


def restored_epochs(used: Iterable[int | None]) -> RestoredEpochs | None:
    """Epochs above all that were used, in either table or in the name of an object; None if none was.

    The pointer's epoch is above that of every log on a disk: a store discards such a log. The claim's is one above
    the pointer's, so that the next owner, which adds one more, does not take the snapshot for exact.
    """
    known = [each for each in used if each is not None]
    if not known:
        return None
    return RestoredEpochs(max(known) + 1, max(known) + 2)


def restored_claim(then: ContainerClaim | None, now: ContainerClaim | None) -> ContainerClaim:
    """The claim of a container that no store serves, and with which no other store needs to be waited for."""
    return replace(then or now or NO_OWNER, from_clean=True)


def restored_pointer(then: SnapshotPointer, epochs: RestoredEpochs) -> SnapshotPointer:
    """The pointer to the same snapshot. It is clean: all data that the container has now is in tier 2."""
    return replace(then, epoch=epochs.pointer, clean=True, restored=True)


def restored_next_entry(then: ContainerLog | None, now: ContainerLog | None) -> int | None:
    """The number of a container's next log entry: above all that a replica may have seen; None without a log."""
    logs = [each for each in (then, now) if each is not None]
    return max(map(_reached, logs)) + LOST_ENTRIES_MAX if logs else None


def restored_log(then: ContainerLog | None, now: ContainerLog | None, next_entry: int) -> ContainerLog:
    """A log without members and entries. `copies` is that of now, since the stores are configured for it."""
    known = now or then
    if known is None:
        raise AssertionError("a log is restored that neither table has")
    return ContainerLog(known.copies, LogState.LOST, (), (), next_entry, next_entry)


def _reached(log: ContainerLog) -> int:
    last = log.ledgers[-1].first if log.ledgers else 0
    return max(last, log.truncated_before, log.next_entry or 0)
