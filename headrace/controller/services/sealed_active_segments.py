"""Active segments that their stores have sealed although no operation did: they are replaced.

A client with a token to manage can seal a segment over the wire. Writers then ask for its successors, and so do
readers at its end. Without this they would ask for ever, because the controller takes the segment for an active one. A
scale replaces it by one of the same key range, as if an operator had asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from headrace.controller.acceptance import Acceptance
from headrace.metadata.stream_records import StoredStream
from headrace.model.errors import ConflictError, NotFoundError, UnavailableError
from headrace.model.names import segment_name
from headrace.model.streams import may_have_sealed_by_clients
from headrace.ports.metadata_store import WriteConflictError
from headrace.ports.segment_stores import SegmentStores

_log = logging.getLogger(__name__)


class SealedActiveSegments:
    """Safe for any number of threads and processes: of several that find a segment, one replaces it."""

    def __init__(self, segment_stores: SegmentStores, acceptance: Callable[[], Acceptance]) -> None:
        self._segment_stores = segment_stores
        self._acceptance = acceptance

    def replace_if_sealed(self, stored: StoredStream, identifier: int) -> None:
        """Accept a scale that replaces a segment that is active in `stored`, if its store has sealed it.

        One request to the store. It is not sent while an operation runs that may itself seal the segment. The caller
        asks again in any case, so that a store that is away and a stream that has just changed are no errors.
        """
        stream = stored.stream
        if not may_have_sealed_by_clients(stream):
            return
        name = segment_name(stream.scope, stream.name, identifier)
        with suppress(NotFoundError, UnavailableError):
            if self._segment_stores.segment_info(name).is_sealed:
                self._replace(stored, identifier, name)

    def _replace(self, stored: StoredStream, identifier: int, name: str) -> None:
        from headrace.controller.operations import scale_stream

        with suppress(ConflictError, WriteConflictError):
            scale_stream.accept_replacement(self._acceptance(), stored, identifier)
            _log.warning("segment %s was sealed by a client: a scale replaces it", name)
