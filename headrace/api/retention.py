"""Retention of a stream, and the subscribers that it waits for.

Sizes are in bytes, times in milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.stream_cuts import offsets_json, stream_cut_from_json, stream_cut_json
from headrace.api.streams import retention_from_json, retention_json
from headrace.model.stream_configuration import RetentionPolicy
from headrace.model.stream_cuts import StreamCut
from headrace.model.subscribers import Subscriber


@dataclass(frozen=True, slots=True)
class RetentionDescription:
    """The retained data of a stream, and the next truncation.

    Every retained event was written after `oldest_event_ms`, or while the tail was measured for the cut of that time.
    `kept_bytes` is the distance from head to tail. The retention set holds `retention_set` cuts; the next one is taken
    at `next_cut_time_ms`, None without a policy.

    If retention ran now, it would delete `next_bytes` and move the head to `next_cut`, None if it would delete nothing.
    `case` is the rule that decides this, and `why` explains it in a sentence.
    """

    policy: RetentionPolicy | None
    time_ms: int
    oldest_event_ms: int
    kept_bytes: int
    retention_set: int
    oldest_cut_ms: int | None
    newest_cut_ms: int | None
    subscribers: int
    next_cut_time_ms: int | None
    next_bytes: int
    next_cut: StreamCut | None
    case: str
    why: str

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RetentionDescription:
        following = document["nextTruncation"]
        cut = following["streamCut"]
        return cls(
            policy=retention_from_json(document["retentionPolicy"]),
            time_ms=int(document["time"]),
            oldest_event_ms=int(document["oldestEventAfter"]),
            kept_bytes=int(document["keptBytes"]),
            retention_set=int(document["retentionSet"]),
            oldest_cut_ms=_optional(document["oldestCutTime"]),
            newest_cut_ms=_optional(document["newestCutTime"]),
            subscribers=int(document["subscribers"]),
            next_cut_time_ms=_optional(document["nextCutTime"]),
            next_bytes=int(following["bytes"]),
            next_cut=None if cut is None else stream_cut_from_json(cut),
            case=str(following["case"]),
            why=str(following["why"]),
        )

    def to_json(self, scope: str, stream: str) -> dict[str, Any]:
        """The JSON, which also names the stream."""
        return {
            "scopeName": scope,
            "streamName": stream,
            "retentionPolicy": retention_json(self.policy),
            "time": self.time_ms,
            "oldestEventAfter": self.oldest_event_ms,
            "keptBytes": self.kept_bytes,
            "retentionSet": self.retention_set,
            "oldestCutTime": self.oldest_cut_ms,
            "newestCutTime": self.newest_cut_ms,
            "subscribers": self.subscribers,
            "nextCutTime": self.next_cut_time_ms,
            "nextTruncation": {
                "case": str(self.case),
                "why": self.why,
                "bytes": self.next_bytes,
                "streamCut": None if self.next_cut is None else stream_cut_json(self.next_cut),
            },
        }


@dataclass(frozen=True, slots=True)
class SubscriberView:
    """A reader group that retention waits for. It no longer needs the bytes before `offsets`, by segment id."""

    subscriber: str
    generation: int
    offsets: Mapping[int, int]
    updated_ms: int

    @classmethod
    def of(cls, subscriber: Subscriber) -> SubscriberView:
        offsets = subscriber.position.cut.offsets
        return cls(subscriber.name, subscriber.generation, offsets, subscriber.updated_ms)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SubscriberView:
        return cls(
            subscriber=str(document["subscriber"]),
            generation=int(document["generation"]),
            offsets={int(segment): int(offset) for segment, offset in document["streamCut"].items()},
            updated_ms=int(document["updated"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "subscriber": self.subscriber,
            "generation": self.generation,
            "streamCut": offsets_json(self.offsets),
            "updated": self.updated_ms,
        }


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)
