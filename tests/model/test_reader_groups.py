"""Reader groups as values: what may be configured, generations, and what each state allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.model import reader_groups as groups
from headrace.model.errors import ConflictError, IllegalStateError, InvalidRequestError
from headrace.model.limits import READER_GROUP_POSITIONS_MAX, READER_GROUP_STREAMS_MAX
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, ReaderGroupState, RetentionMode
from headrace.model.stream_cuts import END_OF_SEGMENT, StreamCut

ID, OTHER_ID = "0f8fad5b-d9cb-469f-a165-70867728950e", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
T, U = GroupStream("s", "t"), GroupStream("s", "u")
READS_T = ReaderGroupConfiguration((T,), RetentionMode.MANUAL)
READS_U = ReaderGroupConfiguration((U,), RetentionMode.AUTOMATIC)
NEW = groups.new_reader_group("s", "g", ID, READS_T, 0)
ACTIVE = groups.settled(NEW)
UPDATING = groups.start_update(ACTIVE, ID, 0, READS_U, 1)
DELETING = groups.start_deleting(ACTIVE, ID, 1)


def _cut(stream: str, **offsets: int) -> StreamCut:
    return StreamCut.of("s", stream, {int(key[1:]): offset for key, offset in offsets.items()})


def test_streams_are_kept_in_order():
    assert ReaderGroupConfiguration((U, T)) == ReaderGroupConfiguration((T, U))
    assert ReaderGroupConfiguration((U, T)).stream_names == {"s/t", "s/u"}


def test_only_who_wants_to_be_waited_for_is_a_subscriber():
    assert ReaderGroupConfiguration((T,)).subscribed == frozenset()
    assert READS_T.subscribed == {"s/t"}
    assert READS_U.subscribed == {"s/u"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReaderGroupConfiguration(()),
        lambda: ReaderGroupConfiguration((T, T)),
        lambda: ReaderGroupConfiguration(tuple(GroupStream("s", f"t{n}") for n in range(READER_GROUP_STREAMS_MAX + 1))),
        lambda: ReaderGroupConfiguration((T,), group_refresh_ms=-1),
        lambda: ReaderGroupConfiguration((T,), automatic_checkpoint_interval_ms=-2),
        lambda: ReaderGroupConfiguration((T,), outstanding_checkpoints_max=0),
        lambda: ReaderGroupConfiguration((T,), outstanding_checkpoints_max=1 << 31),
        lambda: ReaderGroupConfiguration((T,), rollover_size_bytes=-1),
        lambda: ReaderGroupConfiguration((T,), group_refresh_ms=1 << 63),
        lambda: ReaderGroupConfiguration((T,), automatic_checkpoint_interval_ms=1 << 63),
        lambda: ReaderGroupConfiguration((T,), rollover_size_bytes=1 << 63),
        lambda: ReaderGroupConfiguration((T,), group_refresh_ms="1"),  # type: ignore[arg-type]
        lambda: GroupStream("s", "t", 5),  # type: ignore[arg-type]
        lambda: GroupStream("s", "t", _cut("t", s0=1, s1=5), _cut("t", s0=1, s1=4)),
        lambda: GroupStream("s", "t", _cut("u", s0=1)),
        lambda: GroupStream("s", "t", None, _cut("u", s0=1)),
        lambda: GroupStream("s", "t", _cut("t", s0=2), _cut("t", s0=1)),
        lambda: GroupStream("s", "t", _cut("t", s0=END_OF_SEGMENT), _cut("t", s0=1)),
    ],
)
def test_what_cannot_be_configured(make: Callable[[], Any]):
    with pytest.raises(InvalidRequestError):
        make()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_refresh_ms", 0),
        ("group_refresh_ms", (1 << 63) - 1),
        ("automatic_checkpoint_interval_ms", (1 << 63) - 1),
        ("outstanding_checkpoints_max", 1),
        ("outstanding_checkpoints_max", (1 << 31) - 1),
        ("rollover_size_bytes", 0),
        ("rollover_size_bytes", (1 << 63) - 1),
    ],
)
def test_bounds_of_a_configuration_are_allowed(field: str, value: int):
    allowed: dict[str, Any] = {field: value}
    assert getattr(ReaderGroupConfiguration((T,), **allowed), field) == value


def test_most_streams_of_a_group_are_allowed():
    streams = tuple(GroupStream("s", f"t{n}") for n in range(READER_GROUP_STREAMS_MAX))
    assert len(ReaderGroupConfiguration(streams).streams) == READER_GROUP_STREAMS_MAX


def test_stream_may_be_read_from_where_reading_ends():
    assert GroupStream("s", "t", _cut("t", s0=7, s1=1), _cut("t", s0=7, s2=0)).end


def test_the_end_of_a_segment_is_after_all_its_offsets():
    for start in (0, 7, END_OF_SEGMENT):
        assert GroupStream("s", "t", _cut("t", s0=start), _cut("t", s0=END_OF_SEGMENT)).end


def test_a_configuration_begins_at_cuts_of_its_streams():
    reads = ReaderGroupConfiguration((GroupStream("s", "t", _cut("t", s0=5), _cut("t", s0=9)), U))
    moved = reads.beginning_at([_cut("u", s0=3)])
    assert moved.streams == (GroupStream("s", "t", None, _cut("t", s0=9)), GroupStream("s", "u", _cut("u", s0=3)))
    with pytest.raises(InvalidRequestError, match="does not read s/v"):
        reads.beginning_at([_cut("v", s0=1)])


def test_a_group_may_have_no_automatic_checkpoints():
    off = ReaderGroupConfiguration((T,), automatic_checkpoint_interval_ms=groups.AUTOMATIC_CHECKPOINTS_OFF)
    assert off.automatic_checkpoint_interval_ms == -1


def test_cuts_of_a_group_are_bounded_together():
    """Six streams of 900 segments each are more than a record should hold."""
    streams = tuple(
        GroupStream("s", f"t{n}", StreamCut.of("s", f"t{n}", dict.fromkeys(range(900), 1))) for n in range(6)
    )
    assert READER_GROUP_POSITIONS_MAX < 6 * 900
    with pytest.raises(InvalidRequestError, match="positions"):
        ReaderGroupConfiguration(streams)
    assert ReaderGroupConfiguration(streams[:5]).stream_names


def test_states_and_requests_of_a_reader_group():
    assert (NEW.state, NEW.generation, ACTIVE.state) == (ReaderGroupState.CREATING, 0, ReaderGroupState.ACTIVE)
    assert (NEW.state_stream, NEW.scoped_name) == ("_RGg", "s/g")
    assert NEW.state_stream_configuration.scaling.min_segments == 1
    assert NEW.state_stream_configuration.rollover_size_bytes == 4 << 20
    assert (UPDATING.state, UPDATING.generation, set(UPDATING.leaving)) == (ReaderGroupState.UPDATING, 1, {"s/t"})
    assert (groups.settled(UPDATING).leaving, groups.settled(UPDATING).pending) == (frozenset(), None)
    assert DELETING.state is ReaderGroupState.DELETING
    requests = [group.pending for group in (NEW, UPDATING, DELETING)]
    assert len(set(requests)) == 3
    for group, request in zip((NEW, UPDATING, DELETING), requests, strict=True):
        assert request is not None
        assert group.is_pending(request)


@pytest.mark.parametrize("group", [NEW, UPDATING, DELETING])
def test_one_operation_at_a_time(group: groups.ReaderGroup):
    with pytest.raises(ConflictError):
        groups.start_update(group, ID, group.generation, READS_U, 2)
    with pytest.raises(ConflictError):
        groups.start_deleting(group, ID, 2)


def test_another_incarnation_or_generation_is_refused():
    for attempt in (
        lambda: groups.start_update(ACTIVE, OTHER_ID, 0, READS_U, 1),
        lambda: groups.start_update(ACTIVE, ID, 1, READS_U, 1),
        lambda: groups.start_deleting(ACTIVE, OTHER_ID, 1),
    ):
        with pytest.raises(IllegalStateError) as refused:
            attempt()
        assert refused.value.specific_code == "reader_group_mismatch"


def test_a_repeated_update_is_known():
    assert groups.is_same_update(UPDATING, ID, 0, READS_U)
    assert groups.is_same_update(groups.settled(UPDATING), ID, 0, READS_U)
    for group_id, generation, configuration in ((OTHER_ID, 0, READS_U), (ID, 1, READS_U), (ID, 0, READS_T)):
        assert not groups.is_same_update(UPDATING, group_id, generation, configuration)


def test_ids_have_one_form():
    assert groups.check_group_id(ID.upper()) == ID
    assert groups.check_group_id(ID.replace("-", "")) == ID
    for text in ("", "7", ID + "0"):
        with pytest.raises(InvalidRequestError):
            groups.check_group_id(text)
