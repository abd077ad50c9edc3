"""Classes of logs: which numbers and containers belong to each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import names
from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.log_classes import (
    NUMBER_BLOCK,
    ContainerLayout,
    LogClass,
    check_has_containers,
    class_of_number,
    first_number_of_class,
)
from headrace.model.segments import SEGMENT_NUMBER_MAX, segment_id

LAYOUT = ContainerLayout(8, 3)
classes = st.sampled_from(LogClass)
numbers = st.one_of(st.integers(0, 100), st.integers(0, 1 << 30), st.integers(NUMBER_BLOCK - 50, NUMBER_BLOCK + 50))


@given(classes, numbers, st.integers(1, 1000))
def test_consecutive_numbers_belong_to_the_class(log_class: LogClass, least: int, count: int):
    first = first_number_of_class(log_class, least, count)
    assert least <= first < least + 3 * NUMBER_BLOCK
    assert {class_of_number(number) for number in range(first, first + count)} == {log_class}
    assert first_number_of_class(log_class, first, count) == first


def test_a_block_can_be_used_as_a_whole():
    assert first_number_of_class(LogClass.S3, 1, NUMBER_BLOCK) == NUMBER_BLOCK


@pytest.mark.parametrize("count", [0, NUMBER_BLOCK + 1])
def test_impossible_counts_are_refused(count: int):
    with pytest.raises(InvalidRequestError, match="do not fit"):
        first_number_of_class(LogClass.S3, 0, count)


@pytest.mark.parametrize(
    ("log_class", "least", "count"),
    [
        (LogClass.S3, SEGMENT_NUMBER_MAX - 9, 11),
        (LogClass.S3, SEGMENT_NUMBER_MAX + 1, 1),
        (LogClass.STORES, SEGMENT_NUMBER_MAX - NUMBER_BLOCK + 1, 1),
        (LogClass.STORES, SEGMENT_NUMBER_MAX - NUMBER_BLOCK, 2),
    ],
)
def test_numbers_of_a_class_may_be_used_up(log_class: LogClass, least: int, count: int):
    assert first_number_of_class(LogClass.S3, SEGMENT_NUMBER_MAX - 9, 10) == SEGMENT_NUMBER_MAX - 9
    with pytest.raises(IllegalStateError, match="another name") as refused:
        first_number_of_class(log_class, least, count)
    assert refused.value.specific_code == "segment_numbers_used_up"


def test_streams_of_today_are_of_the_class_of_stores():
    assert first_number_of_class(LogClass.STORES, 0, 1000) == 0
    assert class_of_number(NUMBER_BLOCK - 1) is LogClass.STORES
    assert class_of_number(NUMBER_BLOCK) is LogClass.S3


@given(numbers, st.integers(0, 1 << 20), st.integers(0, (1 << 128) - 1))
def test_segment_is_in_a_container_of_its_class(number: int, epoch: int, unique: int):
    name = names.segment_name("scope", "stream", segment_id(epoch, number))
    container = LAYOUT.container_of_segment(name)
    assert 0 <= container < LAYOUT.count
    assert LAYOUT.class_of(container) is class_of_number(number)
    for related in (
        names.segment_name("scope", "stream", segment_id(epoch + 1, number)),
        names.transaction_segment_name(name, unique),
        names.transient_segment_name(name, unique, unique),
    ):
        assert LAYOUT.container_of_segment(related) == container


@given(st.one_of(st.text(max_size=40), numbers.map(lambda number: f"scope/stream/{number}.#epoch.0")))
def test_without_containers_of_the_class_nothing_changes(name: str):
    assert ContainerLayout(8).container_of_segment(name) == names.container_of_segment(name, 8)


@pytest.mark.parametrize("name", ["", "scope/table", "s/t/\u0661", f"s/t/{'9' * 11}", "s/t/-1048576", "s/t/1048576x"])
def test_name_without_a_number_is_of_the_class_of_stores(name: str):
    assert LAYOUT.class_of(LAYOUT.container_of_segment(name)) is LogClass.STORES


def test_the_largest_number_has_a_class():
    name = names.segment_name("scope", "stream", segment_id(0, SEGMENT_NUMBER_MAX))
    assert LAYOUT.class_of(LAYOUT.container_of_segment(name)) is class_of_number(SEGMENT_NUMBER_MAX) is LogClass.S3


def test_the_smallest_layout():
    assert [ContainerLayout(1).count, ContainerLayout(1, 0).count, ContainerLayout(1, 1).count] == [1, 1, 2]


@pytest.mark.parametrize(("log_class", "s3"), [(LogClass.STORES, 0), (LogClass.STORES, 1), (LogClass.S3, 1)])
def test_a_class_with_containers(log_class: LogClass, s3: int):
    check_has_containers(log_class, s3)


def test_a_class_without_containers_is_refused():
    with pytest.raises(IllegalStateError, match="leave the class out") as refused:
        check_has_containers(LogClass.S3, 0)
    assert refused.value.specific_code == "no_s3_containers"


@pytest.mark.parametrize(("stores", "s3"), [(0, 1), (-1, 0), (1, -1)])
def test_impossible_layouts_are_refused(stores: int, s3: int):
    with pytest.raises(InvalidRequestError, match="not possible"):
        ContainerLayout(stores, s3)
