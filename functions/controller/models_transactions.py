"""JSON of the transaction routes. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.model.errors import InvalidRequestError
from headrace.model.transactions import (
    COMMIT_SET_KEY_CHARACTERS_MAX,
    COMMIT_SET_TRANSACTIONS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    WriterTime,
    parse_transaction_id,
)
from headrace.model.writer_marks import TIME_MAX, TIME_MIN, check_writer_name

TransactionStateName = Literal["OPEN", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED"]
TRANSACTION_ID_CHARACTERS = 32
_LEASE = Field(description=f"Milliseconds, {LEASE_MS_MIN} to {LEASE_MS_MAX}")


class LeaseRequest(WireModel):
    lease: int = _LEASE


class TransactionSegmentModel(WireModel):
    segmentId: int
    name: str = Field(description="The segment that the events are for")
    transactionSegment: str = Field(description="The segment that they are written to")
    low: float
    high: float


class TransactionModel(WireModel):
    transaction: str = Field(description="32 hex digits")
    state: TransactionStateName
    creationTime: int
    leaseEnd: int
    completionTime: int | None


class NewTransaction(TransactionModel):
    segments: list[TransactionSegmentModel]


class TransactionList(WireModel):
    transactions: list[TransactionModel]
    continuationToken: str | None


class CompletedEntry(WireModel):
    transaction: str
    state: TransactionStateName


class CompletedList(WireModel):
    completed: list[CompletedEntry] = Field(description="The newest first")


class TransactionStateRequest(WireModel):
    state: Literal["COMMITTING", "ABORTING"]
    writer: str | None = Field(default=None, description="With `time`: whose time this commit tells")
    time: int | None = Field(default=None, ge=TIME_MIN, le=TIME_MAX, description="No older event of `writer` follows")

    def writer_time(self) -> WriterTime | None:
        """Raises InvalidRequestError if only one of writer and time is given, or any of them with an abort."""
        if self.writer is None and self.time is None:
            return None
        if self.writer is None or self.time is None or self.state == "ABORTING":
            raise InvalidRequestError("give both writer and time with a commit, or neither; an abort takes neither")
        return WriterTime(check_writer_name(self.writer), self.time)


class CommitSetRequest(WireModel):
    key: str = Field(min_length=1, max_length=COMMIT_SET_KEY_CHARACTERS_MAX)
    transactions: list[str] = Field(min_length=1, max_length=COMMIT_SET_TRANSACTIONS_MAX)

    def transaction_ids(self) -> list[int]:
        return [parse_transaction_id(one) for one in self.transactions]


class CommitSetModel(WireModel):
    key: str
    transactions: list[str]
    time: int = Field(description="When they were marked for commit")
    new: bool = Field(description="Marked by this very request, and not by an earlier one with the key")
