"""The segment of a byte stream, and single requests to it."""

from __future__ import annotations

from headrace import wire
from headrace.api.segments import SegmentView
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.segment_connections import SegmentConnections
from headrace.client.single_segment.segment_requests import SegmentRequests
from headrace.model.errors import InvalidRequestError, NotFoundError
from headrace.model.names import segment_name

RETRY_TIMEOUT_S = 120.0


class ByteSegment:
    """The only segment of a stream, over connections of its own. Close them with `close`."""

    def __init__(
        self, admin: AsyncAdmin, scope: str, stream: str, segment_id: int, give_up_after_s: float = RETRY_TIMEOUT_S
    ) -> None:
        self.admin = admin
        self.scope, self.stream = scope, stream
        self.segment_id = segment_id
        self.name = segment_name(scope, stream, segment_id)
        self.give_up_after_s = give_up_after_s
        self.connections = SegmentConnections(admin, scope, stream)
        self._requests = SegmentRequests(self.connections, give_up_after_s)

    async def info(self) -> wire.StreamSegmentInfo:
        """Returns where the stream starts and ends, and whether it is sealed.

        Raises:
            NotFoundError: the stream was deleted.
            UnavailableError: its store could not be reached for `give_up_after_s`.
        """
        try:
            return await self._requests.segment_info(self.segment_id, self.name)
        except NotFoundError as error:
            raise self.deleted() from error

    async def head_offset(self) -> int:
        """Returns the offset of the first byte that is left. Raises as `info`."""
        return (await self.info()).start_offset

    async def tail_offset(self) -> int:
        """Returns the offset after the last byte. Raises as `info`."""
        return (await self.info()).write_offset

    async def truncate_data_before(self, offset: int) -> None:
        """Removes the bytes before an offset. Does nothing if they are removed already.

        Raises:
            InvalidRequestError: the stream ends before the offset.
            HeadraceError: as `info`.
        """
        try:
            truncated = offset >= 0 and await self._requests.truncate_segment(self.segment_id, self.name, offset)
        except NotFoundError as error:
            raise self.deleted() from error
        if not truncated:
            raise InvalidRequestError(
                f"byte stream {self.scope}/{self.stream} cannot be truncated at offset {offset}: it has no such offset",
                details={"offset": offset},
            )

    def deleted(self) -> NotFoundError:
        return NotFoundError(f"byte stream {self.scope}/{self.stream} was deleted")

    async def close(self) -> None:
        """Closes the connections."""
        await self.connections.close()


async def only_segment(admin: AsyncAdmin, scope: str, stream: str) -> SegmentView:
    """Returns the segment of a stream that has one; the last one if the stream is sealed.

    Raises:
        NotFoundError: there is no such stream.
        InvalidRequestError: code "not_one_segment": the stream has several open segments.
    """
    current = await admin.epoch_segments(scope, stream)
    if current.sealed:
        current = await admin.epoch_segments(scope, stream, epoch=current.epoch)
    segments = current.segments
    if len(segments) != 1:
        raise InvalidRequestError(
            f"stream {scope}/{stream} has {len(segments)} segments: create one of exactly one segment",
            details={"segments": len(segments)},
            code="not_one_segment",
        )
    return segments[0]
