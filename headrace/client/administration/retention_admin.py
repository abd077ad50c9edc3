"""Retention and subscribers for programs: `admin.retention` and `admin.subscribers`."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from headrace.api.retention import (
    RegisterSubscriberRequest,
    RetentionDescription,
    SubscriberPositionRequest,
    SubscriberView,
)
from headrace.api.stream_cuts import offsets_json, optional_offsets_json
from headrace.client.administration.polling import items_of_pages
from headrace.client.http_api import HttpApi, parsed
from headrace.model.arguments import checked_calls
from headrace.model.limits import PAGE_ITEMS_MAX
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.stream_cuts import StreamCut
from headrace.model.subscribers import check_subscriber_name


@checked_calls()
class AsyncRetentionAdmin:
    """Describes the retention of a stream."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def describe(self, scope: str, stream: str) -> RetentionDescription:
        """Returns the retained data and the next truncation. Raises NotFoundError if there is no such stream."""
        return parsed(
            RetentionDescription.from_json, await self._api.request("GET", f"{_stream(scope, stream)}/retention")
        )


@checked_calls()
class AsyncSubscribersAdmin:
    """Registers subscribers and publishes their positions. Reader groups with a retention type do this themselves."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def list(self, scope: str, stream: str) -> list[SubscriberView]:
        """Returns all subscribers of a stream, sorted by name."""
        return [
            item
            async for item in items_of_pages(
                self._api,
                f"{_stream(scope, stream)}/subscribers",
                "subscribers",
                SubscriberView.from_json,
                {"limit": PAGE_ITEMS_MAX},
            )
        ]

    async def get(self, scope: str, stream: str, subscriber: str) -> SubscriberView:
        """Returns a subscriber. Raises NotFoundError, code "subscriber_not_found"."""
        return parsed(SubscriberView.from_json, await self._api.request("GET", _path(scope, stream, subscriber)))

    async def register(
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
        body = RegisterSubscriberRequest(generation, optional_offsets_json(start)).to_json()
        return parsed(
            SubscriberView.from_json, await self._api.request("PUT", _path(scope, stream, subscriber), body=body)
        )

    async def publish(
        self, scope: str, stream: str, subscriber: str, cut: StreamCut | Mapping[int, int], *, generation: int = 0
    ) -> SubscriberView:
        """Records that the subscriber needs no data before `cut`. A repeat changes nothing.

        Raises:
            NotFoundError: code "subscriber_not_found".
            InvalidRequestError: code "stream_cut_not_valid": another stream's cut, or one before the last position.
            IllegalStateError: code "generation_mismatch".
        """
        body = SubscriberPositionRequest(generation=generation, position=offsets_json(cut)).to_json()
        path = f"{_path(scope, stream, subscriber)}/position"
        return parsed(SubscriberView.from_json, await self._api.request("PUT", path, body=body))

    async def unregister(self, scope: str, stream: str, subscriber: str, *, generation: int | None = None) -> None:
        """Removes a subscriber, so that retention does not wait for it. Does nothing if there is no such subscriber.

        With `generation`, it removes only a subscriber of this generation.
        """
        query: dict[str, str | int] = {} if generation is None else {"generation": generation}
        await self._api.request("DELETE", _path(scope, stream, subscriber), query=query)


def _stream(scope: str, stream: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{check_stream_name(stream)}"


def _path(scope: str, stream: str, subscriber: str) -> str:
    return f"{_stream(scope, stream)}/subscribers/{quote(check_subscriber_name(subscriber), safe='')}"
