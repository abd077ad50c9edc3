"""Rolling back a request on a stream: the end of a request whose message has failed for the last time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.controller.engine import Undo
from headrace.metadata.stream_indexes import unindex_tags
from headrace.metadata.stream_records import StoredStream, StreamRecords, delete_intent
from headrace.model.errors import IllegalStateError
from headrace.model.requests import PendingRequest
from headrace.model.streams import Stream
from headrace.ports.metadata_store import Write


def find_running(records: StreamRecords, scope: str, name: str, request: PendingRequest) -> StoredStream:
    """The stream on which `request` runs; one read.

    Raises:
        NotFoundError: the stream does not exist.
        IllegalStateError: the request waits for a batch of commits, or does not run.
    """
    stored = records.get(scope, name)
    if stored.stream.is_following(request):
        raise IllegalStateError(f"{request.request_id} waits for a batch of commits on {stored.stream.scoped_name}")
    if not stored.stream.is_pending(request):
        raise IllegalStateError(f"{request.request_id} does not run on {stored.stream.scoped_name}")
    return stored


def undo_on_stream(
    records: StreamRecords,
    stored: StoredStream,
    after: Stream,
    *writes: Write,
    parameters: Mapping[str, Any],
    added_tags: tuple[str, ...] = (),
) -> Undo:
    """The rollback to `after`, with the `writes` that belong to it and the deletion of the intent.

    `added_tags` may be in the index already. They are more than one write can contain, so they are removed first. A
    late process may add one again in between: the index only says which streams may have a tag.
    """

    def write(*others: Write) -> None:
        unindex_tags(records, stored, added_tags)
        records.replace(stored, after, *writes, delete_intent(stored.stream), *others)

    return Undo(parameters, write)
