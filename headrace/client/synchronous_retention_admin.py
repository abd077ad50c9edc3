"""`RetentionAdmin` and `SubscribersAdmin` for programs without an event loop; thread-safe.

Generated from `retention_admin.py` by `make synchronous`: change that file, not this one.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.retention import RetentionDescription, SubscriberView
from headrace.client.loop_thread import LoopThread
from headrace.client.retention_admin import AsyncRetentionAdmin, AsyncSubscribersAdmin
from headrace.model.stream_cuts import StreamCut


class RetentionAdmin:
    """Tells what retention does."""

    def __init__(self, thread: LoopThread, core: AsyncRetentionAdmin) -> None:
        self._thread = thread
        self._core = core

    def describe(self, scope: str, stream: str) -> RetentionDescription:
        """Raises NotFoundError if there is no such stream."""
        return self._thread.run(self._core.describe(scope, stream))


class SubscribersAdmin:
    """Registers subscribers and publishes for them; reader groups with a retention type do it by themselves."""

    def __init__(self, thread: LoopThread, core: AsyncSubscribersAdmin) -> None:
        self._thread = thread
        self._core = core

    def list(self, scope: str, stream: str) -> list[SubscriberView]:
        """All subscribers of a stream, by name."""
        return self._thread.run(self._core.list(scope, stream))

    def get(self, scope: str, stream: str, subscriber: str) -> SubscriberView:
        """Raises NotFoundError, code "subscriber_not_found"."""
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
        """Lets retention wait for a reader group from `start` on, or from the head; doing it twice changes nothing.

        Raises:
            InvalidRequestError: code "stream_cut_not_valid".
            IllegalStateError: code "generation_mismatch": the group is in a later generation.
        """
        return self._thread.run(self._core.register(scope, stream, subscriber, generation=generation, start=start))

    def publish(
        self, scope: str, stream: str, subscriber: str, cut: StreamCut | Mapping[int, int], *, generation: int = 0
    ) -> SubscriberView:
        """Nothing before `cut` is needed any more; doing it twice changes nothing.

        Raises:
            NotFoundError: code "subscriber_not_found".
            InvalidRequestError: code "stream_cut_not_valid": it is none of the stream, or lies before the last one.
            IllegalStateError: code "generation_mismatch".
        """
        return self._thread.run(self._core.publish(scope, stream, subscriber, cut, generation=generation))

    def unregister(self, scope: str, stream: str, subscriber: str, *, generation: int | None = None) -> None:
        """Waits no longer; whatever the generation, unless one is given. Nothing happens if there is no subscriber."""
        self._thread.run(self._core.unregister(scope, stream, subscriber, generation=generation))
