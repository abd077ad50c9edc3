"""The bytes of segment ranges of one stream, for threads without an event loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.api.delegation_tokens import IssuedToken
from headrace.api.plans import Chunk
from headrace.api.segments import SegmentEndpoint
from headrace.client.reading.segment_reads import SegmentReads
from headrace.client.synchronous.synchronous_admin import Admin


class StreamRanges:
    """One stream; a `range_bytes.SegmentSource`. Not for use by several threads at once; not picklable."""

    def __init__(self, admin: Admin, scope: str, stream: str, *, give_up_after_s: float = 60.0) -> None:
        """After `give_up_after_s` without progress, reads raise the last error."""
        self._admin = admin
        self._tokens = admin.delegation_tokens
        self._scope, self._stream = scope, stream
        self._reads = SegmentReads(admin, scope, stream, give_up_after_s=give_up_after_s)

    def chunks(self, segment_id: int, start: int, stop: int, limit: int) -> Sequence[Chunk]:
        return self._admin.chunks(
            self._scope, self._stream, segment_id, from_offset=start, to_offset=stop, limit=limit
        ).chunks

    def expect(self, segment_id: int, endpoint: SegmentEndpoint) -> None:
        """See `SegmentReads.expect`."""
        self._reads.expect(segment_id, endpoint)

    def offer(self, token: IssuedToken) -> None:
        """See `AsyncDelegationTokens.offer`."""
        self._tokens.offer(self._scope, self._stream, token)

    def read(self, segment_id: int, start: int, stop: int) -> Iterator[memoryview]:
        return self._reads.read(segment_id, start, stop)

    def close(self) -> None:
        """Closes the connections to the stores."""
        self._reads.close()
