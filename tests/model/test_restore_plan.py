"""What a restore decides about objects, epochs, logs and pointers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.container_logs import ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.containers import ContainerClaim, SnapshotPointer
from headrace.model.restore_plan import (
    NO_OWNER,
    NeededObject,
    ObjectState,
    ObjectVersion,
    judged,
    restored_claim,
    restored_epochs,
    restored_log,
    restored_next_entry,
    restored_pointer,
)

NAME = "container-0001/packed/0000000004-0000000001"
CLAIM = ContainerClaim("store-0", "10.0.0.1", 12345, "a")
EPOCHS = st.none() | st.integers(0, 2**40)


def version(number: int, *, marker: bool = False, latest: bool = False, length: int = 10) -> ObjectVersion:
    return ObjectVersion(NAME, f"v{number}", marker, latest, 0 if marker else length, number)


def open_log(first: int, truncated: int = 0, copies: int = 3) -> ContainerLog:
    members = tuple(ReplicaId(bytes([each]) * 16) for each in range(copies))
    return ContainerLog(copies, LogState.OPEN, members, (LedgerStart(3, first),), truncated)


def test_present_object_needs_nothing():
    found = judged(NeededObject(NAME, 10), [version(1, latest=True)])
    assert (found.state, found.markers) == (ObjectState.PRESENT, ())


def test_deleted_object_comes_back_without_its_markers():
    versions = [version(3, marker=True, latest=True), version(2, marker=True), version(1)]
    found = judged(NeededObject(NAME, 10), versions)
    assert found.state is ObjectState.DELETED
    assert [each.version_id for each in found.markers] == ["v3", "v2"]


@pytest.mark.parametrize("versions", [[], [version(2, marker=True, latest=True)]])
def test_object_without_a_version_has_expired(versions: list[ObjectVersion]):
    assert judged(NeededObject(NAME, 10), versions).state is ObjectState.EXPIRED


@pytest.mark.parametrize(
    "versions", [[version(1, latest=True, length=9)], [version(2, latest=True), version(1)]], ids=["shorter", "twice"]
)
def test_object_that_nothing_of_ours_wrote_is_altered(versions: list[ObjectVersion]):
    found = judged(NeededObject(NAME, 10), versions)
    assert found.state is ObjectState.ALTERED
    assert not found.state.is_readable


def test_object_of_unknown_length_may_have_any():
    assert judged(NeededObject(NAME), [version(1, latest=True, length=7)]).length == 7


@given(st.lists(st.booleans(), max_size=4), st.booleans())
def test_only_markers_are_ever_removed(kinds: list[bool], is_latest: bool):
    versions = [version(each, marker=kind, latest=is_latest and not each) for each, kind in enumerate(kinds)]
    found = judged(NeededObject(NAME, 10), versions)
    assert all(each.is_marker for each in found.markers)
    assert bool(found.markers) == (found.state is ObjectState.DELETED and any(kinds))


@given(st.lists(EPOCHS, max_size=5))
def test_restored_epochs_are_above_all_used_ones(used: list[int | None]):
    known = [each for each in used if each is not None]
    found = restored_epochs(used)
    assert (found is None) == (not known)
    if found is not None:
        assert found.claim > found.pointer > max(known)


@given(st.integers(0, 100))
def test_next_owner_does_not_take_the_snapshot_for_exact(used: int):
    """A clean snapshot of the epoch before the owner's would not be compared with the chunk directory."""
    found = restored_epochs([used])
    assert found is not None
    next_owner = found.claim + 1
    assert found.pointer != next_owner - 1


def test_restored_pointer_is_newer_than_every_log_on_a_disk():
    epochs = restored_epochs([4, 9])
    assert epochs is not None
    pointer = restored_pointer(SnapshotPointer("snapshots/a", 5, 6, 4, clean=False), epochs)
    assert pointer == SnapshotPointer("snapshots/a", 5, 6, 10, clean=True, restored=True)


@pytest.mark.parametrize(
    ("then", "now", "store"), [(CLAIM, None, "store-0"), (None, CLAIM, "store-0"), (None, None, NO_OWNER.store_id)]
)
def test_restored_claim_is_the_known_one(then: ContainerClaim | None, now: ContainerClaim | None, store: str):
    claim = restored_claim(then, now)
    assert (claim.store_id, claim.from_clean) == (store, True)


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.booleans())
def test_next_entry_is_above_both_logs(then: int, now: int, is_empty: bool):
    newer = ContainerLog(3, LogState.EMPTY, (), (), now, now) if is_empty else open_log(now, now)
    found = restored_next_entry(open_log(then), newer)
    assert found is not None
    assert found > max(then, now)
    log = restored_log(open_log(then), newer, found)
    assert (log.state, log.members, log.ledgers, log.next_entry) == (LogState.LOST, (), (), found)


def test_container_without_a_log_gets_none():
    assert restored_next_entry(None, None) is None


@pytest.mark.parametrize(("then", "now", "copies"), [(3, 1, 1), (1, None, 1), (1, 3, 3)])
def test_restored_log_has_the_copies_of_now(then: int, now: int | None, copies: int):
    present = None if now is None else open_log(5, copies=now)
    assert restored_log(open_log(5, copies=then), present, 9).copies == copies
