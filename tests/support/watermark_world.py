"""Writers, their notes and the tick of watermarks on the control plane in memory."""

from __future__ import annotations

from stream_world import StreamWorld

from fuzz.watched_ports import Calls
from headrace import topology
from headrace.codec.events import iter_events
from headrace.codec.stored_objects import watermark_of_payload
from headrace.controller.services.watermark_service import WatermarkService
from headrace.controller.ticks.advance_watermarks import WatermarkAdvancer, watermark_ticks
from headrace.controller.ticks.due_work import LEASE_MS
from headrace.model.backoff import bucket_of_stream
from headrace.model.names import mark_segment_name
from headrace.model.segment_attributes import REVISION_MARK
from headrace.model.watermarks import Watermark

SILENT_MS = 600_000
"""Far longer than a crash of a tick delays its bucket."""

MARK_SEGMENT = mark_segment_name("s", "t")
S2, S3 = 1 << 32 | 2, 1 << 32 | 3
"""The segments that the first scale makes."""


class WatermarkWorld:
    """Beside a `StreamWorld`, whose ports it uses."""

    def __init__(self, world: StreamWorld) -> None:
        self.world = world
        self.calls: Calls = world.calls
        self.service = WatermarkService(world.store)
        advancer = WatermarkAdvancer(world.store, world.segment_stores, world.clock)
        self.ticks = watermark_ticks(world.store, world.clock, advancer.advance)

    def note(self, writer: str, time: int, offsets: dict[int, int], stream: str = "t") -> None:
        self.service.note_position("s", stream, writer, time, offsets)

    def tick(self, stream: str = "t", after_ms: int = 10_000) -> None:
        """The tick of the stream's bucket, some time later."""
        self.world.clock.advance(after_ms)
        self.ticks.run(self.bucket(stream))

    def bucket(self, stream: str = "t") -> int:
        return bucket_of_stream(f"s/{stream}", topology.BUCKET_COUNT)

    def tick_after_a_crash(self, stream: str = "t") -> None:
        """When the lease of the one that died has run out."""
        self.tick(stream, LEASE_MS)

    def written(self, stream: str = "t") -> list[Watermark]:
        """What lies in the mark segment, in order."""
        name = mark_segment_name("s", stream)
        stores = self.world.bare_segment_stores
        if name not in stores.names():
            return []
        info = stores.segment_info(name)
        payloads, consumed = iter_events(stores.read(name, info.start_offset, info.length))
        assert consumed == info.length - info.start_offset
        return [watermark_of_payload(payload) for payload in payloads]

    def bounds(self, stream: str = "t") -> list[tuple[int, int]]:
        return [(watermark.lower_time, watermark.upper_time) for watermark in self.written(stream)]

    def newest_cut(self, stream: str = "t") -> dict[int, int]:
        newest = self.service.newest_watermark("s", stream).watermark
        assert newest is not None
        return {position.segment.segment_id: position.offset for position in newest.cut}

    def revision_mark(self, stream: str = "t") -> int | None:
        return self.world.bare_segment_stores.get_attribute(mark_segment_name("s", stream), REVISION_MARK)

    def is_scheduled(self, stream: str = "t") -> bool:
        return any(
            partition.startswith("watermarks/") and sort == f"s/{stream}" for partition, sort in self.world.everything()
        )


def marks_on(world: StreamWorld) -> WatermarkWorld:
    """A stream of two segments whose writers may be silent for a while."""
    world.create(timestamp_aggregation_timeout_ms=SILENT_MS)
    return WatermarkWorld(world)


def fresh_marks() -> WatermarkWorld:
    return marks_on(StreamWorld())
