"""Which attributes belong to the store, and which of those clients may set."""

from __future__ import annotations

import pytest

from headrace.model import segment_attributes
from headrace.model.segment_attributes import is_core, is_settable

FIRST_CORE = 1 << 127
SETTABLE = ["CREATION_TIME", "EVENT_COUNT", "SCALE_POLICY_TYPE", "SCALE_POLICY_RATE", "ROLLOVER_SIZE"]
OWN = ["SEGMENT_TYPE", "TABLE_KEY_LENGTH", "TABLE_BATCHES", "MAY_LACK_BYTES"]
OF_CLIENTS = ["REVISION_MARK", "MARK_INCARNATION", "CONTROLLER_WRITER"]


@pytest.mark.parametrize(
    ("attribute_id", "core"),
    [
        (0, False),
        (1, False),
        (FIRST_CORE - 1, False),
        (FIRST_CORE, True),
        (FIRST_CORE | 1 << 63, True),
        (FIRST_CORE | (1 << 64) - 1, True),
        (FIRST_CORE | 1 << 64, False),
        ((1 << 128) - 1, False),
    ],
)
def test_the_upper_half_tells_whose_an_id_is(attribute_id: int, *, core: bool) -> None:
    assert is_core(attribute_id) is core
    assert core or is_settable(attribute_id)


@pytest.mark.parametrize(
    ("name", "core", "settable"),
    [
        *((name, True, True) for name in SETTABLE),
        *((name, True, False) for name in OWN),
        *((name, False, True) for name in OF_CLIENTS),
    ],
)
def test_who_may_set_the_fixed_ids(name: str, *, core: bool, settable: bool) -> None:
    attribute_id = getattr(segment_attributes, name)
    assert (is_core(attribute_id), is_settable(attribute_id)) == (core, settable)
