"""The record of a container's log: its members and where each of its ledgers begins.

The version of a record that does not exist is 0, and the first version is 1. An owner writes the record under its
version and under the epoch of the owner's claim, so a former owner can change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from headrace.metadata.cluster_records import check_claim, claim_key, read_snapshot_pointer, snapshot_key
from headrace.metadata.record_layout import decoded, versioned
from headrace.model.container_logs import (
    COPIES,
    LEDGERS_MAX,
    NO_COPIES,
    REPLICA_ID_BYTES,
    ContainerLog,
    LedgerStart,
    LogState,
    ReplicaId,
    check_transition,
)
from headrace.model.containers import CLUSTER_PARTITION
from headrace.model.errors import CorruptError, ThrottledError, UnavailableError
from headrace.model.record_fields import record_field
from headrace.ports.metadata_store import (
    READS_PER_BATCH_MAX,
    Body,
    Create,
    ItemRefusedError,
    Key,
    MetadataStore,
    Record,
    Replace,
    Write,
    WriteConflictError,
)

_log = logging.getLogger(__name__)

NO_VERSION: Final = 0
"""The version of the record of a container whose log has no record yet."""

LOGS_FIRST: Final = "log/"
LOGS_LAST: Final = "log0"
"""The first sort key after all log records."""

LOGS_PER_QUERY: Final = 1_000

_CLAIM_CHECK: Final = 1  # the index in the transaction


class LogWriteOutcome(Enum):
    """CONFLICT: the record has another version. CLAIM_LOST: the claim has another epoch. Neither wrote anything.

    UNKNOWN: the metadata store did not answer or refused, and the record may have been written.
    """

    WRITTEN = "written"
    CONFLICT = "conflict"
    CLAIM_LOST = "claim lost"
    UNKNOWN = "unknown"


class StoredLog(NamedTuple):
    """The log as it was read, None without a record, and the version of its record."""

    log: ContainerLog | None
    version: int


def container_log_sort(container: int) -> str:
    """The sort key of the record of a container's log in CLUSTER_PARTITION."""
    return f"{LOGS_FIRST}{container:04d}"


def container_log_key(container: int) -> Key:
    return Key(CLUSTER_PARTITION, container_log_sort(container))


def container_log_body(log: ContainerLog) -> dict[str, Any]:
    """Members as hexadecimal digits, ledgers as [epoch, first entry]. `continued` only after an accepted loss."""
    continued = {} if log.continued_at is None else {"continued": list(log.continued_at)}
    return versioned(
        copies=log.copies,
        state=str(log.state),
        members=[member.hex() for member in log.members],
        ledgers=[list(ledger) for ledger in log.ledgers],
        truncated=log.truncated_before,
        next=log.next_entry,
        **continued,
    )


def decode_container_log(body: Body) -> ContainerLog:
    """The log stored in a record body; raises CorruptError if the body is not a possible log."""
    return decoded("container log", body, _decoded)


def read_container_log(record: Record) -> ContainerLog:
    """The log in a record; raises CorruptError if it is not one."""
    return decode_container_log(record.body)


def write_container_log(container: int, log: ContainerLog, version: int) -> Create | Replace:
    """The write that replaces the record of this version, or creates it (NO_VERSION)."""
    key, body = container_log_key(container), container_log_body(log)
    return Create(key, body, NO_VERSION + 1) if version == NO_VERSION else Replace(key, body, version)


class ContainerLogRecords:
    """Reads and conditional writes of the records of container logs."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self, container: int) -> StoredLog:
        """The record and its version; one strongly consistent read.

        Raises:
            CorruptError: the record is not that of a log.
            ThrottledError, UnavailableError: the metadata store does not answer.
        """
        return _stored(self._store.get(container_log_key(container)))

    def snapshot_epoch(self, container: int) -> int:
        """The epoch of the owner that wrote the snapshot in tier 2; 0 without one. Raises as `read` does."""
        record = self._store.get(snapshot_key(container))
        return 0 if record is None else read_snapshot_pointer(record).epoch

    def read_many(self, containers: Sequence[int]) -> dict[int, StoredLog]:
        """The record of each container; one batch read for 100 containers. Raises as `read` does."""
        logs: dict[int, StoredLog] = {}
        for first in range(0, len(containers), READS_PER_BATCH_MAX):
            batch = containers[first : first + READS_PER_BATCH_MAX]
            records = self._store.get_many([container_log_key(each) for each in batch])
            logs.update(zip(batch, map(_stored, records), strict=True))
        return logs

    def all(self) -> dict[int, StoredLog]:
        """The records of all containers that have one; one query for about 3,000 containers. Raises as `read` does."""
        logs: dict[int, StoredLog] = {}
        first: str | None = LOGS_FIRST
        while first is not None:
            page = self._store.query(CLUSTER_PARTITION, first=first, last=LOGS_LAST, limit=LOGS_PER_QUERY)
            logs.update((_container(record.key), _stored(record)) for record in page.records)
            first = None if page.next_after is None else page.next_after + "\0"
        return logs

    def write(
        self, container: int, log: ContainerLog, version: int, claim_epoch: int, known: StoredLog | None = None
    ) -> LogWriteOutcome:
        """Replace the record of this version by `log`, if the claim of the container has this epoch.

        Costs one transaction, and one batch read unless `known` is the record of this version: a version never names
        two contents. After WRITTEN the record has the next version. A repeated write whose first attempt took effect
        is a CONFLICT: the caller reads the record.

        Raises:
            CorruptError: the present record is not that of a log.
            IllegalStateError: an owner of this epoch must not replace the present record by this log.
        """
        try:
            if known is None or known.version != version:
                record, claim = self._store.get_many([container_log_key(container), claim_key(container)])
                if claim is None or claim.version != claim_epoch:
                    return LogWriteOutcome.CLAIM_LOST
                known = _stored(record)
                if known.version != version:
                    return LogWriteOutcome.CONFLICT
            check_transition(known.log, log, claim_epoch)
            self._store.write(write_container_log(container, log, version), check_claim(container, claim_epoch))
        except WriteConflictError as conflict:
            return LogWriteOutcome.CLAIM_LOST if _CLAIM_CHECK in conflict.failed else LogWriteOutcome.CONFLICT
        except (ThrottledError, UnavailableError, ItemRefusedError) as error:
            _log.warning("event=log_record_not_written container=%d version=%d error=%r", container, version, error)
            return LogWriteOutcome.UNKNOWN
        return LogWriteOutcome.WRITTEN

    def replace_unowned(
        self, container: int, log: ContainerLog, version: int, checks: Iterable[Write] = ()
    ) -> LogWriteOutcome:
        """Replace the record of this version on behalf of an operator, without a claim, if the checks hold.

        The owner notices it at its next write, which is a conflict. A failed check is a CONFLICT, too.
        """
        try:
            self._store.write(write_container_log(container, log, version), *checks)
        except WriteConflictError:
            return LogWriteOutcome.CONFLICT
        except (ThrottledError, UnavailableError):
            return LogWriteOutcome.UNKNOWN
        return LogWriteOutcome.WRITTEN


def _container(key: Key) -> int:
    """The container of a log record; raises CorruptError if the key names none."""
    number = key.sort.removeprefix(LOGS_FIRST)
    if not (number.isascii() and number.isdecimal()):
        raise CorruptError(f"{key} is not the key of a container's log")
    return int(number)


def _stored(record: Record | None) -> StoredLog:
    return (
        StoredLog(None, NO_VERSION) if record is None else StoredLog(decode_container_log(record.body), record.version)
    )


def _decoded(body: Body) -> ContainerLog:
    copies, state = record_field(body, "copies", int), LogState(record_field(body, "state", str))
    members = tuple(_replica_id(each) for each in _rows(body, "members", COPIES))
    ledgers = tuple(_ledger(each) for each in _rows(body, "ledgers", LEDGERS_MAX))
    next_entry = None if body["next"] is None else record_field(body, "next", int)
    continued_at = _ledger(body["continued"]) if "continued" in body else None
    truncated_before = record_field(body, "truncated", int)
    log = ContainerLog(copies, state, members, ledgers, truncated_before, next_entry, continued_at)
    _check(log)
    return log


def _check(log: ContainerLog) -> None:
    """Raises CorruptError: no owner and no operator writes such a log.

    A log of three copies may have one member after an operator has accepted the loss of the others.
    """
    _require(NO_COPIES <= log.copies <= COPIES, f"{log.copies} copies")
    _require(len(set(log.members)) == len(log.members), "a member twice")
    if log.state is not LogState.OPEN:
        _require(not log.members and not log.ledgers, "members or ledgers without being open")
        _require(log.next_entry is not None, "no next entry")
        return
    _require(log.next_entry is None, "a next entry although it is open")
    _require(min(1, log.copies) <= len(log.members) <= log.copies, f"{len(log.members)} members of {log.copies} copies")
    _require(bool(log.ledgers), "no ledger")
    for ledger, following in zip(log.ledgers, log.ledgers[1:], strict=False):
        _require(ledger.epoch < following.epoch and ledger.first <= following.first, "ledgers that are not in order")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise CorruptError(f"the record of a container's log has {problem}")


def _rows(body: Mapping[str, Any], name: str, count_max: int) -> list[Any]:
    rows = body[name]
    if not isinstance(rows, list) or len(rows) > count_max:
        raise CorruptError(f"a record of a log needs at most {count_max} {name}")
    return rows


def _replica_id(text: Any) -> ReplicaId:
    """The id written as hexadecimal digits; raises CorruptError."""
    identifier = bytes.fromhex(text) if isinstance(text, str) else b""
    if len(identifier) != REPLICA_ID_BYTES or identifier.hex() != text:
        raise CorruptError(f"{text!r} is not a replica id of {2 * REPLICA_ID_BYTES} hexadecimal digits")
    return ReplicaId(identifier)


def _ledger(row: Any) -> LedgerStart:
    if not isinstance(row, list) or len(row) != 2:
        raise CorruptError(f"{row!r} is not [epoch, first entry]")
    fields = dict(zip(("epoch", "first"), row, strict=True))
    return LedgerStart(record_field(fields, "epoch", int), record_field(fields, "first", int))
