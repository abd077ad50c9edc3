"""Key-value tables: the current record of a table, with its configuration and the one operation that may run.

The functions are pure: each returns the table after a change, or raises if the table's state does not allow the change.
A table is never scaled, so its segments stay the same from its creation to its deletion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from headrace.model.arguments import check_fields
from headrace.model.documents import Document, about
from headrace.model.errors import ConflictError, InvalidRequestError
from headrace.model.limits import TABLE_KEY_BYTES_MAX, TABLE_PARTITIONS_MAX
from headrace.model.log_classes import LogClass, first_number_of_class
from headrace.model.names import TABLE_SUFFIX, segment_name
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.segments import StreamSegment, equal_ranges, segment_id

_INT64_MAX = (1 << 63) - 1


class TableState(StrEnum):
    """The state of a table between its creation and its deletion."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


class TableConfiguration(Document, frozen=True):
    """The configuration of a table, which never changes. Every key of the table has the same lengths, in bytes.

    A key is a primary key, which determines the segment, and a secondary key, which may be absent (length 0).

    Raises:
        InvalidRequestError: a value is out of its range.
    """

    partition_count: Annotated[int, about("Segments of the table: it is never scaled")]
    primary_key_length: Annotated[int, about("Bytes of every primary key, which decides the segment")]
    secondary_key_length: Annotated[int, about("Bytes of every secondary key")] = 0
    rollover_size_bytes: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        _check_range("partitionCount", self.partition_count, 1, TABLE_PARTITIONS_MAX)
        _check_range("primaryKeyLength", self.primary_key_length, 1, TABLE_KEY_BYTES_MAX)
        most = TABLE_KEY_BYTES_MAX - self.primary_key_length
        _check_range("secondaryKeyLength", self.secondary_key_length, 0, most)
        _check_range("rolloverSizeBytes", self.rollover_size_bytes, 0, _INT64_MAX)

    @property
    def key_length(self) -> int:
        return self.primary_key_length + self.secondary_key_length


@dataclass(frozen=True, slots=True)
class KeyValueTable:
    """The current record of a table.

    A table that is deleted and created again continues its segment numbers. So a late processor of an earlier
    incarnation cannot delete segments of the current one.
    """

    scope: str
    name: str
    state: TableState
    configuration: TableConfiguration
    creation_time_ms: int
    first_segment_number: int
    pending: PendingRequest | None

    @property
    def scoped_name(self) -> str:
        return f"{self.scope}/{self.name}"

    @property
    def segments(self) -> tuple[StreamSegment, ...]:
        """The segments by key range. All of them accept entries while the table is ACTIVE."""
        ranges = equal_ranges(self.configuration.partition_count)
        return tuple(
            StreamSegment(segment_id(0, self.first_segment_number + index), key_range)
            for index, key_range in enumerate(ranges)
        )

    @property
    def segment_names(self) -> list[str]:
        """The names of its segments in the segment stores."""
        owner = segments_owner(self.name)
        return [segment_name(self.scope, owner, segment.segment_id) for segment in self.segments]

    @property
    def next_segment_number(self) -> int:
        return self.first_segment_number + self.configuration.partition_count

    def is_pending(self, request: PendingRequest) -> bool:
        return self.pending == request


def new_table(
    scope: str, name: str, configuration: TableConfiguration, first_segment_number: int, now_ms: int
) -> KeyValueTable:
    """A table that is being created: its segments do not exist yet.

    Their numbers, at least `first_segment_number`, are of the class STORES: entries of tables are updated one by one.
    """
    partitions = configuration.partition_count
    first_segment_number = first_number_of_class(LogClass.STORES, first_segment_number, partitions)
    return KeyValueTable(
        scope=scope,
        name=name,
        state=TableState.CREATING,
        configuration=configuration,
        creation_time_ms=now_ms,
        first_segment_number=first_segment_number,
        pending=PendingRequest(RequestKind.CREATE_KEY_VALUE_TABLE, f"create_key_value_table-{first_segment_number}"),
    )


def table_created(table: KeyValueTable) -> KeyValueTable:
    """The table after all its segments have been created."""
    return replace(table, state=TableState.ACTIVE, pending=None)


def start_deleting(table: KeyValueTable) -> KeyValueTable:
    """The table while it is deleted. Raises ConflictError while another operation runs on it: repeat soon."""
    if table.state is not TableState.ACTIVE:
        raise ConflictError(
            f"key-value table {table.scoped_name} is {table.state}: repeat the request when the operation is done",
            details={"state": str(table.state)},
        )
    request = PendingRequest(RequestKind.DELETE_KEY_VALUE_TABLE, f"delete_key_value_table-{table.first_segment_number}")
    return replace(table, state=TableState.DELETING, pending=request)


def segments_owner(table: str) -> str:
    """The name that takes the place of the stream's name in the names of a table's segments."""
    return f"{table}{TABLE_SUFFIX}"


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(
            f"{name} of a key-value table is {value}: it must be between {least} and {most}",
            details={"field": name, "value": value, "min": least, "max": most},
        )
