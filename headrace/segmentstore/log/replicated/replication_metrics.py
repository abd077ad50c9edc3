"""Counters of the replicated logs of a process. All are written and read on the event loop."""

from __future__ import annotations

from typing import Final

from headrace.codec.replica_messages import (
    NACK_CORRUPT,
    NACK_DISK_FULL,
    NACK_FENCED,
    NACK_GAP,
    NACK_PROTOCOL,
    NACK_STOPPING,
)
from headrace.model.container_logs import ReplicaId
from headrace.segmentstore.metrics import LATENCY_BOUNDS_S, SIZE_BOUNDS_BYTES, Histogram

_NACK_NAMES: Final = {
    NACK_FENCED: "fenced",
    NACK_GAP: "gap",
    NACK_CORRUPT: "corrupt",
    NACK_DISK_FULL: "disk_full",
    NACK_PROTOCOL: "protocol",
    NACK_STOPPING: "stopping",
}


class LogMetrics:
    """The metrics of one container's log, over all its openings in this process.

    `acknowledge_seconds` has a histogram for each zone: that of the member whose answer completed the quorum.
    """

    __slots__ = ("_began_s", "_members", "acknowledge_seconds", "ensemble_changes", "recovery_seconds")

    def __init__(self) -> None:
        self.acknowledge_seconds: dict[str, Histogram] = {}
        self.recovery_seconds = Histogram(LATENCY_BOUNDS_S)
        self.ensemble_changes = 0
        self._began_s = 0.0
        self._members: tuple[ReplicaId, ...] = ()

    def acknowledged(self, seconds: float | None, zone: str) -> None:
        """Entries were acknowledged, the oldest `seconds` after it was sent; None if no caller waited for them."""
        if seconds is None:
            return
        histogram = self.acknowledge_seconds.get(zone)
        if histogram is None:
            histogram = self.acknowledge_seconds[zone] = Histogram(LATENCY_BOUNDS_S)
        histogram.record(seconds)

    def begin(self, now_s: float) -> None:
        """A recovery begins. Times are those of a monotonic clock."""
        self._began_s = now_s

    def recovered(self, now_s: float, members: tuple[ReplicaId, ...]) -> None:
        """This process has recovered the log, which begins with these members."""
        self.recovery_seconds.record(now_s - self._began_s)
        self._members = members

    def has_members(self, members: tuple[ReplicaId, ...]) -> None:
        """The members that the record names now."""
        if members != self._members:
            self._members = members
            self.ensemble_changes += 1


class ReplicationMetrics:
    """The metrics of a process. `nacks` counts the refusals that its owners got from replicas, by name.

    `batch_bytes` are the sizes of what a link sends in one turn of the loop, `corrupt_messages` the messages of other
    stores that could not be decoded.
    """

    __slots__ = ("batch_bytes", "catch_up_bytes", "corrupt_messages", "logs", "nacks")

    def __init__(self) -> None:
        self.batch_bytes = Histogram(SIZE_BOUNDS_BYTES)
        self.catch_up_bytes = 0
        self.corrupt_messages = 0
        self.nacks = dict.fromkeys(_NACK_NAMES.values(), 0)
        self.logs: dict[int, LogMetrics] = {}

    def begin(self, container: int, now_s: float) -> LogMetrics:
        """The metrics of a log whose recovery begins."""
        log = self.logs.setdefault(container, LogMetrics())
        log.begin(now_s)
        return log

    def count_corrupt_message(self) -> None:
        self.corrupt_messages += 1

    def count_nack(self, code: int) -> None:
        """Count a refusal. The decoder has let only known codes through."""
        self.nacks[_NACK_NAMES[code]] += 1
