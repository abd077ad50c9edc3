"""The record of the pointer to a container's newest snapshot: golden value and key."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.metadata.snapshot_pointer import decode_snapshot_pointer, snapshot_body, snapshot_key
from headrace.model.containers import SnapshotPointer
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import Key

POINTER = SnapshotPointer("snapshots/container-0003/0000000007-0000000001", 120, 99, 7, True)
GOLDEN = {
    "object": "snapshots/container-0003/0000000007-0000000001",
    "length": 120,
    "crc32c": 99,
    "epoch": 7,
    "clean": True,
}


def test_golden_value():
    assert snapshot_body(POINTER) == GOLDEN
    assert decode_snapshot_pointer(GOLDEN) == POINTER


def test_key():
    assert snapshot_key(3) == Key("cluster", "snapshot/0003")


@pytest.mark.parametrize("change", [{"object": 1}, {"length": "x"}, {"epoch": -1}, {"clean": 1}])
def test_an_invalid_pointer_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_snapshot_pointer(GOLDEN | change)
