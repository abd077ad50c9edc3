"""Key-value tables as values: what may be configured, their segments, and what each state allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import key_value_tables as tables
from headrace.model.errors import ConflictError, InvalidRequestError
from headrace.model.key_value_tables import TableConfiguration, TableState
from headrace.model.limits import TABLE_KEY_BYTES_MAX, TABLE_PARTITIONS_MAX
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.segments import covers_key_space_once

NEW = tables.new_table("s", "k", TableConfiguration(2, 4), 6, 1_000)
ACTIVE = tables.table_created(NEW)


@pytest.mark.parametrize(
    "values",
    [
        (0, 1),
        (TABLE_PARTITIONS_MAX + 1, 1),
        (1, 0),
        (1, -1),
        (1, TABLE_KEY_BYTES_MAX + 1),
        (1, 1, -1),
        (1, 1, TABLE_KEY_BYTES_MAX),
        (1, 1, 0, -1),
        (1, 1, 0, 1 << 63),
    ],
)
def test_what_is_out_of_range_is_refused(values: tuple[int, ...]):
    with pytest.raises(InvalidRequestError, match="must be between"):
        TableConfiguration(*values)


def test_what_is_no_number_is_refused():
    with pytest.raises(InvalidRequestError):
        TableConfiguration("2", 1)  # type: ignore[arg-type]


def test_the_longest_key():
    assert TableConfiguration(1, 1, TABLE_KEY_BYTES_MAX - 1).key_length == TABLE_KEY_BYTES_MAX


@given(st.integers(1, TABLE_PARTITIONS_MAX), st.integers(0, 10_000))
def test_segments_cover_the_key_space_once_and_count_up(partitions: int, first: int):
    table = tables.new_table("s", "k", TableConfiguration(partitions, 1), first, 0)
    assert covers_key_space_once([segment.key_range for segment in table.segments])
    assert [segment.segment_id for segment in table.segments] == list(range(first, table.next_segment_number))


def test_states_and_requests_of_a_table():
    assert (NEW.state, ACTIVE.state) == (TableState.CREATING, TableState.ACTIVE)
    assert NEW.pending == PendingRequest(RequestKind.CREATE_KEY_VALUE_TABLE, "create_key_value_table-6")
    assert NEW.is_pending(NEW.pending)
    assert ACTIVE.pending is None
    deleting = tables.start_deleting(ACTIVE)
    assert deleting.state is TableState.DELETING
    assert deleting.pending == PendingRequest(RequestKind.DELETE_KEY_VALUE_TABLE, "delete_key_value_table-6")
    for other in (NEW, deleting):
        with pytest.raises(ConflictError):
            tables.start_deleting(other)


def test_names_of_segments_belong_to_the_table():
    assert tables.segments_owner("k") == "k_kvtable"
    assert NEW.scoped_name == "s/k"
    assert NEW.segment_names == ["s/k_kvtable/6.#epoch.0", "s/k_kvtable/7.#epoch.0"]
