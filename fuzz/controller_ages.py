"""Streams whose events get old: retention by time between writes, scales and a subscriber that reads a part."""

from __future__ import annotations

from typing import Final

from fuzz.controller_clients import Clients
from fuzz.controller_groups import SUBSCRIBERS
from fuzz.controller_messages import Messages
from fuzz.controller_model import SCOPE, STREAMS
from fuzz.controller_run import ControllerRun
from headrace.controller.services.retention_service import SubscriberService
from headrace.metadata.due_index import bucket_of
from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.names import segment_name
from headrace.model.segments import KeyRange

_PAUSES_MS: Final = (1_000, 45_000, 61_000, 100_000)
"""After the shorter ones cuts are nearly as old as events that are too young to be cut."""

_SUBSCRIBED_SHARE: Final = 0.5
_STEPS: Final = (("scale", 0.3), ("write", 0.7), ("read", 0.5), ("pass", 1.0))
"""The steps of a round, and how often each is taken."""


class Ages:
    """`pass_time` is the work of one process."""

    def __init__(self, run: ControllerRun, clients: Clients, messages: Messages) -> None:
        self._run = run
        self._random = run.random
        self._plane = run.plane
        self._clients = clients
        self._messages = messages
        self._records = SubscriberRecords(run.plane.bare_store)
        self._subscribers = SubscriberService(run.plane.store, run.plane.clock)

    def pass_time(self) -> None:
        """Work on one stream, mostly one with retention."""
        retained = sorted(self._run.model.retained)
        stream = self._random.choice(retained or STREAMS)
        if self._random.random() < _SUBSCRIBED_SHARE:
            with self._run.refusals_noted("age"):
                self._run.retry(lambda: self._subscribers.register(SCOPE, stream, SUBSCRIBERS[0], 0))
        for _ in range(self._random.randint(4, 8)):
            for what in [step for step, share in _STEPS if self._random.random() < share]:
                with self._run.refusals_noted(f"age: {what}"):
                    self._take_step(what, stream)
                    self._run.note(f"age: {what}")

    def _take_step(self, what: str, stream: str) -> None:
        match what:
            case "write":
                transaction = self._clients.begin(stream)
                self._run.retry(lambda: self._clients.commit_alone(self._run.service(), transaction))
                self._messages.process_requests(stream, "commit")
            case "read":
                self._read(stream)
            case "scale":
                segments = self._plane.records.get(SCOPE, stream).stream.epoch.segments
                segment = self._random.choice(segments)
                replaced, ranges = [segment.segment_id], [segment.key_range]
                if len(segments) == 1:
                    low, high = segment.key_range.low, segment.key_range.high
                    ranges = [KeyRange(low, (low + high) / 2), KeyRange((low + high) / 2, high)]
                self._run.retry(lambda: self._plane.streams.scale_stream(SCOPE, stream, replaced, ranges))
                self._messages.process_requests(stream)
            case _:
                self._plane.clock.advance(self._random.choice(_PAUSES_MS))
                self._run.retention.ticks.run(bucket_of(SCOPE, stream))
                self._messages.process_requests(stream)

    def _read(self, stream: str) -> None:
        """All subscribers read their segments to the ends, and go to no segment that follows."""
        stores = self._plane.bare_segment_stores
        for subscriber in self._records.all(self._plane.records.get(SCOPE, stream).stream):
            names = {each: segment_name(SCOPE, stream, each) for each in subscriber.position.cut.offsets}
            present = set(stores.names())
            ends = {each: stores.segment_info(name).length for each, name in names.items() if name in present}
            offsets = {**subscriber.position.cut.offsets, **ends}
            self._subscribers.update_stream_cut(SCOPE, stream, subscriber.name, subscriber.generation, offsets)
