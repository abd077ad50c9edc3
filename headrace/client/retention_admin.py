"""Retention and subscribers for programs: `admin.retention` and `admin.subscribers`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headrace.client.http_api import HttpApi, parsed
from headrace.model.limits import PAGE_ITEMS_MAX
from headrace.model.names import check_scope_name, check_stream_name
from headrace.model.stream_configuration import RetentionPolicy, RetentionType
from headrace.model.stream_cuts import StreamCut
from headrace.model.subscribers import check_subscriber_name


@dataclass(frozen=True, slots=True)
class RetentionDescription:
    """What is kept of a stream, and what goes next. Sizes in bytes, times in milliseconds since the Unix epoch.

    Every event that is still there was written after `oldest_event_ms`. If it were decided now, `next_bytes` would go
    and the stream would begin at `next_cut` (None: nothing would go), because of `case`, which `why` puts into words.
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


@dataclass(frozen=True, slots=True)
class SubscriberView:
    """A reader group that retention waits for; `offsets` by segment id: nothing before them is needed any more."""

    subscriber: str
    generation: int
    offsets: Mapping[int, int]
    updated_ms: int


class AsyncRetentionAdmin:
    """Tells what retention does."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def describe(self, scope: str, stream: str) -> RetentionDescription:
        """Raises NotFoundError if there is no such stream."""
        return parsed(_description, await self._api.request("GET", f"{_stream(scope, stream)}/retention"))


class AsyncSubscribersAdmin:
    """Registers subscribers and publishes for them; reader groups with a retention type do it by themselves."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def list(self, scope: str, stream: str) -> list[SubscriberView]:
        """All subscribers of a stream, by name."""
        return [one async for one in self._pages(scope, stream)]

    async def get(self, scope: str, stream: str, subscriber: str) -> SubscriberView:
        """Raises NotFoundError, code "subscriber_not_found"."""
        return parsed(_subscriber, await self._api.request("GET", _path(scope, stream, subscriber)))

    async def register(
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
        body = {"generation": generation, "streamCut": None if start is None else _offsets(start)}
        return parsed(_subscriber, await self._api.request("PUT", _path(scope, stream, subscriber), body=body))

    async def publish(
        self, scope: str, stream: str, subscriber: str, cut: StreamCut | Mapping[int, int], *, generation: int = 0
    ) -> SubscriberView:
        """Nothing before `cut` is needed any more; doing it twice changes nothing.

        Raises:
            NotFoundError: code "subscriber_not_found".
            InvalidRequestError: code "stream_cut_not_valid": it is none of the stream, or lies before the last one.
            IllegalStateError: code "generation_mismatch".
        """
        body = {"generation": generation, "streamCut": _offsets(cut)}
        path = f"{_path(scope, stream, subscriber)}/position"
        return parsed(_subscriber, await self._api.request("PUT", path, body=body))

    async def unregister(self, scope: str, stream: str, subscriber: str, *, generation: int | None = None) -> None:
        """Waits no longer; whatever the generation, unless one is given. Nothing happens if there is no subscriber."""
        query: dict[str, str | int] = {} if generation is None else {"generation": generation}
        await self._api.request("DELETE", _path(scope, stream, subscriber), query=query)

    async def _pages(self, scope: str, stream: str) -> AsyncIterator[SubscriberView]:
        path, token = f"{_stream(scope, stream)}/subscribers", None
        while True:
            query: dict[str, str | int] = {"limit": PAGE_ITEMS_MAX}
            if token:
                query["continuationToken"] = token
            found, token = parsed(_page, await self._api.request("GET", path, query=query))
            for one in found:
                yield one
            if token is None:
                return


def _stream(scope: str, stream: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{check_stream_name(stream)}"


def _path(scope: str, stream: str, subscriber: str) -> str:
    return f"{_stream(scope, stream)}/subscribers/{quote(check_subscriber_name(subscriber), safe='')}"


def _offsets(cut: StreamCut | Mapping[int, int]) -> dict[str, int]:
    offsets = cut.offsets if isinstance(cut, StreamCut) else cut
    return {str(segment): offset for segment, offset in offsets.items()}


def _page(answer: Mapping[str, Any]) -> tuple[tuple[SubscriberView, ...], str | None]:
    token = answer["continuationToken"]
    return tuple(map(_subscriber, answer["subscribers"])), None if token is None else str(token)


def _subscriber(answer: Mapping[str, Any]) -> SubscriberView:
    return SubscriberView(
        subscriber=str(answer["subscriber"]),
        generation=int(answer["generation"]),
        offsets={int(segment): int(offset) for segment, offset in answer["streamCut"].items()},
        updated_ms=int(answer["updated"]),
    )


def _description(answer: Mapping[str, Any]) -> RetentionDescription:
    policy, following = answer["retentionPolicy"], answer["nextTruncation"]
    cut = following["streamCut"]
    return RetentionDescription(
        policy=RetentionPolicy(RetentionType(policy["type"]), int(policy["value"]), policy.get("maxValue") or None)
        if policy
        else None,
        time_ms=int(answer["time"]),
        oldest_event_ms=int(answer["oldestEventAfter"]),
        kept_bytes=int(answer["keptBytes"]),
        retention_set=int(answer["retentionSet"]),
        oldest_cut_ms=_optional(answer["oldestCutTime"]),
        newest_cut_ms=_optional(answer["newestCutTime"]),
        subscribers=int(answer["subscribers"]),
        next_cut_time_ms=_optional(answer["nextCutTime"]),
        next_bytes=int(following["bytes"]),
        next_cut=None if cut is None else _cut(cut),
        case=str(following["case"]),
        why=str(following["why"]),
    )


def _cut(answer: Mapping[str, Any]) -> StreamCut:
    offsets = {int(segment): int(offset) for segment, offset in answer["cut"].items()}
    return StreamCut.of(str(answer["scopeName"]), str(answer["streamName"]), offsets)


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)
