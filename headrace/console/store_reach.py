"""Whether this machine reaches the segment stores: one answer for all pages, so that they do not wait in turn.

The controller names a store, and a connection is opened and closed. A machine outside the VPC waits REACH_TIMEOUT_S
for it, once in LOST_S.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import datetime

from headrace.api.segments import SegmentEndpoint
from headrace.cli.parameters import ScopedName
from headrace.client import Headrace, StreamCut
from headrace.model.errors import UnavailableError

REACH_TIMEOUT_S = 2.0
LOST_S = 30.0
"""After a store was not reached, pages read from S3 for so long before one of them tries again."""

REACHED_S = 10.0
"""After a store was reached, pages do not ask again for so long."""

STORE_PATIENCE_S = 2.0
"""How long a page tries a store that was reached a moment ago."""

AWAY = "no segment store can be reached from here"


class StoreReach:
    """Safe for any number of threads: a lost update costs one more connection. `now_s` never goes back."""

    def __init__(self, client: Headrace, now_s: Callable[[], float]) -> None:
        self._client = client
        self._now_s = now_s
        self._known: tuple[bool, float] | None = None
        """What was found out, and until when it counts."""

    def to_stream(self, stream: ScopedName) -> bool:
        """Whether the store of a segment of the stream was reached just now, or any store a moment ago."""

        def find() -> SegmentEndpoint | None:
            admin = self._client.admin
            current = admin.epoch_segments(*stream)
            if current.sealed:
                current = admin.epoch_segments(*stream, epoch=current.epoch)
            return admin.endpoint(*stream, current.segments[0].segment_id) if current.segments else None

        return self._found(find)

    def to_group(self, group: ScopedName) -> bool:
        """As `to_stream`, for the state of a reader group."""
        return self._found(lambda: self._client.admin.reader_groups.state_segment_endpoint(*group))

    def to_table(self, table: ScopedName) -> bool:
        """As `to_stream`, for a key-value table."""

        def find() -> SegmentEndpoint:
            tables = self._client.admin.tables
            return tables.endpoint(*table, tables.segments(*table).segments[0].segment_id)

        return self._found(find)

    def cut_at(self, stream: ScopedName, time: datetime) -> StreamCut:
        """The stream cut at a time, which only stores know. Raises UnavailableError at once if none is reached."""
        if not self.to_stream(stream):
            raise UnavailableError(
                f"only the segment stores know where a time is, and {AWAY}: choose earliest, latest or a stream cut"
            )
        return self._client.stream_cut_at(*stream, time)

    def lost(self) -> None:
        """Notes that a store did not answer."""
        self._note(is_reached=False)

    def _found(self, find: Callable[[], SegmentEndpoint | None]) -> bool:
        known = self._known
        if known is not None and self._now_s() < known[1]:
            return known[0]
        return self._note(is_reached=_is_reached(find))

    def _note(self, *, is_reached: bool) -> bool:
        self._known = is_reached, self._now_s() + (REACHED_S if is_reached else LOST_S)
        return is_reached


def _is_reached(find: Callable[[], SegmentEndpoint | None]) -> bool:
    try:
        endpoint = find()
        if endpoint is not None:
            socket.create_connection((endpoint.host, endpoint.port), REACH_TIMEOUT_S).close()
    except (UnavailableError, OSError):
        return False
    return True
