"""Ticks of retention on the control plane in memory, over streams that get a cut a second."""

from __future__ import annotations

from stream_world import StreamWorld

from fuzz.watched_ports import Calls
from headrace import topology
from headrace.controller.services.retention_service import SubscriberService
from headrace.controller.ticks.apply_retention import RetentionTicks
from headrace.metadata.retention_records import RetentionRecords, decode_retention_due
from headrace.model.retention import RetentionState
from headrace.model.stream_configuration import RetentionPolicy

PERIOD_MS = 1_000
BY_SIZE = RetentionPolicy.by_size(100)


class Retention:
    """Ticks over a world whose streams get a cut a second."""

    def __init__(self, world: StreamWorld) -> None:
        self.world = world
        self.calls: Calls = world.calls
        self.ticks = RetentionTicks(world.store, world.segment_stores, world.clock, world.accept_truncation, PERIOD_MS)
        self.subscribers = SubscriberService(world.store, world.clock)

    def tick(self) -> bool:
        """All buckets once, and the truncations that they asked for; whether any left work undone."""
        more = [self.ticks.run(bucket) for bucket in range(topology.BUCKET_COUNT)]
        self.world.drain()
        return any(more)

    def after_a_period(self) -> bool:
        self.world.clock.advance(PERIOD_MS)
        return self.tick()

    def write(self, length: int, segment: int = 0, stream: str = "t") -> None:
        """Bytes, and then a cut behind them."""
        self.world.append(segment, length, stream)
        self.after_a_period()

    def head(self, stream: str = "t") -> dict[int, int]:
        return self.world.segments.stream_cut("s", stream, "head").offsets

    def state(self, stream: str = "t") -> RetentionState:
        found = self.world.records.get("s", stream).stream
        retained = RetentionRecords(self.world.bare_store).load("s", stream, found.first_segment_number)
        assert retained is not None
        assert retained.retention is not None
        return retained.retention.state

    def due(self) -> list[tuple[str, int]]:
        """Stream and time of all that is in the index."""
        records = self.world.everything().items()
        found = [decode_retention_due(body) for (partition, _), (_, body) in records if "retention-due" in partition]
        return sorted((due.stream, due.due_ms) for due in found)


def sizes(state: RetentionState) -> list[int]:
    return [cut.size_bytes for cut in state.cuts]
