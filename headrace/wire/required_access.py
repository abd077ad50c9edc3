"""What a command with a delegation token needs of it: the segments, and the level of access to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.model import names
from headrace.model.access import Access, is_reader_group_segment, is_table_segment
from headrace.model.segment_attributes import is_core
from headrace.wire.append import SetupAppend
from headrace.wire.fields import WireCommand
from headrace.wire.segments import (
    CreateSegment,
    CreateTransientSegment,
    DeleteSegment,
    DeleteSegmentUpTo,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    LocateOffset,
    MergeSegments,
    MergeSegmentsBatch,
    ReadSegment,
    SealSegment,
    TruncateSegment,
    TruncateSegmentUpTo,
    UpdateSegmentAttribute,
    UpdateSegmentAttributeUpTo,
    UpdateSegmentPolicy,
)
from headrace.wire.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    UpdateTableEntries,
)

REQUIRED_ACCESS: Final[dict[type[WireCommand], Access]] = {
    ReadSegment: Access.READ,
    GetStreamSegmentInfo: Access.READ,
    GetSegmentAttribute: Access.READ,
    LocateOffset: Access.READ,
    GetTableSegmentInfo: Access.READ,
    ReadTable: Access.READ,
    ReadTableKeys: Access.READ,
    ReadTableEntries: Access.READ,
    ReadTableEntriesDelta: Access.READ,
    SetupAppend: Access.READ_UPDATE,
    CreateTransientSegment: Access.READ_UPDATE,
    TruncateSegment: Access.MANAGE,
    TruncateSegmentUpTo: Access.MANAGE,
    SealSegment: Access.MANAGE,
    UpdateTableEntries: Access.READ_UPDATE,
    RemoveTableKeys: Access.READ_UPDATE,
    CreateSegment: Access.ADMIN,
    DeleteSegment: Access.ADMIN,
    DeleteSegmentUpTo: Access.ADMIN,
    UpdateSegmentPolicy: Access.ADMIN,
    UpdateSegmentAttribute: Access.ADMIN,
    UpdateSegmentAttributeUpTo: Access.ADMIN,
    MergeSegments: Access.ADMIN,
    MergeSegmentsBatch: Access.ADMIN,
    CreateTableSegment: Access.ADMIN,
    DeleteTableSegment: Access.ADMIN,
}
"""The level that each command needs to its segments. `required_access` has the exceptions, which need less.

Appends have no token: the SetupAppend of their writer was checked.
"""


def required_access(command: Any) -> tuple[Access, Sequence[str]]:
    """The level that a command of REQUIRED_ACCESS needs, and the segments to each of which it needs it.

    Writers of large events merge their own transient segments into the segment that they write to. Clients create and
    delete the segments of their tables. They change all attributes but those of the store, as the scaling policy.
    Readers of a group truncate its state, which they write.
    """
    access = REQUIRED_ACCESS[type(command)]
    if isinstance(command, MergeSegments | MergeSegmentsBatch):
        sources = command.sources if isinstance(command, MergeSegmentsBatch) else (command.source,)
        updates = () if isinstance(command, MergeSegmentsBatch) else command.attribute_updates
        is_own = sources and all(names.is_transient_segment_of(source, command.target) for source in sources)
        if is_own and not any(is_core(update.attribute_id) for update in updates):
            access = Access.READ_UPDATE
        return access, (command.target, *sources)
    if isinstance(command, CreateTableSegment | DeleteTableSegment) and is_table_segment(command.segment):
        access = Access.READ_UPDATE
    if access is Access.MANAGE and is_reader_group_segment(command.segment):
        access = Access.READ_UPDATE
    if isinstance(command, UpdateSegmentAttribute | UpdateSegmentAttributeUpTo):
        access = Access.ADMIN if is_core(command.attribute_id) else Access.READ_UPDATE
    return access, (command.parent_segment if isinstance(command, CreateTransientSegment) else command.segment,)
