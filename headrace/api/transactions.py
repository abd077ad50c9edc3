"""Transactions and commit sets.

Times are milliseconds since the Unix epoch. A transaction id is 32 lower-case hex digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.transactions import Transaction, TransactionState, parse_transaction_id, transaction_text


@dataclass(frozen=True, slots=True)
class TransactionSegmentView:
    """A stream segment, and the segment that holds a transaction's events for it until the commit.

    `segment_id` and `name` are those of the stream segment; events are appended to `transaction_segment`.
    """

    segment_id: int
    name: str
    transaction_segment: str
    key_range: KeyRange

    @classmethod
    def of(cls, segment: StreamSegment, name: str, transaction_segment: str) -> TransactionSegmentView:
        return cls(segment.segment_id, name, transaction_segment, segment.key_range)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TransactionSegmentView:
        return cls(
            int(document["segmentId"]),
            str(document["name"]),
            str(document["transactionSegment"]),
            KeyRange(float(document["low"]), float(document["high"])),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "segmentId": self.segment_id,
            "name": self.name,
            "transactionSegment": self.transaction_segment,
            "low": self.key_range.low,
            "high": self.key_range.high,
        }


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction.

    `segments` cover the key space exactly once. Lists, and answers to a change of the state, leave them out.
    """

    transaction: str
    state: TransactionState
    creation_time_ms: int
    lease_end_ms: int
    completion_time_ms: int | None
    segments: tuple[TransactionSegmentView, ...] = ()

    @property
    def transaction_id(self) -> int:
        """The id as a number."""
        return parse_transaction_id(self.transaction)

    @classmethod
    def of(cls, transaction: Transaction, segments: tuple[TransactionSegmentView, ...] = ()) -> TransactionView:
        return cls(
            transaction_text(transaction.transaction_id),
            transaction.state,
            transaction.created_ms,
            transaction.lease_end_ms,
            transaction.completed_ms,
            segments,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TransactionView:
        completed = document["completionTime"]
        return cls(
            str(document["transaction"]),
            TransactionState(document["state"]),
            int(document["creationTime"]),
            int(document["leaseEnd"]),
            None if completed is None else int(completed),
            tuple(map(TransactionSegmentView.from_json, document.get("segments", ()))),
        )

    def to_json(self) -> dict[str, Any]:
        return {**self.state_json(), "segments": [one.to_json() for one in self.segments]}

    def state_json(self) -> dict[str, Any]:
        """The JSON without the segments."""
        return {
            "transaction": self.transaction,
            "state": self.state.value,
            "creationTime": self.creation_time_ms,
            "leaseEnd": self.lease_end_ms,
            "completionTime": self.completion_time_ms,
        }


class CompletedTransaction(NamedTuple):
    """An entry of the list of completed transactions."""

    transaction: str
    state: TransactionState

    @property
    def transaction_id(self) -> int:
        """The id as a number."""
        return parse_transaction_id(self.transaction)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CompletedTransaction:
        return cls(str(document["transaction"]), TransactionState(document["state"]))

    def to_json(self) -> dict[str, Any]:
        return {"transaction": self.transaction, "state": self.state.value}


@dataclass(frozen=True, slots=True)
class CommitSetView:
    """Transactions that were marked for commit together, under `key` and at `time_ms`.

    `new` is true if this request marked them, and false if an earlier request with the same key did.
    """

    key: str
    transactions: tuple[str, ...]
    time_ms: int
    new: bool

    @classmethod
    def of(cls, key: str, transaction_ids: tuple[int, ...], marked_ms: int, *, new: bool) -> CommitSetView:
        return cls(key, tuple(map(transaction_text, transaction_ids)), marked_ms, new)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CommitSetView:
        transactions = tuple(map(str, document["transactions"]))
        return cls(str(document["key"]), transactions, int(document["time"]), bool(document["new"]))

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "transactions": list(self.transactions), "time": self.time_ms, "new": self.new}
