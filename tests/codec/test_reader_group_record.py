"""Reader groups as they are stored."""

from __future__ import annotations

import json

import pytest

from headrace.codec.records import (
    reader_group_record,
)
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

GROUP_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def test_golden_values_of_a_reader_group_and_its_tombstone():
    streams = (GroupStream("s", "t", StreamCut.of("s", "t", {1: 5, 0: 7}), None), GroupStream("other", "u"))
    group = new_reader_group("s", "g", GROUP_ID, ReaderGroupConfiguration(streams, RetentionMode.MANUAL, 1, 2, 3, 4), 8)
    body = reader_group_record.group_body(group)
    assert body == {
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
    }
    assert reader_group_record.group_of_body(json.loads(json.dumps(body))) == group
    moved = start_update(settled(group), GROUP_ID, 0, ReaderGroupConfiguration(streams[:1]), 8)
    assert moved.leaving == {"s/t", "other/u"}
    assert reader_group_record.group_of_body(reader_group_record.group_body(moved)) == moved
    assert reader_group_record.group_tombstone_body() == {"format": 1, "gone": True}
    assert reader_group_record.group_of_body(reader_group_record.group_tombstone_body()) is None
    for strange in ({**body, "state": "MELTING"}, {**body, "format": 2}, {**body, "configuration": {}}):
        with pytest.raises(CorruptError):
            reader_group_record.group_of_body(strange)
    assert reader_group_record.group_partition("s", "g") == "reader-group/s/g"
    assert reader_group_record.groups_listing_partition("s") == "scope-reader-groups/s"
    assert reader_group_record.groups_listing_body() == {"format": 1}
