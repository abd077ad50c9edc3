"""The control plane in memory, with what tests do to streams and transactions in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fuzz.control_plane import ControlPlane
from headrace import topology
from headrace.adapters.memory.request_queue import QueuedMessage
from headrace.api.transactions import CommitSetView
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.ports.workers import Workers


class StreamWorld(ControlPlane):
    """A control plane with what tests do to streams and transactions in one line."""

    def __init__(self, seed: int = 0, workers: Workers | None = None) -> None:
        super().__init__(seed, workers)
        self._in_hand: QueuedMessage | None = None

    def commit_set(
        self, members: Mapping[str, Sequence[int]] | Sequence[int], home: str = "t", **options: Any
    ) -> CommitSetView:
        """Commit these transactions, of one stream or by stream; what the service of a new process answers."""
        given = members if isinstance(members, Mapping) else {home: members}
        service = self.another_commit_set_service()
        return service.commit_all("s", home, given, **(dict[str, Any](writer="w", epoch=0) | options))

    def scale(self, sealed: Sequence[int], bounds: Sequence[float], stream: str = "t") -> int:
        """A scale that is done; the new ranges lie between consecutive bounds. The new epoch's number."""
        accepted = self.streams.scale_stream("s", stream, list(sealed), ranges(*bounds))
        self.drain()
        return accepted.epoch

    def update(self, stream: str = "t", segments: int = 2, **settings: Any) -> None:
        """An update that is done."""
        self.streams.update_stream("s", stream, StreamConfiguration(ScalingPolicy.fixed(segments), **settings))
        self.drain()

    def truncate(self, offsets: Mapping[int, int], stream: str = "t") -> None:
        """A truncation that is done."""
        self.streams.truncate_stream("s", stream, offsets)
        self.drain()

    def seal(self, stream: str = "t") -> None:
        self.streams.seal_stream("s", stream)
        self.drain()

    def delete(self, stream: str = "t") -> None:
        self.streams.delete_stream("s", stream)
        self.drain()

    def append(self, segment: int, length_bytes: int, stream: str = "t") -> None:
        name = f"s/{stream}/{segment & 0xFFFFFFFF}.#epoch.{segment >> 32}"
        self.bare_segment_stores.extend(name, length_bytes)

    def receive(self) -> QueuedMessage:
        """A processor has the one message in hand that is queued, until it is acknowledged."""
        (self._in_hand,) = self.bare_queue.receive()
        return self.in_hand

    @property
    def in_hand(self) -> QueuedMessage:
        """The message that a processor has received and not acknowledged."""
        assert self._in_hand is not None
        return self._in_hand

    @in_hand.setter
    def in_hand(self, message: QueuedMessage) -> None:
        self._in_hand = message

    @property
    def has_message_in_hand(self) -> bool:
        return self._in_hand is not None

    def process(self) -> None:
        """Process the message in hand, for the first time or again."""
        self.requests.process(self.in_hand.body)

    def acknowledge(self) -> None:
        """What was in hand does not come again."""
        self.bare_queue.acknowledge(self.in_hand.receipt)
        self._in_hand = None

    def sweep(self) -> None:
        """Send the intents again that are on record and old."""
        self.clock.advance(30_001)
        for bucket in range(topology.BUCKET_COUNT):
            self.resend_intents(bucket)

    def begin(self, stream: str = "t", lease_ms: int = 60_000) -> int:
        """The id of a new transaction."""
        return self.transactions.create_transaction("s", stream, lease_ms).transaction_id

    def write_in(self, transaction: int, position: float, data: bytes, stream: str = "t") -> None:
        """Append to the segment of a transaction that owns the position."""
        view = self.transactions.segments_of("s", stream, transaction)
        (name,) = [
            segment.transaction_segment
            for segment in view.segments
            if segment.key_range.low <= position < segment.key_range.high
        ]
        stores = self.bare_segment_stores
        stores.append(name, data, stores.segment_info(name).length)

    def commit(self, *transactions: int, stream: str = "t") -> None:
        """Commits that are done."""
        for transaction in transactions:
            self.transactions.commit_transaction("s", stream, transaction)
        self.drain_transactions()

    def tail_ids(self, stream: str = "t") -> list[int]:
        return [segment.segment_id for segment in self.segments.segments_at_tail("s", stream).segments]


def ranges(*bounds: float) -> list[KeyRange]:
    """Ranges between consecutive bounds."""
    return [KeyRange(low, high) for low, high in pairwise(bounds)]


def segment(number: int, epoch: int = 0) -> int:
    """A segment id."""
    return epoch << 32 | number
