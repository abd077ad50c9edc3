"""The segments of transactions: their names, and their creation and deletion in the segment stores."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.transactions import TransactionSegmentView
from headrace.metadata.history_records import HistoryRecords
from headrace.model.errors import InvalidRequestError
from headrace.model.names import segment_name
from headrace.model.streams import Stream
from headrace.model.transactions import Transaction, segment_of_transaction, transaction_text
from headrace.ports.segment_stores import SegmentScaleRate, SegmentStores


class TransactionSegments:
    """Safe for any number of threads."""

    def __init__(self, history: HistoryRecords, segment_stores: SegmentStores) -> None:
        self._history = history
        self._segment_stores = segment_stores

    def of(self, stream: Stream, transaction: Transaction) -> tuple[TransactionSegmentView, ...]:
        """One for each segment of the transaction's epoch, also those that are not created yet."""
        epoch = self._history.epoch(stream, transaction.reference_epoch)
        return tuple(
            TransactionSegmentView.of(
                one,
                segment_name(stream.scope, stream.name, one.segment_id),
                segment_of_transaction(stream.scope, stream.name, one, transaction.transaction_id),
            )
            for one in epoch.segments
        )

    def wanted(self, stream: Stream, transaction: Transaction, ids: frozenset[int]) -> list[TransactionSegmentView]:
        """Those for the segments with these ids. Raises InvalidRequestError, code "not_of_transaction"."""
        found = [one for one in self.of(stream, transaction) if one.segment_id in ids]
        if len(found) != len(ids):
            unknown = sorted(ids - {one.segment_id for one in found})
            raise InvalidRequestError(
                f"transaction {transaction_text(transaction.transaction_id)} has no segments {unknown[:10]}: ask for "
                "those that its description names",
                details={"segments": unknown},
                code="not_of_transaction",
            )
        return found

    def create(self, stream: Stream, segments: Sequence[TransactionSegmentView]) -> None:
        """Those that exist stay as they are."""
        self._segment_stores.create_segments(
            [one.transaction_segment for one in segments],
            SegmentScaleRate(),
            stream.configuration.rollover_size_bytes,
        )

    def delete(self, segments: Sequence[TransactionSegmentView]) -> None:
        self._segment_stores.delete_segments([one.transaction_segment for one in segments])
