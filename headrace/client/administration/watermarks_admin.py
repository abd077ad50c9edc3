"""Watermarks over the controller's HTTP API: `admin.watermarks`.

Writers and readers call this API themselves (`note_time`, `time_window`). Use it for programs that do not use this
client's writers and know their positions.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.api.segments import SegmentEndpoint
from headrace.api.stream_cuts import offsets_json
from headrace.api.watermarks import NewestWatermark, PositionRequest
from headrace.client.http_api import HttpApi, parsed
from headrace.model.arguments import checked_calls
from headrace.model.names import check_scope_name, check_stream_name, mark_stream_name
from headrace.model.writer_marks import check_writer_name


@checked_calls()
class AsyncWatermarksAdmin:
    """Records the times of writers, and returns the newest watermark."""

    def __init__(self, api: HttpApi) -> None:
        self._api = api

    async def note_position(self, scope: str, stream: str, writer: str, time: int, offsets: Mapping[int, int]) -> None:
        """Records that a writer had written all its events before `time` when it reached these offsets.

        `offsets` are in bytes, by segment id.

        Raises:
            InvalidRequestError: code "invalid_time" or "invalid_position": the writer has already recorded a later one,
                or the stream never had such a segment; code "too_many_writers".
            NotFoundError: there is no such stream.
        """
        body = PositionRequest(time, offsets_json(offsets)).to_json()
        await self._api.request("PUT", f"{_writer_path(scope, stream, writer)}/position", body=body)

    async def remove_writer(self, scope: str, stream: str, writer: str) -> None:
        """Removes a writer, so that watermarks do not wait for it.

        Raises NotFoundError if there is no such stream; with code "writer_not_found" if the writer has no record.
        """
        await self._api.request("DELETE", _writer_path(scope, stream, writer))

    async def newest(self, scope: str, stream: str) -> NewestWatermark:
        """Returns the newest watermark. Raises NotFoundError if there is no such stream."""
        return parsed(
            NewestWatermark.from_json, await self._api.request("GET", f"{_stream_path(scope, stream)}/watermark")
        )

    async def mark_segment_endpoint(self, scope: str, stream: str) -> SegmentEndpoint:
        """Returns the address of the store of the stream's mark segment."""
        path = f"/v1/scopes/{check_scope_name(scope)}/streams/{mark_stream_name(check_stream_name(stream))}"
        answer = await self._api.request("GET", f"{path}/segments/0/endpoint", query=self._api.network_query)
        return parsed(SegmentEndpoint.from_json, answer)


def _stream_path(scope: str, stream: str) -> str:
    return f"/v1/scopes/{check_scope_name(scope)}/streams/{check_stream_name(stream)}"


def _writer_path(scope: str, stream: str, writer: str) -> str:
    return f"{_stream_path(scope, stream)}/writers/{check_writer_name(writer)}"
