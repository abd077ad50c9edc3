"""The rpcs of Pravega's controller service, which call the same controller services as the HTTP API.

Each method gets the request message and returns the reply; `status_codes.py` maps errors to statuses. Synchronous
methods block and are called in threads. The asynchronous ones wait for a workflow on the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.api.streams import ScaleStatus, StreamSummary
from headrace.bridge import controller_pb2 as pb
from headrace.bridge import messages
from headrace.bridge.messages import continuation
from headrace.bridge.waiting import Waits
from headrace.controller.services.scope_deletion import ScopeDeletionService
from headrace.controller.services.scope_service import ScopeService
from headrace.controller.services.segment_service import SegmentService
from headrace.controller.services.stream_service import StreamService
from headrace.model.errors import AlreadyExistsError, ConflictError, NotFoundError, SealedError, UnavailableError
from headrace.model.external_access import Network
from headrace.model.limits import PAGE_ITEMS_MAX
from headrace.model.stream_cuts import END_OF_SEGMENT

Rpc = Callable[[Any], Any | Awaitable[Any]]

_SCALE_STATUS = {
    ScaleStatus.IN_PROGRESS: pb.ScaleStatusResponse.IN_PROGRESS,
    ScaleStatus.SUCCESS: pb.ScaleStatusResponse.SUCCESS,
    ScaleStatus.INVALID: pb.ScaleStatusResponse.INVALID_INPUT,
}


class ControllerService:
    """The rpcs on scopes and streams. `own_address` returns the host and port at which clients reach this bridge.

    With `names_stores` clients are told the DNS names of stores that have a certificate, and not their addresses: they
    check what they are told against the certificate. `store_name` is a name that all certificates have, and that
    clients are told then. `network` is that of the clients.
    """

    def __init__(
        self,
        scopes: ScopeService,
        streams: StreamService,
        segments: SegmentService,
        waits: Waits,
        own_address: Callable[[], tuple[str, int]],
        *,
        names_stores: bool = False,
        network: Network = Network.VPC,
        store_name: str = "",
    ) -> None:
        self._scopes = scopes
        self._streams = streams
        self._segments = segments
        self._waits = waits
        self._own_address = own_address
        self._names_stores = names_stores
        self._network = network
        self._store_name = store_name

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {
            "getControllerServerList": self.controllers,
            "createScope": self.create_scope,
            "deleteScope": self.delete_scope,
            "checkScopeExists": self.scope_exists,
            "listScopes": self.list_scopes,
            "createStream": self.create_stream,
            "getStreamConfiguration": self.stream_configuration,
            "checkStreamExists": self.stream_exists,
            "listStreamsInScope": self.list_streams,
            "listStreamsInScopeForTag": self.list_streams_for_tag,
            "sealStream": self.seal_stream,
            "deleteStream": self.delete_stream,
            "scale": self.scale,
            "checkScale": self.scale_status,
            "getCurrentSegments": self.current_segments,
            "getEpochSegments": self.epoch_segments,
            "getSegments": self.head_segments,
            "getSegmentsImmediatlyFollowing": self.successors,
            "getSegmentsImmediatelyFollowing": self.successors,
            "getSegmentsBetween": self.segments_between,
            "getURI": self.segment_uri,
            "isSegmentValid": self.is_segment_active,
            "getDelegationToken": self.delegation_token,
        }

    def controllers(self, request: pb.ServerRequest) -> pb.ServerResponse:
        host, port = self._own_address()
        return pb.ServerResponse(nodeURI=[pb.NodeUri(endpoint=host, port=port)])

    # Scopes

    def create_scope(self, request: pb.ScopeInfo) -> pb.CreateScopeStatus:
        self._scopes.create_scope(request.scope)
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SUCCESS)

    def delete_scope(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        self._scopes.delete_scope(messages.known_scope(request.scope))
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)

    def scope_exists(self, request: pb.ScopeInfo) -> pb.ExistsResponse:
        self._scopes.get_scope(messages.known_scope(request.scope))
        return pb.ExistsResponse(exists=True)

    def list_scopes(self, request: pb.ScopesRequest) -> pb.ScopesResponse:
        asked_after = request.continuationToken.token
        page = self._scopes.list_scopes(PAGE_ITEMS_MAX, asked_after or None)
        return pb.ScopesResponse(scopes=page.items, continuationToken=continuation(page, asked_after, str))

    # Streams

    async def create_stream(self, request: pb.StreamConfig) -> pb.CreateStreamStatus:
        """Return when the stream accepts events, also if its creation had already started."""
        scope, stream = request.streamInfo.scope, request.streamInfo.stream
        configuration = messages.configuration_of(request)
        what = f"creating stream {scope}/{stream}"
        exists: AlreadyExistsError | None = None
        try:
            await self._waits.accepted(what, lambda: self._streams.create_stream(scope, stream, configuration))
        except AlreadyExistsError as error:
            exists = error
        try:
            await self._waits.until(
                what,
                lambda: self._streams.get_stream(scope, stream),
                lambda view: view.state.is_readable,
            )
        except NotFoundError as error:
            raise UnavailableError(f"{what} was rolled back, or another client has deleted it: repeat") from error
        if exists is not None:
            raise exists
        return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SUCCESS)

    def stream_configuration(self, request: pb.StreamInfo) -> pb.StreamConfig:
        scope, stream = messages.known_stream(request)
        view = self._streams.get_stream(scope, stream)
        return messages.configuration_message(scope, stream, view.configuration)

    def stream_exists(self, request: pb.StreamInfo) -> pb.ExistsResponse:
        self._streams.get_stream(*messages.known_stream(request))
        return pb.ExistsResponse(exists=True)

    def list_streams(self, request: pb.StreamsInScopeRequest) -> pb.StreamsInScopeResponse:
        return self._list_streams(request.scope.scope, request.continuationToken.token, None)

    def list_streams_for_tag(self, request: pb.StreamsInScopeWithTagRequest) -> pb.StreamsInScopeResponse:
        return self._list_streams(request.scope.scope, request.continuationToken.token, request.tag)

    async def seal_stream(self, request: pb.StreamInfo) -> pb.UpdateStreamStatus:
        """Return when every segment is sealed."""
        scope, stream = messages.known_stream(request)
        what = f"sealing stream {scope}/{stream}"
        try:
            await self._waits.accepted(what, lambda: self._streams.seal_stream(scope, stream))
        except SealedError:
            return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.SUCCESS)
        await self._waits.until(
            what, lambda: self._streams.get_stream(scope, stream), lambda view: view.state.is_sealed
        )
        return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.SUCCESS)

    async def delete_stream(self, request: pb.StreamInfo) -> pb.DeleteStreamStatus:
        """Return when the stream is deleted and its name is free."""
        scope, stream = messages.known_stream(request)
        what = f"deleting stream {scope}/{stream}"
        await self._waits.accepted(what, lambda: self._streams.delete_stream(scope, stream))
        with contextlib.suppress(NotFoundError):
            await self._waits.until(
                what, lambda: self._streams.is_deleting(scope, stream), lambda is_deleting: not is_deleting
            )
        return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.SUCCESS)

    def scale(self, request: pb.ScaleRequest) -> pb.ScaleResponse:
        scope, stream = messages.known_stream(request.streamInfo)
        view = self._streams.scale_stream(
            scope, stream, list(request.sealedSegments), messages.key_ranges_of(request.newKeyRanges)
        )
        created = [messages.segment_range_message(scope, stream, segment) for segment in view.segments]
        return pb.ScaleResponse(status=pb.ScaleResponse.STARTED, segments=created, epoch=view.epoch)

    def scale_status(self, request: pb.ScaleStatusRequest) -> pb.ScaleStatusResponse:
        scope, stream = messages.known_stream(request.streamInfo)
        return pb.ScaleStatusResponse(status=_SCALE_STATUS[self._streams.scale_status(scope, stream, request.epoch)])

    # Segments

    def current_segments(self, request: pb.StreamInfo) -> pb.SegmentRanges:
        """The active segments; none if the stream is sealed."""
        scope, stream = messages.known_stream(request)
        tail = self._segments.segments_at_tail(scope, stream)
        return messages.segment_ranges_message(scope, stream, tail.segments)

    def epoch_segments(self, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
        scope, stream = messages.known_stream(request.streamInfo)
        recorded = self._segments.segments_of_epoch(scope, stream, request.epoch, as_recorded=True)
        return messages.segment_ranges_message(scope, stream, recorded.segments)

    def head_segments(self, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
        """The segments at the head: clients expect these for any time in the request."""
        scope, stream = messages.known_stream(request.streamInfo)
        head = self._segments.segments_at_head(scope, stream)
        return pb.SegmentsAtTime(
            segments=[
                pb.SegmentsAtTime.SegmentLocation(
                    segmentId=messages.segment_id_message(scope, stream, segment.segment_id),
                    offset=segment.start_offset,
                )
                for segment in head.segments
            ]
        )

    def successors(self, request: pb.SegmentId) -> pb.SuccessorResponse:
        """The successors of a segment, also of a truncated one, so that a reader of it can continue.

        An empty reply tells clients that the stream is sealed. So for an active segment this raises an error instead.
        """
        scope, stream = messages.known_stream(request.streamInfo)
        following = self._segments.successors(scope, stream, request.segmentId, as_recorded=True)
        if not (following.segments or following.sealed) and not self._is_ending(scope, stream):
            raise UnavailableError(f"segment {request.segmentId} of stream {scope}/{stream} is still active: repeat")
        return pb.SuccessorResponse(
            segments=[
                pb.SuccessorResponse.SegmentEntry(
                    segment=messages.segment_range_message(scope, stream, segment), value=segment.predecessors
                )
                for segment in following.segments
            ]
        )

    def segments_between(self, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
        """The segments between two cuts. Java clients send checkpoints that leave out what their readers finished."""
        scope, stream = messages.known_stream(request.streamInfo)
        start, end = messages.offsets_of(getattr(request, "from")), messages.offsets_of(request.to)
        between = self._segments.between(scope, stream, start, end, from_checkpoint=start is not None)
        # Clients count from offset -1 in the segments of the reply, so those that are read to their ends are left out.
        read = {segment for segment, offset in (start or {}).items() if offset == END_OF_SEGMENT}
        if start is not None:
            read = {offset for offset in between.start.offsets if offset in read or offset not in start}
        ids = [
            messages.segment_id_message(scope, stream, span.segment_id)
            for span in between.ranges
            if span.segment_id not in read
        ]
        return pb.StreamCutRangeResponse(segments=ids)

    def segment_uri(self, request: pb.SegmentId) -> pb.NodeUri:
        info = request.streamInfo
        endpoint = self._segments.endpoint(info.scope, info.stream, request.segmentId, self._network)
        has_name = self._names_stores and endpoint.tls_name
        host = (self._store_name or endpoint.tls_name) if has_name else endpoint.host
        return pb.NodeUri(endpoint=host, port=endpoint.port)

    def is_segment_active(self, request: pb.SegmentId) -> pb.SegmentValidityResponse:
        tail = self._segments.segments_at_tail(*messages.known_stream(request.streamInfo))
        active = any(segment.segment_id == request.segmentId for segment in tail.segments)
        return pb.SegmentValidityResponse(response=active)

    def delegation_token(self, request: pb.StreamInfo) -> pb.DelegationToken:
        """An empty token; in a deployment that requires tokens, `authentication.py` fills it in."""
        return pb.DelegationToken()

    def _list_streams(self, scope: str, asked_after: str, tag: str | None) -> pb.StreamsInScopeResponse:
        """A page of streams. Empty pages before the end are skipped, because an empty page ends a client's listing."""
        messages.known_scope(scope)
        page = self._streams.list_streams(scope, PAGE_ITEMS_MAX, asked_after or None, tag)
        while not page.items and page.next_after is not None:
            page = self._streams.list_streams(scope, PAGE_ITEMS_MAX, page.next_after, tag)
        return pb.StreamsInScopeResponse(
            streams=[pb.StreamInfo(scope=item.scope, stream=item.stream) for item in page.items],
            continuationToken=continuation(page, asked_after, _stream_name),
        )

    def _is_ending(self, scope: str, stream: str) -> bool:
        return not self._streams.get_stream(scope, stream).state.takes_events


def _stream_name(summary: StreamSummary) -> str:
    return summary.stream


# The rpc that deletes a scope with all of its resources.


class ScopeDeletionRpcs:
    """The rpc returns when the scope is deleted, as Pravega's clients expect."""

    def __init__(self, scopes: ScopeService, deletions: ScopeDeletionService, waits: Waits) -> None:
        self._scopes = scopes
        self._deletions = deletions
        self._waits = waits

    def rpcs(self) -> dict[str, Rpc]:
        """The rpcs by their names on the wire."""
        return {"deleteScopeRecursive": self.delete_scope_recursively}

    async def delete_scope_recursively(self, request: pb.ScopeInfo) -> pb.DeleteScopeStatus:
        scope = messages.known_scope(request.scope)
        what = f"deleting scope {scope}"
        await self._waits.accepted(what, lambda: self._deletions.delete_scope_recursively(scope))
        await self._waits.accepted(what, lambda: self._check_gone(scope))
        return pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SUCCESS)

    def _check_gone(self, scope: str) -> None:
        """Raises ConflictError while the scope is being deleted. An open scope was created again since the deletion."""
        try:
            if self._scopes.is_deleting(scope):
                raise ConflictError(f"scope {scope} is still being deleted")
        except NotFoundError:
            return
