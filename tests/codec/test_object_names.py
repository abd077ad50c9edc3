"""The epochs in the names of objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.log_objects import log_object_name
from headrace.codec.object_names import object_epoch, object_prefixes, snapshot_name, table_indexes_prefix
from headrace.model.chunks import packed_name

CONTAINERS, EPOCHS, NUMBERS = st.integers(0, 9_999), st.integers(0, 10**10 - 1), st.integers(0, 10**10 - 1)


@given(CONTAINERS, EPOCHS, NUMBERS)
def test_every_name_tells_its_epoch(container: int, epoch: int, number: int):
    index = f"{table_indexes_prefix(container)}{'0' * 32}-{5:013d}/{epoch:010d}-{number:010d}"
    names = [
        packed_name(container, epoch, number),
        snapshot_name(container, epoch, number),
        index,
        log_object_name(container, epoch, number),
    ]
    for name, prefix in zip(names, object_prefixes(container), strict=True):
        assert name.startswith(prefix)
        assert object_epoch(container, name) == epoch


@pytest.mark.parametrize(
    "name",
    [
        "",
        "container-0001/packed/4-1",
        "snapshots/container-0001/0000000004",
        "snapshots/container-0001/000000000४-0000000001",
        "snapshots/container-0002/0000000004-0000000001",
        "tables/container-0001/a/b/0000000004-0000000001",
        "logs/container-0002/0000000004-0000000001",
    ],
)
def test_other_names_have_no_epoch(name: str):
    assert object_epoch(1, name) is None


def test_snapshot_name_is_what_stores_have_always_written():
    assert snapshot_name(7, 12, 3) == "snapshots/container-0007/0000000012-0000000003"
