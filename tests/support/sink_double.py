"""The streams of a scope in memory, with the rules of transactions, commit sets and labels that the sink relies on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.model.errors import HeadraceError, IllegalStateError, InvalidRequestError, NotFoundError, SealedError
from headrace.model.limits import EVENT_BYTES_MAX
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy
from headrace.model.transactions import TransactionState
from headrace.spark.sink_access import LabelledTransaction

OPEN, COMMITTING, COMMITTED, ABORTED = (
    TransactionState.OPEN,
    TransactionState.COMMITTING,
    TransactionState.COMMITTED,
    TransactionState.ABORTED,
)

Row = tuple[bytes, str | None]


@dataclass
class StoredTransaction:
    """A transaction as the controller knows it."""

    id: str
    stream: str
    label: str
    lease_ms: int
    state: TransactionState = OPEN
    rows: list[Row] = field(default_factory=list)


class TransactionDouble:
    """An open transaction in a task; see `OpenTransaction`."""

    def __init__(self, stored: StoredTransaction) -> None:
        self.stored = stored
        self.queued: list[Row] = []
        self.detached = False

    @property
    def id(self) -> str:
        return self.stored.id

    def write_many(self, events: Any) -> object:
        rows = list(_rows(events))
        for event, _ in rows:
            if len(event) > EVENT_BYTES_MAX:
                raise InvalidRequestError("too large", details={"bytes": len(event)}, code="event_too_large")
        self.queued += rows
        return None

    def flush(self) -> None:
        if self.stored.state is not OPEN:
            raise IllegalStateError("the transaction is not open", code="transaction_aborted")
        self.stored.rows += self.queued
        self.queued = []

    def detach(self) -> None:
        assert not self.queued, "events would be lost"
        self.detached = True

    def abort(self) -> None:
        if self.stored.state is OPEN:
            self.stored.state = ABORTED


class WriterDouble:
    """A plain writer; see `OpenWriter`."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._queued: list[Row] = []
        self.closed = False

    def write_many(self, events: Any) -> object:
        self._queued += _rows(events)
        return None

    def flush(self) -> None:
        self._rows += self._queued
        self._queued = []

    def close(self) -> None:
        self.closed = True


class SinkDouble:
    """See `SinkAccess`. Commits become visible after `polls_until_visible` questions about them."""

    def __init__(self, streams: Sequence[str] = ("t",)) -> None:
        self.scope = True
        self.rows: dict[str, list[Row]] = {stream: [] for stream in streams}
        self.sealed_streams: set[str] = set()
        self.created: dict[str, tuple[ScalingPolicy, RetentionPolicy | None]] = {}
        self.transactions: dict[str, StoredTransaction] = {}
        self.opened: list[TransactionDouble] = []
        self.writers: list[WriterDouble] = []
        self.epochs: dict[tuple[str, str], int] = {}
        self.commits = 0
        self.polls_until_visible = 0
        self.loses_events = False
        self.completed_listed_max = 500
        self.listings = 0
        self.reads = 0
        self.loses_commit_answer = False
        self.abort_error: HeadraceError | None = None

    def sealed(self, stream: str) -> bool | None:
        return stream in self.sealed_streams if stream in self.rows else None

    def scope_exists(self) -> bool:
        return self.scope

    def create_scope(self) -> None:
        self.scope = True

    def create_stream(self, stream: str, scaling: ScalingPolicy, retention: RetentionPolicy | None) -> None:
        assert self.scope
        self.rows.setdefault(stream, [])
        self.created[stream] = (scaling, retention)

    def open_writer(self, stream: str) -> WriterDouble:
        self.writers.append(WriterDouble(self.rows[stream]))
        return self.writers[-1]

    def begin(self, stream: str, *, lease_ms: int, label: str) -> TransactionDouble:
        if stream not in self.rows:
            raise NotFoundError(f"there is no stream {stream}")
        stored = StoredTransaction(f"{len(self.transactions) + 1:032x}", stream, label, lease_ms)
        self.transactions[stored.id] = stored
        self.opened.append(TransactionDouble(stored))
        return self.opened[-1]

    def committed_epoch(self, home: str, writer: str) -> int | None:
        return self.epochs.get((home, writer))

    def commit(
        self, home: str, writer: str, epoch: int, transactions: Mapping[str, Sequence[str]], *, abort_labels: str
    ) -> bool:
        self.commits += 1
        if self.loses_commit_answer:  # the client repeats the request
            self.loses_commit_answer = False
            self.commit(home, writer, epoch, transactions, abort_labels=abort_labels)
        members = [(stream, transaction) for stream, ids in transactions.items() for transaction in ids]
        last = self.epochs.get((home, writer))
        if last is not None and epoch <= last:
            self._end([self.transactions[transaction] for _, transaction in members])
            return False
        for stream, transaction in members:
            stored = self.transactions.get(transaction)
            if stored is None or stored.stream != stream:
                raise NotFoundError("unknown", code="transaction_not_found")
            if stored.state is not OPEN:
                raise IllegalStateError(f"transaction {transaction} was aborted", code="transaction_aborted")
        if home in self.sealed_streams:
            raise SealedError(f"stream {home} is sealed")
        self.epochs[home, writer] = epoch
        for _, transaction in members:
            self.transactions[transaction].state = COMMITTING
        if not self.polls_until_visible:
            self._complete()
        streams = {home, *transactions}
        self._end(
            [
                candidate
                for candidate in self.transactions.values()
                if candidate.stream in streams and _up_to(candidate, abort_labels, epoch)
            ]
        )
        return True

    def abort_labelled(self, stream: str, prefix: str) -> None:
        if self.abort_error is not None:
            raise self.abort_error
        self._end(self._labelled(stream, prefix))

    def labelled(self, stream: str, prefix: str | None) -> list[LabelledTransaction]:
        if self.abort_error is not None:
            raise self.abort_error
        labelled = self._labelled(stream, prefix or "")
        found = [
            LabelledTransaction(transaction.id, transaction.label, transaction.state)
            for transaction in labelled
            if transaction.state in (OPEN, COMMITTING)
        ]
        self._asked(any(transaction.state is COMMITTING for transaction in found))
        self.listings += 1
        return found

    def newest_completed(self, stream: str) -> dict[str, TransactionState]:
        ended = (transaction for transaction in self.transactions.values() if transaction.state in (COMMITTED, ABORTED))
        newest = [(transaction.id, transaction.state) for transaction in ended if transaction.stream == stream][
            -self.completed_listed_max :
        ]
        return dict(newest)

    def transaction_state(self, stream: str, transaction: str) -> TransactionState:
        self.reads += 1
        state = self.transactions[transaction].state
        self._asked(state is COMMITTING)
        return state

    def _asked(self, is_committing: bool) -> None:
        if is_committing:
            self.polls_until_visible -= 1
            if self.polls_until_visible <= 0:
                self._complete()

    def expire(self) -> None:
        """The leases of all open transactions end."""
        self._end(list(self.transactions.values()))

    def open_transactions(self) -> list[str]:
        return [transaction.label for transaction in self.transactions.values() if transaction.state is OPEN]

    def _labelled(self, stream: str, prefix: str) -> list[StoredTransaction]:
        found = (transaction for transaction in self.transactions.values() if transaction.stream == stream)
        return [transaction for transaction in found if transaction.label.startswith(prefix)]

    def _end(self, ended: list[StoredTransaction]) -> None:
        for transaction in ended:
            if transaction.state is OPEN:
                transaction.state = ABORTED

    def _complete(self) -> None:
        for transaction in self.transactions.values():
            if transaction.state is COMMITTING:
                transaction.state = ABORTED if self.loses_events else COMMITTED
                if transaction.state is COMMITTED:
                    self.rows[transaction.stream] += transaction.rows


def _rows(events: Any) -> Iterator[Row]:
    names = events.schema.names
    payloads = events.column(names.index("event")).to_pylist()
    keys = events.column(names.index("routing_key")).to_pylist() if "routing_key" in names else [None] * len(payloads)
    for payload, key in zip(payloads, keys, strict=True):
        yield payload.encode() if isinstance(payload, str) else payload, key


def _up_to(transaction: StoredTransaction, prefix: str, epoch: int) -> bool:
    parts = transaction.label.removeprefix(f"{prefix}/").split("/")
    return transaction.label.startswith(f"{prefix}/") and parts[0].isdecimal() and int(parts[0]) <= epoch
