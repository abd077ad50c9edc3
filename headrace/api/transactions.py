"""Transactions, their labels, and commit sets.

Times are milliseconds since the Unix epoch. A transaction id is 32 lower-case hex digits.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from headrace.api.pages import Page
from headrace.api.segments import SegmentView
from headrace.model.commit_sets import (
    EPOCH_MAX,
    NOTE_BYTES_MAX,
    SET_STREAMS_MAX,
    SET_TRANSACTIONS_MAX,
    WRITER_CHARACTERS_MAX,
)
from headrace.model.documents import Document, about
from headrace.model.errors import InvalidRequestError
from headrace.model.segments import StreamSegment
from headrace.model.transactions import (
    LABEL_CHARACTERS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    LEASES_PER_REQUEST_MAX,
    Transaction,
    TransactionState,
    WriterTime,
    parse_transaction_id,
    transaction_text,
)
from headrace.model.writer_marks import TIME_MAX, TIME_MIN, check_writer_name

TRANSACTION_ID_CHARACTERS = 32
SEGMENTS_PER_REQUEST_MAX = 10_000

_Label = Annotated[str, Meta(min_length=1, max_length=LABEL_CHARACTERS_MAX)]


class TransactionSegmentView(SegmentView, frozen=True):
    """A stream segment, and the segment that holds a transaction's events for it until the commit.

    `segment_id` and `name` are those of the stream segment; events are appended to `transaction_segment`.
    """

    transaction_segment: Annotated[str, about("The segment that they are written to")]

    @classmethod
    def written_to(cls, segment: StreamSegment, name: str, transaction_segment: str) -> TransactionSegmentView:
        return cls(segment.segment_id, segment.key_range.low, segment.key_range.high, name, transaction_segment)


class CompletedTransaction(Document, frozen=True):
    """An entry of the list of completed transactions."""

    transaction: Annotated[str, about("32 hex digits")]
    state: TransactionState

    @property
    def transaction_id(self) -> int:
        """The id as a number."""
        return parse_transaction_id(self.transaction)


class TransactionView(CompletedTransaction, frozen=True):
    """A transaction."""

    creation_time_ms: int
    lease_end_ms: int
    completion_time_ms: int | None
    label: str | None

    @classmethod
    def of(cls, transaction: Transaction) -> TransactionView:
        return TransactionView(
            transaction_text(transaction.transaction_id),
            transaction.state,
            transaction.created_ms,
            transaction.lease_end_ms,
            transaction.completed_ms,
            transaction.label,
        )


class NewTransaction(TransactionView, frozen=True, kw_only=True):
    """A transaction with its segments, which cover the key space exactly once.

    If the segments are created `on_demand`, a writer must ask for each one before it appends to it.
    """

    segments: tuple[TransactionSegmentView, ...]
    on_demand: Annotated[bool, about("A segment is created when it is requested")]

    @classmethod
    def having(cls, transaction: Transaction, segments: tuple[TransactionSegmentView, ...]) -> NewTransaction:
        on_demand = transaction.created_segments is not None
        return cls(**TransactionView.of(transaction).fields(), segments=segments, on_demand=on_demand)


class TransactionList(Page, frozen=True, kw_only=True):
    transactions: tuple[TransactionView, ...]


class CompletedList(Document, frozen=True):
    completed: Annotated[tuple[CompletedTransaction, ...], about("The newest first")]


class LeaseRequest(Document, frozen=True):
    lease_ms: Annotated[int, about(f"Milliseconds, {LEASE_MS_MIN} to {LEASE_MS_MAX}")]


class TransactionRequest(LeaseRequest, frozen=True):
    label: _Label | None = None
    segments: Annotated[
        Literal["all", "on-demand"],
        about("Whether all segments are created now, or each one when it is requested"),
    ] = "all"


class TransactionSegmentsRequest(Document, frozen=True):
    segments: Annotated[
        tuple[int, ...], Meta(min_length=1, max_length=SEGMENTS_PER_REQUEST_MAX, description="Their segmentId")
    ]


class TransactionStateRequest(Document, frozen=True):
    state: Literal["COMMITTING", "ABORTING"]
    writer: Annotated[str | None, about("With `time`: whose time this commit tells")] = None
    time: Annotated[
        Annotated[int, Meta(ge=TIME_MIN, le=TIME_MAX)] | None, about("No older event of `writer` follows")
    ] = None

    def writer_time(self) -> WriterTime | None:
        """Raises InvalidRequestError if only one of writer and time is given, or any of them with an abort."""
        if self.writer is None and self.time is None:
            return None
        if self.writer is None or self.time is None or self.state == "ABORTING":
            raise InvalidRequestError("give both writer and time with a commit, or neither; an abort takes neither")
        return WriterTime(check_writer_name(self.writer), self.time)


class LabelledAbortRequest(Document, frozen=True):
    label_prefix: _Label
    after: Annotated[str, Meta(max_length=TRANSACTION_ID_CHARACTERS)] | None = field(
        default=None, name="continuationToken"
    )


class LabelledAborts(Page, frozen=True, kw_only=True):
    """How many open transactions a request marked for abort by their labels, and where the next one continues."""

    aborted: int


class LeasesRequest(LeaseRequest, frozen=True):
    transactions: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=LEASES_PER_REQUEST_MAX, description="Ids of transactions of the stream"),
    ]

    def identifiers(self) -> list[int]:
        return list(map(parse_transaction_id, self.transactions))


class LeaseOutcome(Document, frozen=True):
    """What became of the renewal of one lease."""

    transaction: Annotated[str, about("32 hex digits")]
    status: Annotated[int, about("The status that the request for this transaction alone would have had")]
    lease_end_ms: Annotated[int | None, about("The end of the renewed lease; null after an error")]
    error: Annotated[dict[str, Any] | None, about("As in the answer to that request; null if the lease was renewed")]


class LeaseOutcomes(Document, frozen=True):
    leases: tuple[LeaseOutcome, ...]


class CommitSetRequest(Document, frozen=True):
    writer: Annotated[str, Meta(min_length=1, max_length=WRITER_CHARACTERS_MAX)]
    epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
    transactions: Annotated[
        dict[str, tuple[str, ...]],
        Meta(min_length=1, max_length=SET_STREAMS_MAX, description=f"Ids by stream, {SET_TRANSACTIONS_MAX} in all"),
    ]
    abort_labels: Annotated[
        _Label | None,
        about("Afterwards, open ones with the label <abortLabels>/<k> and k up to `epoch` are aborted"),
    ] = None
    note: Annotated[
        Annotated[str, Meta(max_length=NOTE_BYTES_MAX)] | None,
        about(f"Kept with the epoch, for example the position in the input; at most {NOTE_BYTES_MAX} bytes as UTF-8"),
    ] = None

    def members(self) -> dict[str, list[int]]:
        return {stream: list(map(parse_transaction_id, ids)) for stream, ids in self.transactions.items()}


class CommitSetView(Document, frozen=True):
    """The answer to a commit of a set: the last epoch of `writer` that was committed, and when.

    `new` is true if this request committed it, so that it is the epoch of the request. It is false if this epoch or a
    later one was committed before.
    """

    writer: str
    epoch: Annotated[int, about("The last epoch of the writer that was committed")]
    time_ms: Annotated[int, about("When it was committed")]
    new: Annotated[bool, about("Committed by this very request, and not by an earlier one")]


class CommittedEpochView(Document, frozen=True):
    """The last epoch of a writer that was committed, when, and the note of its set; None for a writer without one."""

    writer: str
    epoch: int | None
    time_ms: int | None
    note: str | None = None
