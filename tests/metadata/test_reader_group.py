"""The records of a reader group: golden values and keys."""

from __future__ import annotations

from typing import Any

import pytest
from golden_records import GoldenRecords

from headrace.metadata.reader_group import decode_group, group_body, group_tombstone_body, reader_group_key
from headrace.model.errors import CorruptError
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroupConfiguration,
    RetentionMode,
    new_reader_group,
    settled,
    start_update,
)
from headrace.model.stream_cuts import StreamCut
from headrace.ports.metadata_store import Key

GROUP_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
STREAMS = (GroupStream("s", "t", StreamCut.of("s", "t", {1: 5, 0: 7}), None), GroupStream("other", "u"))
GROUP = new_reader_group("s", "g", GROUP_ID, ReaderGroupConfiguration(STREAMS, RetentionMode.MANUAL, 1, 2, 3, 4), 8)


class TestReaderGroup(GoldenRecords):
    shapes = {
        "reader group": (
            GROUP,
            group_body,
            decode_group,
            {
                "format": 1,
                "scope": "s",
                "name": "g",
                "id": GROUP_ID,
                "generation": 0,
                "state": "CREATING",
                "configuration": {
                    "streams": [["other", "u", None, None], ["s", "t", [[0, 7], [1, 5]], None]],
                    "retention": "MANUAL",
                    "group_refresh_ms": 1,
                    "automatic_checkpoint_interval_ms": 2,
                    "outstanding_checkpoints_max": 3,
                    "rollover_size_bytes": 4,
                },
                "leaving": [],
                "pending": ["create_reader_group", "create_reader_group-8"],
            },
        )
    }


def test_key():
    assert reader_group_key("s", "g") == Key("reader-group/s/g", "current")


def test_streams_that_leave_are_stored():
    moved = start_update(settled(GROUP), GROUP_ID, 0, ReaderGroupConfiguration(STREAMS[:1]), 8)
    assert moved.leaving == {"s/t", "other/u"}
    assert decode_group(group_body(moved)) == moved


def test_a_tombstone_is_not_a_group():
    assert group_tombstone_body() == {"format": 1, "gone": True}
    assert decode_group(group_tombstone_body()) is None


@pytest.mark.parametrize("change", [{"state": "MELTING"}, {"configuration": {}}])
def test_a_group_that_cannot_be_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_group({**group_body(GROUP), **change})
