"""A transaction on a stream: its id, its lease, its states, and what is due when nobody speaks for it any more.

OPEN -> COMMITTING -> COMMITTED, or OPEN -> ABORTING -> ABORTED. The functions return the transaction after an event of
its life and refuse what its state forbids. Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.deployment_defaults import COMPLETED_TRANSACTIONS_KEPT_MS
from headrace.model.errors import IllegalStateError, InvalidRequestError, NotFoundError
from headrace.model.names import segment_name, transaction_segment_name
from headrace.model.segments import StreamSegment, segment_epoch
from headrace.model.streams import Stream

LEASE_MS_MIN = 10_000
LEASE_MS_MAX = 600_000
LEASE_GRACE_MS = 30_000
"""How long after the end of its lease a transaction is left alone: clients ping once per lease, and late."""

EXECUTION_MS_MAX = 24 * 3600 * 1000
"""No lease reaches further than this from a transaction's creation."""

COMMIT_SET_KEPT_MS = 7 * 24 * 3600 * 1000
"""How long a commit set's key makes its repeat a no-op. After that its transactions are unknown, and it is refused."""

CHECK_EVERY_MS = 60_000
"""How often an open transaction is looked at, and how long a mark may wait whose message was lost."""

COMMIT_SET_TRANSACTIONS_MAX = 40
COMMIT_SET_KEY_CHARACTERS_MAX = 200
COMPLETED_LISTED_MAX = 500
WRITER_CHARACTERS_MAX = 250

ID_BITS = 128
RANDOM_BITS = 94
"""Of an id, beside the epoch: bit 63 of each half is clear, since clients take the halves as signed numbers."""

_HALF_BITS = 64
_LOW_RANDOM_BITS = 63
_EPOCH_SHIFT = _HALF_BITS + 32
_ID_TEXT = re.compile(r"[0-9a-f]{32}")
_COMMIT_SET_KEY = re.compile(r"[A-Za-z0-9._:\-]{1,200}")


class TransactionState(StrEnum):
    """Where a transaction is in its life; the values are what the API shows and the records hold."""

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

    @property
    def is_completed(self) -> bool:
        return self in (TransactionState.COMMITTED, TransactionState.ABORTED)


@dataclass(frozen=True, slots=True)
class WriterTime:
    """What a writer says with a commit: all of its events up to now are at most this old (in the writer's own unit)."""

    writer: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """A place among the commits of a stream: by `number`, then by `group`, then by `index`.

    `number` is higher than that of every mark that was waiting. Marks at the same time may share it: `group`, the id of
    the first transaction of a mark, and the `index` in the mark make the place unique. A mark of the older form had a
    number of its own, and no group.
    """

    number: int
    group: int | None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """`order` is the place among the stream's commits; `position` the segments and offsets that its events lie before.

    The position is kept where the commit came with a `writer_time`. `completed_ms` is when it was committed or aborted.
    `first_segment_number` tells the incarnation of the stream, None in records from before it was noted.
    """

    transaction_id: int
    state: TransactionState
    created_ms: int
    lease_end_ms: int
    order: CommitOrder | None = None
    writer_time: WriterTime | None = None
    completed_ms: int | None = None
    position: tuple[tuple[int, int], ...] = ()
    first_segment_number: int | None = None

    @property
    def reference_epoch(self) -> int:
        """The epoch whose segments the transaction's segments belong to."""
        return reference_epoch_of(self.transaction_id)


@dataclass(frozen=True, slots=True)
class CommitRun:
    """The commit that runs on a stream: these transactions, all of one reference epoch, in this order.

    `active_epoch` is the number of the epoch that was active when it began; `started_ms` decides the times of the
    epochs that a rolling commit makes.
    """

    transactions: tuple[int, ...]
    reference_epoch: int
    active_epoch: int
    rolls: bool
    started_ms: int


@dataclass(frozen=True, slots=True)
class CommitSet:
    """Transactions that were marked for commit together, under a key of their writer's."""

    key: str
    transactions: tuple[int, ...]
    marked_ms: int


class Due(StrEnum):
    """What is to be done with a transaction of which nothing was heard."""

    WAIT = "wait"
    EXPIRE = "expire"
    RESEND_COMMIT = "resend commit"
    RESEND_ABORT = "resend abort"
    COLLECT = "collect"


def transaction_id_of(reference_epoch: int, randomness: int) -> int:
    """An id that carries the epoch; `randomness` has RANDOM_BITS bits."""
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
            f"{text[:100]!a} is no transaction id: expected 32 lower-case hex digits", code="invalid_transaction_id"
        )
    return int(text, 16)


def segment_of_transaction(scope: str, stream: str, segment: StreamSegment, transaction_id: int) -> str:
    """The name of the segment that holds the transaction's events for `segment`, one of its reference epoch."""
    return transaction_segment_name(segment_name(scope, stream, segment.segment_id), transaction_id)


def check_lease(lease_ms: int) -> int:
    """Raises InvalidRequestError, code "lease_too_small" or "lease_too_large"."""
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise InvalidRequestError(
            f"a lease of {lease_ms} ms is not allowed: choose {LEASE_MS_MIN} to {LEASE_MS_MAX} ms",
            details={"lease_ms": lease_ms, "lease_ms_min": LEASE_MS_MIN, "lease_ms_max": LEASE_MS_MAX},
            code="lease_too_small" if lease_ms < LEASE_MS_MIN else "lease_too_large",
        )
    return lease_ms


def check_commit_set_key(key: str) -> str:
    """Raises InvalidRequestError, code "invalid_commit_set"."""
    if not _COMMIT_SET_KEY.fullmatch(key):
        raise InvalidRequestError(
            f"{key[:100]!a} cannot be the key of a commit set: use 1 to {COMMIT_SET_KEY_CHARACTERS_MAX} of the letters "
            "A-Z and a-z, the digits, '.', ':', '_' and '-'",
            code="invalid_commit_set",
        )
    return key


def check_commit_set(transactions: tuple[int, ...]) -> tuple[int, ...]:
    """Raises InvalidRequestError, code "invalid_commit_set", unless these are 1 to 40 different transactions."""
    if not 1 <= len(transactions) <= COMMIT_SET_TRANSACTIONS_MAX or len(set(transactions)) != len(transactions):
        raise InvalidRequestError(
            f"a commit set has 1 to {COMMIT_SET_TRANSACTIONS_MAX} different transactions",
            details={"transactions": len(transactions), "transactions_max": COMMIT_SET_TRANSACTIONS_MAX},
            code="invalid_commit_set",
        )
    return transactions


def new_transaction(
    transaction_id: int, lease_ms: int, now_ms: int, first_segment_number: int | None = None
) -> Transaction:
    """Raises as `check_lease` does."""
    lease_end_ms = now_ms + check_lease(lease_ms)
    return Transaction(
        transaction_id, TransactionState.OPEN, now_ms, lease_end_ms, first_segment_number=first_segment_number
    )


def is_of_former_incarnation(first_segment_number: int | None, stream: Stream | None) -> bool:
    """Whether work of an incarnation belongs to none that there is, by the stream as read after the work was.

    The numbers of incarnations grow. So a stream that was read too early, in its former incarnation, condemns nothing.
    Work of which the incarnation is not known does not either.
    """
    if first_segment_number is None:
        return False
    return stream is None or first_segment_number < stream.first_segment_number


def pinged(transaction: Transaction, lease_ms: int, now_ms: int) -> Transaction:
    """The transaction with its lease renewed from now on; a lease never gets shorter.

    Raises:
        InvalidRequestError: as `check_lease` does.
        IllegalStateError: code "transaction_committed", "transaction_aborted" or "max_execution_time_exceeded".
    """
    check_lease(lease_ms)
    if transaction.state.is_commit:
        raise already_committed(transaction)
    if transaction.state.is_abort:
        raise already_aborted(transaction)
    if now_ms + lease_ms > transaction.created_ms + EXECUTION_MS_MAX:
        raise IllegalStateError(
            f"transaction {transaction_text(transaction.transaction_id)} may not last longer than "
            f"{EXECUTION_MS_MAX // 1000} s: commit or abort it",
            details={"execution_ms_max": EXECUTION_MS_MAX},
            code="max_execution_time_exceeded",
        )
    return replace(transaction, lease_end_ms=max(transaction.lease_end_ms, now_ms + lease_ms))


def marked_for_commit(
    transaction: Transaction, order: CommitOrder, writer_time: WriterTime | None = None
) -> Transaction:
    """An open transaction that is to be committed in its turn.

    Raises:
        IllegalStateError: code "transaction_committed" or "transaction_aborted".
    """
    if transaction.state.is_commit:
        raise already_committed(transaction)
    if transaction.state.is_abort:
        raise already_aborted(transaction)
    return replace(transaction, state=TransactionState.COMMITTING, order=order, writer_time=writer_time)


def marked_for_abort(transaction: Transaction) -> Transaction:
    """Raises as `marked_for_commit` does."""
    if transaction.state.is_commit:
        raise already_committed(transaction)
    if transaction.state.is_abort:
        raise already_aborted(transaction)
    return replace(transaction, state=TransactionState.ABORTING)


def committed(transaction: Transaction, position: tuple[tuple[int, int], ...], now_ms: int) -> Transaction:
    """Its events are in the stream."""
    kept = position if transaction.writer_time is not None else ()
    return replace(transaction, state=TransactionState.COMMITTED, completed_ms=now_ms, position=kept)


def aborted(transaction: Transaction, now_ms: int) -> Transaction:
    """Its segments are gone."""
    return replace(transaction, state=TransactionState.ABORTED, completed_ms=now_ms)


def due(transaction: Transaction, now_ms: int, kept_ms: int = COMPLETED_TRANSACTIONS_KEPT_MS) -> Due:
    """What to do with a transaction when its entry among the due ones has come up; completed ones stay `kept_ms`."""
    if transaction.completed_ms is not None:
        return Due.COLLECT if now_ms >= transaction.completed_ms + kept_ms else Due.WAIT
    if transaction.state is TransactionState.COMMITTING:
        return Due.RESEND_COMMIT
    if transaction.state is TransactionState.ABORTING:
        return Due.RESEND_ABORT
    return Due.EXPIRE if now_ms > transaction.lease_end_ms + LEASE_GRACE_MS else Due.WAIT


def next_check_ms(transaction: Transaction, now_ms: int, kept_ms: int = COMPLETED_TRANSACTIONS_KEPT_MS) -> int:
    """When to look at it next. A ping in between only makes that too early, a mark at most CHECK_EVERY_MS too late."""
    if transaction.completed_ms is not None:
        return transaction.completed_ms + kept_ms
    if transaction.state is not TransactionState.OPEN:
        return now_ms + CHECK_EVERY_MS
    return min(transaction.lease_end_ms + LEASE_GRACE_MS + 1, now_ms + CHECK_EVERY_MS)


def no_such_transaction(scope: str, stream: str, transaction_id: int) -> NotFoundError:
    text = transaction_text(transaction_id)
    return NotFoundError(
        f"stream {scope}/{stream} has no transaction {text}: it never had, or has forgotten it",
        details={"scope": scope, "stream": stream, "transaction": text},
        code="transaction_not_found",
    )


def already_committed(transaction: Transaction) -> IllegalStateError:
    text = transaction_text(transaction.transaction_id)
    return IllegalStateError(
        f"transaction {text} is {transaction.state}: it takes no more events and cannot be aborted",
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
