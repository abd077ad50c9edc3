"""Create, update and delete a reader group: its own stream, and its subscriptions to the streams that it reads.

A stream's retention waits for a subscriber, so a group subscribes before it is open and leaves before it is gone. A
subscription carries the generation under which positions may be published; an update therefore renews all of them.
"""

from __future__ import annotations

from typing import Protocol

from headrace.controller.resource_requests import SubjectRequestProcessor, SubjectStep
from headrace.controller.steps.internal_streams import InternalStreams
from headrace.metadata.reader_group_records import ReaderGroupRecords, StoredGroup
from headrace.model.reader_groups import GroupStream, settled
from headrace.model.requests import RequestKind
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import Check, MetadataStore
from headrace.ports.segment_stores import SegmentStores


class Subscriptions(Protocol):
    """Who is a subscriber of a stream. Both may be repeated, and a stream that is gone has no subscribers to change."""

    def subscribe(self, stream: GroupStream, subscriber: str, generation: int, condition: Check) -> None:
        """Make `subscriber` one that needs the stream from the group's start on, and may publish under `generation`.

        While `condition` holds; a subscriber that is there under this generation stays as it is.
        """
        ...

    def unsubscribe(self, scope: str, stream: str, subscriber: str, condition: Check) -> None:
        """Let the stream's retention no longer wait for `subscriber`, while `condition` holds."""
        ...


class ReaderGroupLifecycle:
    """The steps of each request; they raise what `SubjectRequestProcessor.process` does."""

    def __init__(
        self, store: MetadataStore, segment_stores: SegmentStores, clock: Clock, subscriptions: Subscriptions
    ) -> None:
        self._records = ReaderGroupRecords(store)
        self._streams = InternalStreams(store, segment_stores, clock)
        self._subscriptions = subscriptions

    def processor(self) -> SubjectRequestProcessor[StoredGroup]:
        subscribe = SubjectStep("subscribe", self._subscribe)
        settle = SubjectStep("open", self._open)
        steps = {
            RequestKind.CREATE_READER_GROUP: (
                SubjectStep("create state stream", self._create_stream),
                subscribe,
                settle,
            ),
            RequestKind.UPDATE_READER_GROUP: (subscribe, SubjectStep("leave streams", self._leave), settle),
            RequestKind.DELETE_READER_GROUP: (
                SubjectStep("leave all streams", self._leave_all),
                SubjectStep("delete state stream", self._delete_stream),
                SubjectStep("forget", self._records.replace_with_tombstone),
            ),
        }
        return SubjectRequestProcessor(self._records.find, steps)

    def _create_stream(self, stored: StoredGroup) -> None:
        group = stored.group
        self._streams.ensure(group.scope, group.state_stream, group.state_stream_configuration, stored.unchanged)

    def _delete_stream(self, stored: StoredGroup) -> None:
        self._streams.ensure_gone(stored.group.scope, stored.group.state_stream, stored.unchanged)

    def _subscribe(self, stored: StoredGroup) -> None:
        group = stored.group
        for stream in group.configuration.streams:
            if stream.scoped_name in group.configuration.subscribed:
                self._subscriptions.subscribe(stream, group.scoped_name, group.generation, stored.unchanged)

    def _leave(self, stored: StoredGroup) -> None:
        self._unsubscribe(stored, stored.group.leaving)

    def _leave_all(self, stored: StoredGroup) -> None:
        """A group is only deleted when no update runs: then it subscribes to what its configuration says."""
        self._unsubscribe(stored, stored.group.configuration.subscribed)

    def _unsubscribe(self, stored: StoredGroup, names: frozenset[str]) -> None:
        group = stored.group
        for name in sorted(names):
            scope, stream = name.split("/")
            self._subscriptions.unsubscribe(scope, stream, group.scoped_name, stored.unchanged)

    def _open(self, stored: StoredGroup) -> None:
        self._records.finish(stored, settled(stored.group))
