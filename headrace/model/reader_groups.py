"""Reader groups: the current record of a group, with its configuration and the one operation that may run.

The functions are pure: each returns the group after a change, or raises if the group's state does not allow the change.
The generation grows with each change of the configuration and with each reset. So the controller can reject readers
that still use an older generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from headrace.model.arguments import check_fields
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError
from headrace.model.limits import READER_GROUP_POSITIONS_MAX, READER_GROUP_STREAMS_MAX
from headrace.model.names import scoped_stream_name
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut, invalid_cut

GROUP_REFRESH_MS_DEFAULT = 3_000
AUTOMATIC_CHECKPOINT_INTERVAL_MS_DEFAULT = 30_000
AUTOMATIC_CHECKPOINTS_OFF = -1
"""The interval of a group without automatic checkpoints, as Pravega's clients send it."""

OUTSTANDING_CHECKPOINTS_DEFAULT = 3
STATE_ROLLOVER_BYTES_DEFAULT = 4 * 1024 * 1024

_STATE_STREAM_PREFIX = "_RG"
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class RetentionMode(StrEnum):
    """How a group's position affects the retention of its streams.

    NONE: it has no effect. MANUAL: retention keeps the events after the position that the application publishes.
    AUTOMATIC: retention keeps the events after the last checkpoint.
    """

    NONE = "NONE"
    MANUAL = "MANUAL"
    AUTOMATIC = "AUTOMATIC"


class ReaderGroupState(StrEnum):
    """The state of a group between its creation and its deletion."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True)
class GroupStream:
    """A stream that the group reads. Without `start` it reads from the head, without `end` it reads without a bound."""

    scope: str
    stream: str
    start: StreamCut | None = None
    end: StreamCut | None = None

    @property
    def scoped_name(self) -> str:
        return scoped_stream_name(self.scope, self.stream)

    def __post_init__(self) -> None:
        check_fields(self)
        for cut in (self.start, self.end):
            if cut is not None and (cut.scope, cut.stream) != (self.scope, self.stream):
                raise invalid_cut(f"it belongs to {cut.scope}/{cut.stream}, not to {self.scoped_name}")
        if self.start is not None and self.end is not None:
            _check_order(self.start.offsets, self.end.offsets)


@dataclass(frozen=True, slots=True)
class ReaderGroupConfiguration:
    """The configuration of a reader group. `streams` are sorted by name.

    `automatic_checkpoint_interval_ms` may be AUTOMATIC_CHECKPOINTS_OFF.

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
        check_fields(self)
        object.__setattr__(self, "streams", tuple(sorted(self.streams, key=lambda stream: stream.scoped_name)))
        _check_range("streams", len(self.streams), 1, READER_GROUP_STREAMS_MAX)
        if len(self.stream_names) != len(self.streams):
            raise InvalidRequestError("a reader group names a stream twice: name each stream once")
        cuts = [cut for stream in self.streams for cut in (stream.start, stream.end) if cut is not None]
        _check_range("positions in stream cuts", sum(len(cut.positions) for cut in cuts), 0, READER_GROUP_POSITIONS_MAX)
        _check_range("groupRefreshTimeMillis", self.group_refresh_ms, 0, _INT64_MAX)
        interval_ms = self.automatic_checkpoint_interval_ms
        _check_range("automaticCheckpointIntervalMillis", interval_ms, AUTOMATIC_CHECKPOINTS_OFF, _INT64_MAX)
        _check_range("maxOutstandingCheckpointRequest", self.outstanding_checkpoints_max, 1, _INT32_MAX)
        _check_range("rolloverSizeBytes", self.rollover_size_bytes, 0, _INT64_MAX)

    @property
    def stream_names(self) -> frozenset[str]:
        """The scoped names of its streams."""
        return frozenset(stream.scoped_name for stream in self.streams)

    @property
    def subscribed(self) -> frozenset[str]:
        """The scoped names of the streams whose retention waits for this group."""
        return frozenset() if self.retention is RetentionMode.NONE else self.stream_names

    def beginning_at(self, cuts: Iterable[StreamCut]) -> ReaderGroupConfiguration:
        """This configuration with these starting cuts; streams without one begin at their heads.

        Raises:
            InvalidRequestError: a cut belongs to a stream that the group does not read.
        """
        by_stream = {(cut.scope, cut.stream): cut for cut in cuts}
        unknown = by_stream.keys() - {(stream.scope, stream.stream) for stream in self.streams}
        if unknown:
            names = ", ".join("/".join(each) for each in sorted(unknown))
            raise InvalidRequestError(f"the group does not read {names}: pass cuts of its streams only")
        streams = (replace(stream, start=by_stream.get((stream.scope, stream.stream))) for stream in self.streams)
        return replace(self, streams=tuple(streams))


@dataclass(frozen=True, slots=True)
class ReaderGroup:
    """The current record of a reader group.

    `group_id` is the text of a UUID and identifies the incarnation of the name. `leaving` are the scoped names of
    streams that are no longer in the configuration, and of which the group may still be a subscriber. A running update
    removes it from them.
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
        """The name with its scope, which is also the group's name as a subscriber."""
        return f"{self.scope}/{self.name}"

    @property
    def state_stream(self) -> str:
        """The stream in which the readers of the group keep their common state."""
        return state_stream_name(self.name)

    @property
    def state_stream_configuration(self) -> StreamConfiguration:
        return StreamConfiguration(ScalingPolicy.fixed(1), rollover_size_bytes=self.configuration.rollover_size_bytes)

    def is_pending(self, request: PendingRequest) -> bool:
        return self.pending == request


def state_stream_name(group: str) -> str:
    """The stream in which the readers of a group keep their common state."""
    return f"{_STATE_STREAM_PREFIX}{group}"


def is_state_stream(stream: str) -> bool:
    """Whether the name of a stream is that of the state of a reader group."""
    return stream.startswith(_STATE_STREAM_PREFIX)


def new_reader_group(
    scope: str, name: str, group_id: str, configuration: ReaderGroupConfiguration, version: int
) -> ReaderGroup:
    """A group that is being created. `version` is the version that its record will have; it is new for the name."""
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
    """The group after its creation or update has completed."""
    return replace(group, state=ReaderGroupState.ACTIVE, leaving=frozenset(), pending=None)


def start_update(
    group: ReaderGroup, group_id: str, generation: int, configuration: ReaderGroupConfiguration, version: int
) -> ReaderGroup:
    """The group with its next configuration and generation. `version` is the version of the record that was read.

    Raises:
        IllegalStateError: code "reader_group_mismatch": another incarnation of the group, or another generation.
        ConflictError: another operation runs: repeat soon.
    """
    check_identity(group, group_id)
    if generation != group.generation:
        raise IllegalStateError(
            f"reader group {group.scoped_name} is at generation {group.generation}, not {generation}: read its "
            "configuration again and repeat the update",
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
    """Whether this update led to the current group: it is then a repetition after the first answer was lost."""
    return (group.group_id, group.generation, group.configuration) == (group_id, generation + 1, configuration)


def start_deleting(group: ReaderGroup, group_id: str, version: int) -> ReaderGroup:
    """The group while it is deleted; raises as `start_update` does."""
    check_identity(group, group_id)
    _check_idle(group)
    return replace(group, state=ReaderGroupState.DELETING, pending=_request(RequestKind.DELETE_READER_GROUP, version))


def check_identity(group: ReaderGroup, group_id: str) -> None:
    """Raises IllegalStateError, code "reader_group_mismatch", unless `group_id` is that of this incarnation."""
    if group.group_id != group_id:
        raise IllegalStateError(
            f"reader group {group.scoped_name} has the id {group.group_id}, not {group_id[:60]!r}: it was deleted and "
            "created again",
            details={"readerGroupId": group.group_id},
            code="reader_group_mismatch",
        )


def check_group_id(text: str) -> str:
    """The id in its canonical form, lower case with dashes.

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
            f"reader group {group.scoped_name} is {group.state}: repeat the request when the operation is done",
            details={"state": str(group.state)},
        )


def _request(kind: RequestKind, version: int) -> PendingRequest:
    """A request with a unique id: each version of a record is written only once."""
    return PendingRequest(kind, f"{kind}-{version + 1}")


def _check_order(start: Mapping[int, int], end: Mapping[int, int]) -> None:
    late = [key for key in start.keys() & end.keys() if _is_after(start[key], end[key])]
    if late:
        raise invalid_cut(f"the start of the group is after its end in segment {min(late)}")


def _is_after(offset: int, other: int) -> bool:
    """Whether an offset is after another one of the same segment; END_OF_SEGMENT is after all others."""
    return other != END_OF_SEGMENT and (offset == END_OF_SEGMENT or offset > other)


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequestError(
            f"{name} of a reader group is {value}: it must be between {least} and {most}",
            details={"field": name, "value": value, "min": least, "max": most},
        )
