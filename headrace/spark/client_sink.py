"""The streams of a scope as the sink sees them, through the Python client. See `SinkAccess`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.client.synchronous.synchronous_bases import EventWriter
from headrace.client.synchronous.synchronous_transactions import Transaction
from headrace.model.errors import NotFoundError
from headrace.model.stream_configuration import RetentionPolicy, ScalingPolicy
from headrace.model.transactions import TransactionState
from headrace.spark.python_workers import SharedClient, shared_client
from headrace.spark.sink_access import LabelledTransaction
from headrace.spark.write_options import WriteOptions


class ClientSink:
    """The streams that a sink writes, through a client.

    Requests that fail with something that can pass are repeated for `patience_s` seconds.
    """

    def __init__(self, shared: SharedClient, scope: str) -> None:
        self._shared = shared
        self._admin = shared.client.admin
        self._scope = scope

    def sealed(self, stream: str) -> bool | None:
        try:
            return self._admin.get_stream(self._scope, stream).state.is_sealed
        except NotFoundError:
            return None

    def scope_exists(self) -> bool:
        return self._admin.scope_exists(self._scope)

    def create_scope(self) -> None:
        self._admin.create_scope(self._scope, exist_ok=True)

    def create_stream(self, stream: str, scaling: ScalingPolicy, retention: RetentionPolicy | None) -> None:
        self._admin.create_stream(self._scope, stream, scaling=scaling, retention=retention, exist_ok=True)

    def open_writer(self, stream: str) -> EventWriter:
        return self._shared.client.writer(self._scope, stream)

    def begin(self, stream: str, *, lease_ms: int, label: str) -> Transaction:
        return self._shared.transactional_writer(self._scope, stream, lease_ms).begin(label=label)

    def committed_epoch(self, home: str, writer: str) -> int | None:
        return self._admin.transactions.committed_epoch(self._scope, home, writer)

    def commit(
        self, home: str, writer: str, epoch: int, transactions: Mapping[str, Sequence[str]], *, abort_labels: str
    ) -> bool:
        view = self._admin.transactions.commit_all(
            self._scope, home, transactions, writer=writer, epoch=epoch, abort_labels=abort_labels
        )
        return view.new

    def abort_labelled(self, stream: str, prefix: str) -> None:
        self._admin.transactions.abort_labelled(self._scope, stream, prefix)

    def labelled(self, stream: str, prefix: str | None) -> list[LabelledTransaction]:
        listed = self._admin.transactions.list_open(self._scope, stream, label_prefix=prefix)
        return [
            LabelledTransaction(entry.transaction, entry.label, entry.state)
            for entry in listed
            if entry.label is not None
        ]

    def newest_completed(self, stream: str) -> dict[str, TransactionState]:
        completed = self._admin.transactions.list_completed(self._scope, stream)
        return {entry.transaction: entry.state for entry in completed}

    def transaction_state(self, stream: str, transaction: str) -> TransactionState:
        return self._admin.transactions.get(self._scope, stream, transaction).state


def open_sink(options: WriteOptions) -> ClientSink:
    """The streams of the options' scope, on the client of this process."""
    return ClientSink(
        shared_client(options.controller, options.auth, options.patience_s, options.network), options.scope
    )
