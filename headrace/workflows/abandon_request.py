"""Gives up a request that cannot get going, so that its subject is usable again: the end of a dead letter.

A scale can be given up while its epoch is not on record yet, for then nothing irrevocable has happened. Segments that
it may have created stay behind, empty: the next scale has the same numbers and takes them over. To remove them here
would be wrong, since a processor that is late could put the epoch on record at the same moment.

Requests of other kinds are never given up: each of their steps can be repeated for ever, and the sweeper does.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.metadata import keys
from headrace.metadata.stream_records import StreamRecords, delete_intent
from headrace.model.errors import IllegalStateError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.streams import scaling_abandoned
from headrace.ports.metadata_store import Delete, MetadataStore


def abandon_request(store: MetadataStore, scope: str, name: str, request: PendingRequest) -> None:
    """Undo what `request` began, if its kind is one that can be given up.

    Raises:
        NotFoundError: there is no such stream.
        IllegalStateError: `request` does not run (any more), or it must complete: its kind is none that can be given
            up, or it has gone too far.
        WriteConflictError: the workflow was faster; look again.
    """
    give_up = _GIVE_UP.get(request.kind)
    if give_up is None:
        raise IllegalStateError(f"a {request.kind} request is never given up: replay it when its cause is mended")
    give_up(store, scope, name, request)


def _abandon_scale(store: MetadataStore, scope: str, stream: str, request: PendingRequest) -> None:
    """Roll the stream back to ACTIVE from the scale that `request` asked for."""
    records = StreamRecords(store)
    stored = records.get(scope, stream)
    if not stored.stream.is_pending(request):
        raise IllegalStateError(f"{request.request_id} does not run on {stored.stream.scoped_name}")
    records.replace(
        stored,
        scaling_abandoned(stored.stream),
        Delete(keys.transition_key(scope, stream), None),
        delete_intent(stored.stream),
    )


_GIVE_UP: dict[RequestKind, Callable[[MetadataStore, str, str, PendingRequest], None]] = {
    RequestKind.SCALE_STREAM: _abandon_scale,
}
"""How a request of each kind is undone; what is not here must complete."""
