"""Conditional updates of attributes, to the bounds of their values and numbers; and operations whose caller waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.model.errors import ConflictError, FencedError, HeadraceError, InvalidRequestError, ThrottledError
from headrace.model.segment_attributes import ATTRIBUTES_PER_SEGMENT_MAX, CLIENT_ATTRIBUTES_MAX, NO_VALUE
from headrace.segmentstore.containers.attribute_updates import (
    AttributeUpdate,
    UpdateKind,
    check_attribute_count,
    updated_attributes,
)
from headrace.segmentstore.containers.segment import Segment
from headrace.segmentstore.containers.settlements import PendingOperation

pytestmark = pytest.mark.anyio

KEY, OTHER = 1 << 70, 1 << 71
MOST, LEAST = (1 << 63) - 1, -(1 << 63)


def segment(attributes: dict[int, int], own: tuple[int, ...] = ()) -> Segment:
    """A segment with these attributes, of which clients have set `own`."""
    accepted = SimpleNamespace(attributes=attributes, client_attributes=set(own))
    made = SimpleNamespace(name="s", accepted=accepted, attribute=lambda key: attributes.get(key, NO_VALUE))
    return cast("Segment", made)


def update(kind: int, value: int, expected: int = NO_VALUE, key: int = KEY) -> AttributeUpdate:
    return AttributeUpdate(key, kind, value, expected)


@pytest.mark.parametrize(
    ("current", "kind", "value", "expected", "new"),
    [
        (NO_VALUE, UpdateKind.REPLACE, 5, NO_VALUE, 5),
        (9, UpdateKind.REPLACE, 5, NO_VALUE, 5),
        (NO_VALUE, UpdateKind.REPLACE_IF_GREATER, 0, NO_VALUE, 0),
        (NO_VALUE, UpdateKind.REPLACE_IF_GREATER, LEAST, NO_VALUE, LEAST),
        (4, UpdateKind.REPLACE_IF_GREATER, 5, NO_VALUE, 5),
        (NO_VALUE, UpdateKind.ACCUMULATE, 5, NO_VALUE, 5),
        (4, UpdateKind.ACCUMULATE, 5, NO_VALUE, 9),
        (4, UpdateKind.ACCUMULATE, -5, NO_VALUE, -1),
        (MOST, UpdateKind.ACCUMULATE, 1, NO_VALUE, LEAST),
        (MOST, UpdateKind.ACCUMULATE, 0, NO_VALUE, MOST),
        (LEAST + 1, UpdateKind.ACCUMULATE, -2, NO_VALUE, MOST),
        (NO_VALUE, UpdateKind.REPLACE_IF_EQUALS, 5, NO_VALUE, 5),
        (4, UpdateKind.REPLACE_IF_EQUALS, 5, 4, 5),
    ],
)
def test_update_has_the_value_of_its_kind(current: int, kind: UpdateKind, value: int, expected: int, new: int):
    held = {} if current == NO_VALUE else {KEY: current}
    assert updated_attributes(segment(held), [update(kind, value, expected)]) == ((KEY, new),)
    assert held == ({} if current == NO_VALUE else {KEY: current})


@pytest.mark.parametrize(
    ("current", "kind", "value", "expected"),
    [
        (5, UpdateKind.REPLACE_IF_GREATER, 5, NO_VALUE),
        (6, UpdateKind.REPLACE_IF_GREATER, 5, NO_VALUE),
        (NO_VALUE, UpdateKind.REPLACE_IF_EQUALS, 5, 4),
        (4, UpdateKind.REPLACE_IF_EQUALS, 5, NO_VALUE),
    ],
)
def test_condition_that_does_not_hold_is_a_conflict(current: int, kind: UpdateKind, value: int, expected: int):
    held = {} if current == NO_VALUE else {KEY: current}
    with pytest.raises(ConflictError) as raised:
        updated_attributes(segment(held), [update(kind, value, expected)])
    assert raised.value.specific_code == "attribute"


def test_update_of_no_kind_changes_nothing():
    assert updated_attributes(segment({KEY: 3}), [update(UpdateKind.NONE, 9)]) == ()
    with pytest.raises(InvalidRequestError, match="kind 5 are unknown"):
        updated_attributes(segment({}), [update(5, 9)])


def test_later_updates_see_earlier_ones():
    updates = [
        update(UpdateKind.ACCUMULATE, 5),
        update(UpdateKind.ACCUMULATE, 6),
        update(UpdateKind.REPLACE, 1, key=OTHER),
    ]
    assert updated_attributes(segment({KEY: 1}), updates) == ((KEY, 12), (OTHER, 1))


def keys(count: int, first: int = 0) -> dict[int, int]:
    return dict.fromkeys((KEY + first + each for each in range(count)), 0)


def test_clients_set_a_bounded_number_of_attributes():
    held = keys(CLIENT_ATTRIBUTES_MAX - 1)
    full = segment(held, tuple(held))
    check_attribute_count(full, keys(CLIENT_ATTRIBUTES_MAX), sets_own=True)
    with pytest.raises(InvalidRequestError) as raised:
        check_attribute_count(full, keys(CLIENT_ATTRIBUTES_MAX + 1), sets_own=True)
    assert raised.value.specific_code == "too_many_attributes"
    more = keys(CLIENT_ATTRIBUTES_MAX + 5)  # that an earlier release allowed
    check_attribute_count(segment(more, tuple(more)), more, sets_own=True)


def test_core_attributes_do_not_count_as_those_of_clients():
    held = keys(CLIENT_ATTRIBUTES_MAX)
    core = 0x8000000000000000 << 64
    check_attribute_count(segment(held, tuple(held)), [core], sets_own=True)


def test_update_is_checked_against_the_bound_of_its_kind():
    """Clients can set their attributes on a segment that is full of writers, and writers come to one that is full of
    those."""
    writers = keys(ATTRIBUTES_PER_SEGMENT_MAX)
    own = keys(CLIENT_ATTRIBUTES_MAX)
    new = [update(UpdateKind.REPLACE, 1, key=OTHER)]
    assert updated_attributes(segment(writers), new, sets_own=True) == ((OTHER, 1),)
    assert updated_attributes(segment(own, tuple(own)), new) == ((OTHER, 1),)
    with pytest.raises(ThrottledError):
        updated_attributes(segment(writers), new)
    with pytest.raises(InvalidRequestError, match="attributes that clients have set"):
        updated_attributes(segment(own, tuple(own)), new, sets_own=True)


def test_segment_has_a_bounded_number_of_writers():
    """The attributes that clients have set are not writers."""
    held, own = keys(ATTRIBUTES_PER_SEGMENT_MAX + 2), tuple(keys(3))
    almost = segment(held, own)
    check_attribute_count(almost, [OTHER])
    with pytest.raises(ThrottledError, match=f"has {ATTRIBUTES_PER_SEGMENT_MAX - 1} writers"):
        check_attribute_count(almost, [OTHER, OTHER + 1])
    check_attribute_count(almost, [OTHER, *held])
    beyond = segment(keys(ATTRIBUTES_PER_SEGMENT_MAX + 9))
    check_attribute_count(beyond, keys(5))


# Operations


async def test_operation_is_visible_before_its_caller_hears_of_it():
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    operation, seen = PendingOperation(future), list[bool]()
    operation.settle = lambda: seen.append(future.done())
    operation(None)
    assert (seen, future.done()) == ([False], True)
    await future
    PendingOperation(asyncio.get_running_loop().create_future())(None)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_operation_that_failed_is_not_visible(is_cancelled: bool):
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    operation, seen = PendingOperation(future), list[int]()
    operation.settle = lambda: seen.append(1)
    if is_cancelled:
        future.cancel()
    error: HeadraceError = FencedError("another owner")
    operation(error)
    assert seen == []
    assert future.cancelled() if is_cancelled else future.exception() is error
