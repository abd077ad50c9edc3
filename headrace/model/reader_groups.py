"""A reader group as its current record holds it: configuration, generation, and the one operation that may run.

The functions return the group after an event of its life and refuse what its state forbids; they change nothing else.
The generation grows with each change of the configuration and with each reset, so that readers which still work under
an older one are told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError
from headrace.model.limits import READER_GROUP_POSITIONS_MAX, READER_GROUP_STREAMS_MAX
from headrace.model.names import scoped_stream_name
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import StreamCut, invalid_cut

GROUP_REFRESH_MS_DEFAULT = 3_000
AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT = 30_000
OUTSTANDING_CHECKPOINTS_DEFAULT = 3
STATE_ROLLOVER_BYTES_DEFAULT = 4 * 1024 * 1024

_STATE_STREAM_PREFIX = "_RG"
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class RetentionMode(StrEnum):
    """What a group's progress means for the retention of its streams: nothing, or that unread events are kept.

    MANUAL: the application says what was read. AUTOMATIC: the last checkpoint says it.
    """

    NONE = "NONE"
    MANUAL = "MANUAL"
    AUTOMATIC = "AUTOMATIC"


class ReaderGroupState(StrEnum):
    """Where a group is in its life."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True)
class GroupStream:
    """A stream that the group reads; a cut of None is unbounded: from the head, or without end."""

    scope: str
    stream: str
    start: StreamCut | None = None
    end: StreamCut | None = None

    @property
    def scoped_name(self) -> str:
        return scoped_stream_name(self.scope, self.stream)

    def __post_init__(self) -> None:
        for cut in (self.start, self.end):
            if cut is not None and (cut.scope, cut.stream) != (self.scope, self.stream):
                raise invalid_cut(f"it is of {cut.scope}/{cut.stream}, not of {self.scoped_name}")
        if self.start is not None and self.end is not None:
            _check_order(self.start.offsets, self.end.offsets)


@dataclass(frozen=True, slots=True)
class ReaderGroupConfiguration:
    """What a user configures for a reader group; `streams` are kept sorted by name.

    Raises:
        InvalidRequestError: no, too many or repeated streams, too many positions in cuts, or a value out of range.
    """

    streams: tuple[GroupStream, ...]
    retention: RetentionMode = RetentionMode.NONE
    group_refresh_ms: int = GROUP_REFRESH_MS_DEFAULT
    automatic_checkpoint_interval_ms: int = AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT
    outstanding_checkpoints_max: int = OUTSTANDING_CHECKPOINTS_DEFAULT
    rollover_size_bytes: int = STATE_ROLLOVER_BYTES_DEFAULT

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams", tuple(sorted(self.streams, key=lambda one: one.scoped_name)))
        _check_range("streams", len(self.streams), 1, READER_GROUP_STREAMS_MAX)
        if len(self.stream_names) != len(self.streams):
            raise InvalidRequestError("a reader group names a stream twice: name each once")
        cuts = [cut for one in self.streams for cut in (one.start, one.end) if cut is not None]
        _check_range("positions in stream cuts", sum(len(cut.positions) for cut in cuts), 0, READER_GROUP_POSITIONS_MAX)
        _check_range("groupRefreshTimeMillis", self.group_refresh_ms, 0, _INT64_MAX)
        _check_range("automaticCheckpointIntervalMillis", self.automatic_checkpoint_interval_ms, 0, _INT64_MAX)
        _check_range("maxOutstandingCheckpointRequest", self.outstanding_checkpoints_max, 1, _INT32_MAX)
        _check_range("rolloverSizeBytes", self.rollover_size_bytes, 0, _INT64_MAX)

    @property
    def stream_names(self) -> frozenset[str]:
        """The scoped names of its streams."""
        return frozenset(one.scoped_name for one in self.streams)

    @property
    def subscribed(self) -> frozenset[str]:
        """The scoped names of the streams whose retention waits for this group."""
        return frozenset() if self.retention is RetentionMode.NONE else self.stream_names


@dataclass(frozen=True, slots=True)
class ReaderGroup:
    """The current record of a reader group.

    `group_id` is the text of a UUID and tells one life of a name from another. `leaving` are the scoped names of the
    streams of which the group may still be a subscriber although its configuration no longer says so: a running update
    takes it off them.
    """

    scope: str
    name: str
    group_id: str
    generation: int
    state: ReaderGroupState
    configuration: ReaderGroupConfiguration
    leaving: frozenset[str]
    pending: PendingRequest | None

    @property
    def scoped_name(self) -> str:
        """Also its name as a subscriber."""
        return f"{self.scope}/{self.name}"

    @property
    def state_stream(self) -> str:
        """The stream in which readers keep what they share."""
        return f"{_STATE_STREAM_PREFIX}{self.name}"

    @property
    def state_stream_configuration(self) -> StreamConfiguration:
        return StreamConfiguration(ScalingPolicy.fixed(1), rollover_size_bytes=self.configuration.rollover_size_bytes)

    def is_pending(self, request: PendingRequest) -> bool:
        return self.pending == request


def new_reader_group(
    scope: str, name: str, group_id: str, configuration: ReaderGroupConfiguration, version: int
) -> ReaderGroup:
    """A group on its way; `version` is that of the record that it will be written as, new for the name."""
    return ReaderGroup(
        scope=scope,
        name=name,
        group_id=group_id,
        generation=0,
        state=ReaderGroupState.CREATING,
        configuration=configuration,
        leaving=frozenset(),
        pending=PendingRequest(RequestKind.CREATE_READER_GROUP, f"create_reader_group-{version}"),
    )


def settled(group: ReaderGroup) -> ReaderGroup:
    """The work of a creation or an update is done."""
    return replace(group, state=ReaderGroupState.ACTIVE, leaving=frozenset(), pending=None)


def start_update(
    group: ReaderGroup, group_id: str, generation: int, configuration: ReaderGroupConfiguration, version: int
) -> ReaderGroup:
    """The group under its next configuration, whose generation is one higher; `version` is that of the record read.

    Raises:
        IllegalStateError: code "reader_group_mismatch": another life of the group, or an older or unknown generation.
        ConflictError: another operation runs; repeat soon.
    """
    check_identity(group, group_id)
    if generation != group.generation:
        raise IllegalStateError(
            f"reader group {group.scoped_name} is at generation {group.generation}, not {generation}: get its "
            "configuration again and decide anew",
            details={"generation": group.generation},
            code="reader_group_mismatch",
        )
    _check_idle(group)
    return replace(
        group,
        generation=generation + 1,
        state=ReaderGroupState.UPDATING,
        configuration=configuration,
        leaving=group.configuration.subscribed - configuration.subscribed,
        pending=_request(RequestKind.UPDATE_READER_GROUP, version),
    )


def is_same_update(group: ReaderGroup, group_id: str, generation: int, configuration: ReaderGroupConfiguration) -> bool:
    """Whether this update is the one that led to the group as it is: a repeat whose first answer was lost."""
    return (group.group_id, group.generation, group.configuration) == (group_id, generation + 1, configuration)


def start_deleting(group: ReaderGroup, group_id: str, version: int) -> ReaderGroup:
    """Raises as `start_update` does."""
    check_identity(group, group_id)
    _check_idle(group)
    return replace(group, state=ReaderGroupState.DELETING, pending=_request(RequestKind.DELETE_READER_GROUP, version))


def check_identity(group: ReaderGroup, group_id: str) -> None:
    """Raises IllegalStateError, code "reader_group_mismatch", unless `group_id` is the id of this life of the name."""
    if group.group_id != group_id:
        raise IllegalStateError(
            f"reader group {group.scoped_name} has the id {group.group_id}, not {group_id[:60]!r}: it was created anew",
            details={"readerGroupId": group.group_id},
            code="reader_group_mismatch",
        )


def check_group_id(text: str) -> str:
    """The id in its one form, lower case with dashes.

    Raises:
        InvalidRequestError: the text is not that of a UUID.
    """
    try:
        return str(UUID(text))
    except ValueError as error:
        raise InvalidRequestError(f"readerGroupId {text[:60]!r} is not the text of a UUID") from error


def _check_idle(group: ReaderGroup) -> None:
    if group.state is not ReaderGroupState.ACTIVE:
        raise ConflictError(
            f"reader group {group.scoped_name} is {group.state}: repeat when that operation is done",
            details={"state": str(group.state)},
        )


def _request(kind: RequestKind, version: int) -> PendingRequest:
    """An id without chance: a version of a record is written once."""
    return PendingRequest(kind, f"{kind}-{version + 1}")


def _check_order(start: Mapping[int, int], end: Mapping[int, int]) -> None:
    late = [identifier for identifier in start.keys() & end.keys() if start[identifier] > end[identifier]]
    if late:
        raise invalid_cut(f"a group would start behind its end in segment {min(late)}")


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(
            f"{name} of a reader group is {value}: it must be between {least} and {most}",
            details={"field": name, "value": value, "min": least, "max": most},
        )
