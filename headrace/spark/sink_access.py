"""What writing asks of the streams of a scope, as Protocols; `client_sink.py` answers them with the Python client.

Tasks open transactions and write. The driver commits what the tasks report. The errors are those of
`headrace.model.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy
from headrace.model.transactions import TransactionState


class EventOutput(Protocol):
    """Takes events for one stream."""

    def write_many(self, events: Any) -> object:
        """Queues the events of an Arrow record batch with the columns `event` and perhaps `routing_key`."""
        ...

    def flush(self) -> None:
        """Waits until all events are durable."""
        ...


class OpenWriter(EventOutput, Protocol):
    """An output whose events are in the stream at once."""

    def close(self) -> None: ...


class OpenTransaction(EventOutput, Protocol):
    """The output of a transaction."""

    @property
    def id(self) -> str: ...

    def detach(self) -> None:
        """Ends this output. As long as its lease runs, the transaction can be committed or aborted by its id."""
        ...

    def abort(self) -> None: ...


class LabelledTransaction(NamedTuple):
    """A transaction that is neither committed nor aborted."""

    id: str
    label: str
    state: TransactionState


class SinkAccess(Protocol):
    """The streams of one scope, and the writers that commit to them."""

    def sealed(self, stream: str) -> bool | None:
        """Whether the stream is sealed; None: there is no such stream."""
        ...

    def scope_exists(self) -> bool: ...

    def create_scope(self) -> None:
        """Creates the scope, unless it exists."""
        ...

    def create_stream(self, stream: str, scaling: ScalingPolicy, retention: RetentionPolicy | None) -> None:
        """Creates a stream, unless it exists."""
        ...

    def open_writer(self, stream: str) -> OpenWriter: ...

    def begin(self, stream: str, *, lease_ms: int, label: str) -> OpenTransaction: ...

    def committed_epoch(self, home: str, writer: str) -> int | None:
        """The last epoch that the writer committed, as its home stream records it."""
        ...

    def commit(
        self, home: str, writer: str, epoch: int, transactions: Mapping[str, Sequence[str]], *, abort_labels: str
    ) -> bool:
        """Commits the transactions of all streams or none of them.

        False: this epoch or a later one was committed before, and these transactions are aborted. Afterwards the open
        transactions with labels `abort_labels/<k>/...`, k up to `epoch`, are aborted in the streams of the set.

        Raises:
            IllegalStateError: code "transaction_aborted" or "transaction_committed": one of them is not open.
            NotFoundError: code "transaction_not_found": one of them is unknown.
        """
        ...

    def abort_labelled(self, stream: str, prefix: str) -> None:
        """Aborts the open transactions whose labels begin with `prefix`."""
        ...

    def labelled(self, stream: str, prefix: str | None) -> Sequence[LabelledTransaction]:
        """The transactions with a label (that begins so) that are neither committed nor aborted."""
        ...

    def newest_completed(self, stream: str) -> Mapping[str, TransactionState]:
        """The states of the newest transactions of the stream that were committed or aborted, a few hundred, by id."""
        ...

    def transaction_state(self, stream: str, transaction: str) -> TransactionState: ...
