"""Transactions on a stream: ids, leases, states, and the action that is due for a transaction without a client.

OPEN -> COMMITTING -> COMMITTED, or OPEN -> ABORTING -> ABORTED. The functions are pure: each returns the transaction
after a change, or raises if its state does not allow the change. Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError
from headrace.model.names import segment_name, transaction_segment_name
from headrace.model.segments import StreamSegment, segment_epoch, segment_id

# Rolling transactions: the commit of a transaction whose epoch is no longer the active one.
#
# The transaction's segments belong to segments that a scale has sealed. So the commit makes a duplicate of the
# transaction's epoch and fills its segments with the transaction's events. It seals the active segments with the
# duplicate as their successor, and then makes a duplicate of the epoch that was active. A duplicate has the numbers
# and key ranges of the original epoch, and segment ids with its own epoch. For readers these are two ordinary changes
# of the epoch.
#
# A commit into the active epoch rolls in the same way if a client has sealed a segment of it. Both duplicates are then
# of the active epoch.


@dataclass(frozen=True, slots=True)
class Roll:
    """`passed` duplicates the epoch of the transactions. `following` duplicates the active epoch and succeeds it."""

    passed: Epoch
    following: Epoch


def must_roll(active: Epoch, reference_epoch: int) -> bool:
    """Whether transactions of that reference epoch cannot be merged into the active segments."""
    return active.reference_epoch != reference_epoch


def roll_of(active: Epoch, of_transactions: Epoch, now_ms: int) -> Roll:
    """The two epochs that follow `active`; the same arguments give the same epochs."""
    passed_ms = max(now_ms, active.creation_time_ms + 1)
    passed = _duplicate(of_transactions, active.number + 1, passed_ms, active)
    return Roll(passed, _duplicate(active, active.number + 2, passed_ms + 1, passed))


def scale_after_roll(planned: Epoch, roll: Roll) -> Epoch:
    """The epoch of a scale that was planned for the active epoch, planned for the one that follows the roll instead."""
    numbers = {each.number for each in planned.replaced}
    sealed = [segment.segment_id for segment in roll.following.segments if segment.number in numbers]
    ranges = [segment.key_range for segment in planned.created]
    return scaled_epoch(roll.following, sealed, ranges, planned.creation_time_ms)


def _duplicate(original: Epoch, number: int, creation_time_ms: int, before: Epoch) -> Epoch:
    segments = tuple(
        StreamSegment(segment_id(number, segment.number), segment.key_range) for segment in original.segments
    )
    return Epoch(number, creation_time_ms, segments, before.segments, original.reference_epoch)


# Labels of transactions: a text that a writer gives a transaction, to find it again without its id.
#
# Labels whose transactions belong to a numbered epoch have the form `<prefix>/<epoch>` or
# `<prefix>/<epoch>/<anything>`.

LABEL_CHARACTERS_MAX = 256
LABEL_ALPHABET = "the letters A-Z and a-z, the digits, '.', ':', '_', '/' and '-'"
_LABEL = re.compile(r"[A-Za-z0-9._:/\-]{1,256}")
_EPOCH = re.compile(r"(0|[1-9][0-9]*)(/.*)?")


def check_label(label: str, what: str = "label") -> str:
    """A label, or the beginning of one. Raises InvalidRequestError, code "invalid_label"."""
    if not _LABEL.fullmatch(label):
        raise InvalidRequestError(
            f"{label[:100]!a} cannot be the {what} of a transaction: use 1 to {LABEL_CHARACTERS_MAX} of "
            f"{LABEL_ALPHABET}",
            code="invalid_label",
        )
    return label


def has_prefix(label: str | None, prefix: str) -> bool:
    return label is not None and label.startswith(prefix)


def labelled_epoch(label: str | None, prefix: str) -> int | None:
    """The epoch in a label of the form `<prefix>/<epoch>` or `<prefix>/<epoch>/...`, None for any other label."""
    if label is None or not label.startswith(f"{prefix}/"):
        return None
    match = _EPOCH.fullmatch(label, len(prefix) + 1)
    return int(match[1]) if match else None


LEASE_MS_MIN = 10_000
LEASE_MS_MAX = 24 * 3600 * 1000
LEASES_PER_REQUEST_MAX = 100
"""How many transactions one request renews at most: each costs a write, one after the other."""

LEASE_GRACE_MS = 30_000
"""The time between the end of a lease and the abort of its transaction. Clients ping once per lease, often late."""

EXECUTION_MS_MAX = 24 * 3600 * 1000
"""The longest time from the creation of a transaction to the end of its last lease."""

CHECK_EVERY_MS = 60_000
"""The interval between two checks of an open transaction. A mark whose message was lost waits at most this long."""

COMPLETED_LISTED_MAX = 500
WRITER_CHARACTERS_MAX = 250

ID_BITS = 128
RANDOM_BITS = 94
"""Random bits of an id, in addition to the epoch. Bit 63 of each half is clear: clients use the halves as signed
numbers."""

_HALF_BITS = 64
_LOW_RANDOM_BITS = 63
_EPOCH_SHIFT = _HALF_BITS + 32
_ID_TEXT = re.compile(r"[0-9a-f]{32}")


class TransactionState(StrEnum):
    """The state of a transaction. The API and the stored records contain these values."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.COMMITTING, TransactionState.COMMITTED)

    @property
    def is_abort(self) -> bool:
        return self in (TransactionState.ABORTING, TransactionState.ABORTED)


@dataclass(frozen=True, slots=True)
class WriterTime:
    """A writer's time that is noted with a commit: the time of its events so far, in the application's unit."""

    writer: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """The position of a transaction among the commits of a stream: by `number`, then by `group`, then by `index`.

    `number` is higher than that of every mark that was waiting. Concurrent marks may share it. `group`, the id of the
    first transaction of a mark, and the `index` in the mark make the position unique.
    """

    number: int
    group: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction. `order` is its position among the stream's commits.

    `position` has the segments and offsets before which its events are; a commit with a `writer_time` keeps it.
    `completed_ms` is the time of the commit or abort. `first_segment_number` identifies the incarnation of the stream.
    `commit_set` is the id of the commit set that has prepared the transaction:
    then it is COMMITTING and has no `order` of its own. `created_segments` are the numbers of the segments that were
    created on demand, None if all were created at the beginning. The `unconfirmed_segments` among them have been noted,
    but perhaps not created: no request for them has succeeded, so they have no events. `requested_again` are those of
    them for which a second request was made: one of the two may create them after a commit has merged them.
    """

    transaction_id: int
    state: TransactionState
    created_ms: int
    lease_end_ms: int
    first_segment_number: int
    order: CommitOrder | None = None
    writer_time: WriterTime | None = None
    completed_ms: int | None = None
    position: tuple[tuple[int, int], ...] = ()
    label: str | None = None
    commit_set: str | None = None
    created_segments: frozenset[int] | None = None
    unconfirmed_segments: frozenset[int] = frozenset()
    requested_again: frozenset[int] = frozenset()

    @property
    def reference_epoch(self) -> int:
        """The epoch whose segments the transaction's segments belong to."""
        return reference_epoch_of(self.transaction_id)


class Due(StrEnum):
    """The action that is due for a transaction without a request of its client."""

    WAIT = "wait"
    EXPIRE = "expire"
    RESEND_COMMIT = "resend commit"
    RESEND_ABORT = "resend abort"
    COLLECT = "collect"


def transaction_id_of(reference_epoch: int, randomness: int) -> int:
    """An id that contains the epoch. `randomness` has RANDOM_BITS bits."""
    high, low = randomness >> _LOW_RANDOM_BITS, randomness & ((1 << _LOW_RANDOM_BITS) - 1)
    return reference_epoch << _EPOCH_SHIFT | high << _HALF_BITS | low


def reference_epoch_of(transaction_id: int) -> int:
    return segment_epoch(transaction_id >> _HALF_BITS)


def transaction_text(transaction_id: int) -> str:
    """32 lower-case hex digits, as in segment names."""
    return f"{transaction_id:032x}"


def parse_transaction_id(text: str) -> int:
    """Raises InvalidRequestError, code "invalid_transaction_id"."""
    if not _ID_TEXT.fullmatch(text):
        raise InvalidRequestError(
            f"{text[:100]!a} is not a transaction id: expected 32 lower-case hex digits", code="invalid_transaction_id"
        )
    return int(text, 16)


def segment_of_transaction(scope: str, stream: str, segment: StreamSegment, transaction_id: int) -> str:
    """The name of the segment that holds the transaction's events for `segment`, one of its reference epoch."""
    return transaction_segment_name(segment_name(scope, stream, segment.segment_id), transaction_id)


def check_lease(lease_ms: int, lease_ms_max: int = LEASE_MS_MAX) -> int:
    """Raises InvalidRequestError, code "lease_too_small" or "lease_too_large"."""
    if not LEASE_MS_MIN <= lease_ms <= lease_ms_max:
        raise InvalidRequestError(
            f"a lease of {lease_ms} ms is not allowed: choose {LEASE_MS_MIN} to {lease_ms_max} ms",
            details={"lease_ms": lease_ms, "lease_ms_min": LEASE_MS_MIN, "lease_ms_max": lease_ms_max},
            code="lease_too_small" if lease_ms < LEASE_MS_MIN else "lease_too_large",
        )
    return lease_ms


def new_transaction(
    transaction_id: int,
    lease_ms: int,
    now_ms: int,
    first_segment_number: int,
    *,
    label: str | None = None,
    on_demand: bool = False,
) -> Transaction:
    """Raises as `check_lease` and `check_label` do."""
    lease_end_ms = now_ms + check_lease(lease_ms)
    return Transaction(
        transaction_id,
        TransactionState.OPEN,
        now_ms,
        lease_end_ms,
        first_segment_number,
        label=None if label is None else check_label(label),
        created_segments=frozenset() if on_demand else None,
    )


def is_of_former_incarnation(first_segment_number: int, present: int | None) -> bool:
    """Whether work belongs to an incarnation of its stream that no longer exists.

    `present` is the first segment number of the stream, None if it does not exist. It must be read after the work was
    read: the numbers of incarnations grow, so the result is False for a stream that was read in its former incarnation.
    """
    return present is None or first_segment_number < present


def pinged(transaction: Transaction, lease_ms: int, now_ms: int) -> Transaction:
    """The transaction with a lease that begins now. A renewal never shortens a lease.

    Raises:
        InvalidRequestError: as `check_lease` does.
        IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
    """
    check_lease(lease_ms)
    check_open(transaction)
    if now_ms + lease_ms > transaction.created_ms + EXECUTION_MS_MAX:
        raise IllegalStateError(
            f"transaction {transaction_text(transaction.transaction_id)} may not last longer than "
            f"{EXECUTION_MS_MAX // 1000} s: commit or abort it",
            details={"execution_ms_max": EXECUTION_MS_MAX},
            code="max_execution_time_exceeded",
        )
    return replace(transaction, lease_end_ms=max(transaction.lease_end_ms, now_ms + lease_ms))


def check_open(transaction: Transaction) -> Transaction:
    """Raises IllegalStateError, code "transaction_committed" or "transaction_aborted"."""
    if transaction.state.is_commit:
        raise already_committed(transaction)
    if transaction.state.is_abort:
        raise already_aborted(transaction)
    return transaction


def with_segments(transaction: Transaction, numbers: Iterable[int]) -> Transaction:
    """An open transaction before more segments of it are created on demand; raises as `check_open`."""
    created = check_open(transaction).created_segments
    if created is None:
        return transaction
    wanted = frozenset(numbers)
    again = transaction.requested_again.union(wanted & transaction.unconfirmed_segments)
    unconfirmed = transaction.unconfirmed_segments.union(wanted - created)
    return replace(
        transaction, created_segments=created | wanted, unconfirmed_segments=unconfirmed, requested_again=again
    )


def with_confirmed(transaction: Transaction, numbers: Iterable[int]) -> Transaction:
    """An open transaction after segments of it were created on demand; raises as `check_open`."""
    left = check_open(transaction).unconfirmed_segments.difference(numbers)
    return replace(transaction, unconfirmed_segments=left)


def segments_created(transaction: Transaction, segments: Iterable[StreamSegment]) -> list[StreamSegment]:
    """Those of the segments of the transaction's epoch for which it may have created a segment."""
    created = transaction.created_segments
    return [segment for segment in segments if created is None or segment.number in created]


def segments_with_events(transaction: Transaction, segments: Iterable[StreamSegment]) -> list[StreamSegment]:
    """Those of the segments of the transaction's epoch whose events are lost if its own segment does not exist."""
    created = segments_created(transaction, segments)
    return [each for each in created if each.number not in transaction.unconfirmed_segments]


def numbers_created_late(transaction: Transaction) -> frozenset[int] | None:
    """The numbers of segments that a request may create after an abort has deleted or a commit merged them.

    None means all segments of the epoch. A segment that was requested once and is confirmed was created before the
    commit.
    """
    if transaction.state is TransactionState.ABORTED:
        return transaction.created_segments
    return transaction.unconfirmed_segments | transaction.requested_again


def marked_for_commit(
    transaction: Transaction, order: CommitOrder, writer_time: WriterTime | None = None
) -> Transaction:
    """An open transaction after it was marked for commit in this order.

    Raises:
        IllegalStateError: code "transaction_committed" or "transaction_aborted".
    """
    check_open(transaction)
    return replace(transaction, state=TransactionState.COMMITTING, order=order, writer_time=writer_time)


def prepared(transaction: Transaction, commit_set: str) -> Transaction:
    """An open transaction as a member of a commit set that is not decided; raises as `check_open`.

    Only the set ends this state: it does not expire, and cannot be aborted or committed by itself.
    """
    return replace(check_open(transaction), state=TransactionState.COMMITTING, commit_set=commit_set)


def released(transaction: Transaction) -> Transaction:
    """A member of a commit set that was refused: open, as before."""
    return replace(transaction, state=TransactionState.OPEN, commit_set=None)


def marked_together(transaction: Transaction) -> str | int:
    """What the transactions have in common that were marked for commit together with this one."""
    return transaction.transaction_id if transaction.commit_set is None else transaction.commit_set


def marked_for_abort(transaction: Transaction) -> Transaction:
    """The transaction after it was marked for abort; raises as `marked_for_commit` does."""
    check_open(transaction)
    return replace(transaction, state=TransactionState.ABORTING)


def committed(transaction: Transaction, position: tuple[tuple[int, int], ...], now_ms: int) -> Transaction:
    """The transaction after its events were merged into the stream."""
    kept = position if transaction.writer_time is not None else ()
    return replace(transaction, state=TransactionState.COMMITTED, completed_ms=now_ms, position=kept)


def aborted(transaction: Transaction, now_ms: int) -> Transaction:
    """The transaction after its segments were deleted."""
    return replace(transaction, state=TransactionState.ABORTED, completed_ms=now_ms)


def due(transaction: Transaction, now_ms: int, kept_ms: int = COMPLETED_TRANSACTIONS_KEPT_MS) -> Due:
    """The action for a transaction whose check is due. A completed one is kept for `kept_ms`."""
    if transaction.completed_ms is not None:
        return Due.COLLECT if now_ms >= transaction.completed_ms + kept_ms else Due.WAIT
    if transaction.state is TransactionState.COMMITTING:
        return Due.RESEND_COMMIT
    if transaction.state is TransactionState.ABORTING:
        return Due.RESEND_ABORT
    return Due.EXPIRE if now_ms > transaction.lease_end_ms + LEASE_GRACE_MS else Due.WAIT


def next_check_ms(transaction: Transaction, now_ms: int, kept_ms: int = COMPLETED_TRANSACTIONS_KEPT_MS) -> int:
    """The time of the next check. After a ping it is earlier than needed, after a mark at most CHECK_EVERY_MS late."""
    if transaction.completed_ms is not None:
        return transaction.completed_ms + kept_ms
    if transaction.state is not TransactionState.OPEN:
        return now_ms + CHECK_EVERY_MS
    return min(transaction.lease_end_ms + LEASE_GRACE_MS + 1, now_ms + CHECK_EVERY_MS)


def no_such_transaction(scope: str, stream: str, transaction_id: int) -> NotFoundError:
    text = transaction_text(transaction_id)
    return NotFoundError(
        f"stream {scope}/{stream} has no transaction {text}: it never existed, or its record has expired",
        details={"scope": scope, "stream": stream, "transaction": text},
        code="transaction_not_found",
    )


def already_committed(transaction: Transaction) -> IllegalStateError:
    text = transaction_text(transaction.transaction_id)
    return IllegalStateError(
        f"transaction {text} is {transaction.state}: it accepts no more events and cannot be aborted",
        details={"transaction": text, "state": str(transaction.state)},
        code="transaction_committed",
    )


def already_aborted(transaction: Transaction) -> IllegalStateError:
    text = transaction_text(transaction.transaction_id)
    return IllegalStateError(
        f"transaction {text} is {transaction.state}, by request or because its lease ran out: write its events again",
        details={"transaction": text, "state": str(transaction.state)},
        code="transaction_aborted",
    )
