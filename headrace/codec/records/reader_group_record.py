"""The current record of a reader group: configuration, generation, state and pending request, in one read.

A deleted group leaves a tombstone, whose version continues to grow, so that a process that read the record of an
earlier incarnation cannot write that of the present one. The entry in the list of a scope's groups is deleted.
"""

from __future__ import annotations

from typing import Any

from headrace.codec.records.bodies import Body, decoded, versioned
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroup,
    ReaderGroupConfiguration,
    ReaderGroupState,
    RetentionMode,
)
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_cuts import StreamCut

GROUP_SORT = "current"


def group_partition(scope: str, group: str) -> str:
    return f"reader-group/{scope}/{group}"


def groups_listing_partition(scope: str) -> str:
    return f"scope-reader-groups/{scope}"


def groups_listing_body() -> dict[str, Any]:
    return versioned()


def group_body(group: ReaderGroup) -> dict[str, Any]:
    pending = group.pending
    return versioned(
        scope=group.scope,
        name=group.name,
        id=group.group_id,
        generation=group.generation,
        state=str(group.state),
        configuration=_configuration_fields(group.configuration),
        leaving=sorted(group.leaving),
        pending=[str(pending.kind), pending.request_id] if pending else None,
    )


def group_of_body(body: Body) -> ReaderGroup | None:
    """The reader group; None for a tombstone."""
    return None if body.get("gone") else decoded("reader group", body, _group)


def group_tombstone_body() -> dict[str, Any]:
    return versioned(gone=True)


def _group(body: Body) -> ReaderGroup:
    pending = body["pending"]
    return ReaderGroup(
        scope=str(body["scope"]),
        name=str(body["name"]),
        group_id=str(body["id"]),
        generation=int(body["generation"]),
        state=ReaderGroupState(body["state"]),
        configuration=_configuration(body["configuration"]),
        leaving=frozenset(str(name) for name in body["leaving"]),
        pending=PendingRequest(RequestKind(pending[0]), str(pending[1])) if pending is not None else None,
    )


def _configuration_fields(configuration: ReaderGroupConfiguration) -> dict[str, Any]:
    return {
        "streams": [[one.scope, one.stream, _cut(one.start), _cut(one.end)] for one in configuration.streams],
        "retention": str(configuration.retention),
        "group_refresh_ms": configuration.group_refresh_ms,
        "automatic_checkpoint_interval_ms": configuration.automatic_checkpoint_interval_ms,
        "outstanding_checkpoints_max": configuration.outstanding_checkpoints_max,
        "rollover_size_bytes": configuration.rollover_size_bytes,
    }


def _configuration(fields: Body) -> ReaderGroupConfiguration:
    return ReaderGroupConfiguration(
        streams=tuple(_stream(*row) for row in fields["streams"]),
        retention=RetentionMode(fields["retention"]),
        group_refresh_ms=int(fields["group_refresh_ms"]),
        automatic_checkpoint_interval_ms=int(fields["automatic_checkpoint_interval_ms"]),
        outstanding_checkpoints_max=int(fields["outstanding_checkpoints_max"]),
        rollover_size_bytes=int(fields["rollover_size_bytes"]),
    )


def _cut(cut: StreamCut | None) -> list[list[int]] | None:
    return None if cut is None else [list(position) for position in cut.positions]


def _stream(scope: str, stream: str, start: Any, end: Any) -> GroupStream:
    return GroupStream(scope, stream, _cut_of(scope, stream, start), _cut_of(scope, stream, end))


def _cut_of(scope: str, stream: str, rows: Any) -> StreamCut | None:
    if rows is None:
        return None
    return StreamCut(scope, stream, tuple((int(identifier), int(offset)) for identifier, offset in rows))
