"""JSON of the transaction routes. Times are milliseconds since 1970."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from functions.controller.parameters import WireModel
from headrace.model.commit_sets import (
    EPOCH_MAX,
    SET_STREAMS_MAX,
    SET_TRANSACTIONS_MAX,
    WRITER_CHARACTERS_MAX,
)
from headrace.model.errors import InvalidRequestError
from headrace.model.transactions import (
    LABEL_CHARACTERS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LEASES_PER_REQUEST_MAX,
    WriterTime,
    parse_transaction_id,
)
from headrace.model.writer_marks import TIME_MAX, TIME_MIN, check_writer_name

TransactionStateName = Literal["OPEN", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED"]
TRANSACTION_ID_CHARACTERS = 32
SEGMENTS_PER_REQUEST_MAX = 10_000
_LEASE = Field(description=f"Milliseconds, {LEASE_MS_MIN} to {LEASE_MS_MAX}")


class LeaseRequest(WireModel):
    lease: int = _LEASE


class TransactionRequest(LeaseRequest):
    label: str | None = Field(default=None, min_length=1, max_length=LABEL_CHARACTERS_MAX)
    segments: Literal["all", "on-demand"] = Field(
        default="all", description="Whether all segments are created now, or each one when it is requested"
    )


class TransactionSegmentsRequest(WireModel):
    segments: list[int] = Field(min_length=1, max_length=SEGMENTS_PER_REQUEST_MAX, description="Their segmentId")


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
    label: str | None


class NewTransaction(TransactionModel):
    segments: list[TransactionSegmentModel]
    onDemand: bool = Field(description="A segment is created when it is requested")


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


class LabelledAbortRequest(WireModel):
    labelPrefix: str = Field(min_length=1, max_length=LABEL_CHARACTERS_MAX)
    continuationToken: str | None = Field(default=None, max_length=TRANSACTION_ID_CHARACTERS)


class LabelledAbortsModel(WireModel):
    aborted: int
    continuationToken: str | None = Field(description="Where the next request continues; null at the end")


class LeasesRequest(LeaseRequest):
    transactions: list[str] = Field(
        min_length=1, max_length=LEASES_PER_REQUEST_MAX, description="Ids of transactions of the stream"
    )

    def identifiers(self) -> list[int]:
        return list(map(parse_transaction_id, self.transactions))


class LeaseOutcome(WireModel):
    transaction: str = Field(description="32 hex digits")
    status: int = Field(description="The status that the request for this transaction alone would have had")
    leaseEnd: int | None = Field(description="The end of the renewed lease; null after an error")
    error: dict[str, Any] | None = Field(description="As in the answer to that request; null if the lease was renewed")


class LeaseOutcomes(WireModel):
    leases: list[LeaseOutcome]


class CommitSetRequest(WireModel):
    writer: str = Field(min_length=1, max_length=WRITER_CHARACTERS_MAX)
    epoch: int = Field(ge=0, le=EPOCH_MAX)
    transactions: dict[str, list[str]] = Field(
        min_length=1,
        max_length=SET_STREAMS_MAX,
        description=f"Ids by stream, {SET_TRANSACTIONS_MAX} in all",
    )
    abortLabels: str | None = Field(
        default=None,
        min_length=1,
        max_length=LABEL_CHARACTERS_MAX,
        description="Afterwards, open ones with the label <abortLabels>/<k> and k up to `epoch` are aborted",
    )

    def members(self) -> dict[str, list[int]]:
        return {stream: list(map(parse_transaction_id, ids)) for stream, ids in self.transactions.items()}


class CommitSetModel(WireModel):
    writer: str
    epoch: int = Field(description="The last epoch of the writer that was committed")
    time: int = Field(description="When it was committed")
    new: bool = Field(description="Committed by this very request, and not by an earlier one")


class CommittedEpochModel(WireModel):
    writer: str
    epoch: int | None
    time: int | None
