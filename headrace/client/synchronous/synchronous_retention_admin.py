"""`RetentionAdmin` and `SubscribersAdmin` for programs without an event loop; thread-safe.

Generated from `administration.retention_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.retention import RetentionDescription, SubscriberView
from headrace.client.administration.retention_admin import AsyncRetentionAdmin, AsyncSubscribersAdmin
from headrace.client.loop_thread import LoopCaller
from headrace.model.stream_cuts import StreamCut


class RetentionAdmin:
    """Describes the retention of a stream."""

    def __init__(self, thread: LoopCaller, core: AsyncRetentionAdmin) -> None:
        self._thread = thread
        self._core = core

    def describe(self, scope: str, stream: str) -> RetentionDescription:
        """Returns the retained data and the next truncation. Raises NotFoundError if there is no such stream."""
        return self._thread.run(self._core.describe(scope, stream))


class SubscribersAdmin:
    """Registers subscribers and publishes their positions. Reader groups with a retention type do this themselves."""

    def __init__(self, thread: LoopCaller, core: AsyncSubscribersAdmin) -> None:
        self._thread = thread
        self._core = core

    def list(self, scope: str, stream: str) -> list[SubscriberView]:
        """Returns all subscribers of a stream, sorted by name."""
        return self._thread.run(self._core.list(scope, stream))

    def get(self, scope: str, stream: str, subscriber: str) -> SubscriberView:
        """Returns a subscriber. Raises NotFoundError, code "subscriber_not_found"."""
        return self._thread.run(self._core.get(scope, stream, subscriber))

    def register(
        self,
        scope: str,
        stream: str,
        subscriber: str,
        *,
        generation: int = 0,
        start: StreamCut | Mapping[int, int] | None = None,
    ) -> SubscriberView:
        """Makes retention keep the data from `start`, or from the head, for a reader group. A repeat changes nothing.

        Raises:
            InvalidRequestError: code "stream_cut_not_valid".
            IllegalStateError: code "generation_mismatch": the group has a later generation.
        """
        return self._thread.run(self._core.register(scope, stream, subscriber, generation=generation, start=start))

    def publish(
        self, scope: str, stream: str, subscriber: str, cut: StreamCut | Mapping[int, int], *, generation: int = 0
    ) -> SubscriberView:
        """Records that the subscriber needs no data before `cut`. A repeat changes nothing.

        Raises:
            NotFoundError: code "subscriber_not_found".
            InvalidRequestError: code "stream_cut_not_valid": another stream's cut, or one before the last position.
            IllegalStateError: code "generation_mismatch".
        """
        return self._thread.run(self._core.publish(scope, stream, subscriber, cut, generation=generation))

    def unregister(self, scope: str, stream: str, subscriber: str, *, generation: int | None = None) -> None:
        """Removes a subscriber, so that retention does not wait for it. Does nothing if there is no such subscriber.

        With `generation`, it removes only a subscriber of this generation.
        """
        self._thread.run(self._core.unregister(scope, stream, subscriber, generation=generation))
