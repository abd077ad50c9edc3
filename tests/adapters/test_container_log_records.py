"""Conditional writes of container log records, on every metadata store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import write_claim
from headrace.metadata.container_log import (
    ContainerLogRecords,
    LogWriteOutcome,
    StoredLog,
    container_log_key,
    write_container_log,
)
from headrace.model.container_logs import REPLICA_ID_BYTES, ContainerLog, LedgerStart, ReplicaId, emptied, open_ledger
from headrace.model.containers import ContainerClaim
from headrace.model.errors import CorruptError, IllegalStateError, ThrottledError, UnavailableError
from headrace.ports.metadata_store import Check, Create, Delete, Key, MetadataStore, Record, Write

A, B, C = (ReplicaId(bytes([number]) * REPLICA_ID_BYTES) for number in range(3))
CLAIM = ContainerClaim("store-0", "10.0.0.1", 12345, "use1-az1")
FIRST = open_ledger(None, 0, 0, (A, B, C), 0, 3)
NUMBERS = count(100)
"""Containers that no other test uses: all records of the cluster are in one partition."""


@pytest.fixture
def container(metadata_store: MetadataStore) -> int:
    """A container that was claimed once: its epoch is 0."""
    number = next(NUMBERS)
    metadata_store.write(write_claim(number, CLAIM, None))
    return number


@pytest.fixture
def records(metadata_store: MetadataStore) -> ContainerLogRecords:
    return ContainerLogRecords(metadata_store)


def test_a_log_without_a_record_has_version_zero(records: ContainerLogRecords, container: int):
    assert records.read(container) == (None, 0)


def test_a_written_log_has_the_next_version(records: ContainerLogRecords, container: int):
    assert records.write(container, FIRST, 0, 0) is LogWriteOutcome.WRITTEN
    assert records.read(container) == (FIRST, 1)
    smaller = FIRST.with_members((A, B), 0)
    assert records.write(container, smaller, 1, 0) is LogWriteOutcome.WRITTEN
    assert records.read(container) == (smaller, 2)


def test_a_repeated_write_is_a_conflict(records: ContainerLogRecords, container: int):
    records.write(container, FIRST, 0, 0)
    assert records.write(container, FIRST, 0, 0) is LogWriteOutcome.CONFLICT
    assert records.read(container) == (FIRST, 1)


def test_a_known_record_is_not_read_again(metadata_store: MetadataStore, container: int):
    """The conditions of the transaction are enough, since a version never names two contents."""
    records = ContainerLogRecords(WithoutBatchReads(metadata_store))  # type: ignore[arg-type]
    assert records.write(container, FIRST, 0, 0, StoredLog(None, 0)) is LogWriteOutcome.WRITTEN
    assert records.write(container, FIRST, 0, 0, StoredLog(None, 0)) is LogWriteOutcome.CONFLICT
    smaller = FIRST.with_members((A, B), 0)
    assert records.write(container, smaller, 7, 0, StoredLog(FIRST, 7)) is LogWriteOutcome.CONFLICT
    with pytest.raises(IllegalStateError):
        records.write(container, FIRST.with_members((A,), 0), 1, 0, StoredLog(FIRST, 1))
    assert records.write(container, smaller, 1, 0, StoredLog(FIRST, 1)) is LogWriteOutcome.WRITTEN
    assert records.read(container) == (smaller, 2)
    metadata_store.write(write_claim(container, CLAIM, 0))
    assert records.write(container, FIRST, 2, 0, StoredLog(smaller, 2)) is LogWriteOutcome.CLAIM_LOST
    assert records.write(container, FIRST, 7, 0, StoredLog(smaller, 7)) is LogWriteOutcome.CLAIM_LOST


def test_a_known_record_of_another_version_is_read(records: ContainerLogRecords, container: int):
    assert records.write(container, FIRST, 0, 0, StoredLog(FIRST, 4)) is LogWriteOutcome.WRITTEN


class WithoutBatchReads:
    """A metadata store that reads only single records."""

    def __init__(self, inner: MetadataStore) -> None:
        self.get, self.write = inner.get, inner.write


@pytest.mark.parametrize("version", [1, 7])
def test_a_record_that_is_missing_is_a_conflict(records: ContainerLogRecords, container: int, version: int):
    assert records.write(container, FIRST, version, 0) is LogWriteOutcome.CONFLICT
    assert records.read(container) == (None, 0)


def test_a_former_owner_writes_nothing(metadata_store: MetadataStore, records: ContainerLogRecords, container: int):
    records.write(container, FIRST, 0, 0)
    metadata_store.write(write_claim(container, CLAIM, 0))
    assert records.write(container, FIRST.with_members((A, B), 0), 1, 0) is LogWriteOutcome.CLAIM_LOST
    assert records.write(container, FIRST.with_members((A, B), 0), 9, 0) is LogWriteOutcome.CLAIM_LOST
    assert records.read(container) == (FIRST, 1)
    after = open_ledger(FIRST, 1, 50, (A, C), 0, 3)
    assert records.write(container, after, 1, 1) is LogWriteOutcome.WRITTEN
    assert records.read(container) == (after, 2)


def test_a_container_without_a_claim_has_no_owner(records: ContainerLogRecords):
    assert records.write(next(NUMBERS), FIRST, 0, 0) is LogWriteOutcome.CLAIM_LOST


def test_a_forbidden_transition_is_refused(records: ContainerLogRecords, container: int):
    records.write(container, FIRST, 0, 0)
    for log in (replace(FIRST, ledgers=(LedgerStart(0, 5),)), FIRST.with_members((A,), 0)):
        with pytest.raises(IllegalStateError):
            records.write(container, log, 1, 0)
    assert records.read(container) == (FIRST, 1)


class RacingStore:
    """A metadata store in which another process writes something just before each transaction."""

    def __init__(self, inner: MetadataStore, first: Write) -> None:
        self._inner = inner
        self._first = first

    def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        return self._inner.get_many(keys)

    def write(self, *writes: Write) -> None:
        self._inner.write(self._first)
        self._inner.write(*writes)


def racing(store: MetadataStore, first: Write) -> ContainerLogRecords:
    return ContainerLogRecords(RacingStore(store, first))  # type: ignore[arg-type]


def test_a_claim_during_the_write_wins(metadata_store: MetadataStore, container: int):
    records = racing(metadata_store, write_claim(container, CLAIM, 0))
    assert records.write(container, FIRST, 0, 0) is LogWriteOutcome.CLAIM_LOST
    assert metadata_store.get(container_log_key(container)) is None


def test_a_record_written_during_the_write_wins(metadata_store: MetadataStore, container: int):
    other = FIRST.with_members((A, B), 0)
    records = racing(metadata_store, write_container_log(container, other, 0))
    assert records.write(container, FIRST, 0, 0) is LogWriteOutcome.CONFLICT
    assert ContainerLogRecords(metadata_store).read(container) == (other, 1)


def test_a_corrupt_record_is_refused(metadata_store: MetadataStore, records: ContainerLogRecords, container: int):
    metadata_store.write(Create(container_log_key(container), {"format": 1}, 1))
    with pytest.raises(CorruptError):
        records.read(container)
    with pytest.raises(CorruptError):
        records.write(container, FIRST, 1, 0)
    metadata_store.write(Delete(container_log_key(container), None))  # other tests read all logs


class SilentStore:
    """A metadata store that fails every request."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_arguments: Any) -> None:
            raise self._error

        return fail


@pytest.mark.parametrize("error", [ThrottledError("slow down"), UnavailableError("no answer")])
def test_without_an_answer_the_outcome_is_unknown(error: Exception):
    records = ContainerLogRecords(SilentStore(error))  # type: ignore[arg-type]
    assert records.write(0, FIRST, 0, 0) is LogWriteOutcome.UNKNOWN
    assert records.replace_unowned(0, FIRST, 0) is LogWriteOutcome.UNKNOWN


def test_many_logs_are_read_by_container(records: ContainerLogRecords, container: int):
    records.write(container, FIRST, 0, 0)
    missing = [next(NUMBERS) for _ in range(120)]
    assert records.read_many([*missing, container]) == {
        **dict.fromkeys(missing, (None, 0)),
        container: (FIRST, 1),
    }


def test_all_logs_are_found(records: ContainerLogRecords, container: int):
    records.write(container, FIRST, 0, 0)
    logs = records.all()
    assert logs[container] == (FIRST, 1)
    assert next(NUMBERS) not in logs


def test_logs_are_found_on_several_pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.metadata.container_log.LOGS_PER_QUERY", 2)
    store = MemoryMetadataStore()
    records = ContainerLogRecords(store)
    for number in range(5):
        records.replace_unowned(number, FIRST, 0)
    store.write(Create(Key("cluster", "map"), {}), Create(Key("cluster", "kinds"), {}))
    assert records.all() == dict.fromkeys(range(5), (FIRST, 1))
    store.write(Create(Key("cluster", "log/x"), {}))
    with pytest.raises(CorruptError):
        records.all()


def test_an_operator_needs_no_claim(metadata_store: MetadataStore, records: ContainerLogRecords, container: int):
    records.write(container, FIRST, 0, 0)
    metadata_store.write(write_claim(container, CLAIM, 0))
    empty: ContainerLog = emptied(FIRST, 9)
    here, gone = Key("cluster", f"store/{container}"), Check(Key("cluster", f"store/{container}"), 3)
    metadata_store.write(Create(here, {}))
    assert records.replace_unowned(container, empty, 0) is LogWriteOutcome.CONFLICT
    assert records.replace_unowned(container, empty, 1, [gone]) is LogWriteOutcome.CONFLICT
    assert records.replace_unowned(container, empty, 1, [Check(here, 0)]) is LogWriteOutcome.WRITTEN
    assert records.read(container) == (empty, 2)
