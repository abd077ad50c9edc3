"""Transactions, their labels, and commit sets.

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
    If the segments are created `on_demand`, a writer must ask for each one before it appends to it.
    """

    transaction: str
    state: TransactionState
    creation_time_ms: int
    lease_end_ms: int
    completion_time_ms: int | None
    segments: tuple[TransactionSegmentView, ...] = ()
    label: str | None = None
    on_demand: bool = False

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
            transaction.label,
            transaction.created_segments is not None,
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
            _optional_text(document.get("label")),
            bool(document.get("onDemand", False)),
        )

    def to_json(self) -> dict[str, Any]:
        segments = [one.to_json() for one in self.segments]
        return {**self.state_json(), "segments": segments, "onDemand": self.on_demand}

    def state_json(self) -> dict[str, Any]:
        """The JSON without the segments."""
        return {
            "transaction": self.transaction,
            "state": self.state.value,
            "creationTime": self.creation_time_ms,
            "leaseEnd": self.lease_end_ms,
            "completionTime": self.completion_time_ms,
            "label": self.label,
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
    """The answer to a commit of a set: the last epoch of `writer` that was committed, and when.

    `new` is true if this request committed it, so that it is the epoch of the request. It is false if this epoch or a
    later one was committed before.
    """

    writer: str
    epoch: int
    time_ms: int
    new: bool

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CommitSetView:
        epoch, time_ms = int(document["epoch"]), int(document["time"])
        return cls(str(document["writer"]), epoch, time_ms, bool(document["new"]))

    def to_json(self) -> dict[str, Any]:
        return {"writer": self.writer, "epoch": self.epoch, "time": self.time_ms, "new": self.new}


@dataclass(frozen=True, slots=True)
class CommittedEpochView:
    """The last epoch of a writer that was committed, and when; None for a writer without one."""

    writer: str
    epoch: int | None
    time_ms: int | None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CommittedEpochView:
        epoch, time_ms = document["epoch"], document["time"]
        return cls(
            str(document["writer"]),
            None if epoch is None else int(epoch),
            None if time_ms is None else int(time_ms),
        )

    def to_json(self) -> dict[str, Any]:
        return {"writer": self.writer, "epoch": self.epoch, "time": self.time_ms}


@dataclass(frozen=True, slots=True)
class LabelledAborts:
    """How many open transactions a request marked for abort by their labels, and where the next one continues."""

    aborted: int
    next_after: str | None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LabelledAborts:
        return cls(int(document["aborted"]), _optional_text(document["continuationToken"]))

    def to_json(self) -> dict[str, Any]:
        return {"aborted": self.aborted, "continuationToken": self.next_after}


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(value)
