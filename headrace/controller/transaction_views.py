"""What the transaction service answers. Times are milliseconds since the Unix epoch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.segments import StreamSegment
from headrace.model.transactions import Transaction, TransactionState


@dataclass(frozen=True, slots=True)
class TransactionSegment:
    """`segment` is the one that the events are for, `name` its name, `transaction_segment` where they are written."""

    segment: StreamSegment
    name: str
    transaction_segment: str


@dataclass(frozen=True, slots=True)
class CreatedTransaction:
    """A transaction whose segments exist: they cover the key space once."""

    transaction: Transaction
    segments: tuple[TransactionSegment, ...]


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """An entry of the list of completed transactions."""

    transaction_id: int
    state: TransactionState


@dataclass(frozen=True, slots=True)
class CommitSetView:
    """A commit set; `is_new` tells whether this very request has marked it."""

    key: str
    transactions: tuple[int, ...]
    marked_ms: int
    is_new: bool
