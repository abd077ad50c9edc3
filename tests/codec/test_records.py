"""The persisted shapes: golden values, keys, round trips over random values, and refusal of what does not decode.

A golden value that changes is a change of format: old records would no longer be read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.records import (
    cold_mark_record,
    configuration_update_record,
    epoch_record,
    history_record,
    intent_record,
    key_value_table_record,
    leftovers_record,
    listing_record,
    reader_group_record,
    scope_record,
    sealed_segments_record,
    stream_record,
    truncation_record,
)
from headrace.codec.records.intent_record import Intent
from headrace.codec.records.scope_record import ScopeState
from headrace.codec.records.sealed_segments_record import SealedSegment
from headrace.model.configuration_updates import ConfigurationUpdate
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import CorruptError
from headrace.model.key_ranges import equal_ranges
from headrace.model.key_value_tables import TableConfiguration, new_table, table_created
from headrace.model.reader_groups import (
    GroupStream,
    ReaderGroupConfiguration,
    RetentionMode,
    new_reader_group,
    settled,
    start_update,
)
from headrace.model.requests import Noun, PendingRequest, RequestKind
from headrace.model.scaling import ColdMark
from headrace.model.segments import KeyRange, StreamSegment, segment_id
from headrace.model.stream_configuration import (
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfiguration,
)
from headrace.model.stream_cut_order import PlacedCut
from headrace.model.stream_cuts import StreamCut
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream, created, new_stream
from headrace.model.truncation import RunningTruncation, Truncation

FIRST = Epoch.first(3, 5, 1_000)
SCALED = scaled_epoch(FIRST, [5], [KeyRange(0.0, 0.1), KeyRange(0.1, 1 / 3)], 2_000)
CONFIGURATION = StreamConfiguration(
    ScalingPolicy.by_data_rate(100, 2, 3),
    RetentionPolicy(RetentionType.LIMITED_SIZE_MB, 10, 20),
    ("a", "Straße"),
    timestamp_aggregation_timeout_ms=7,
    rollover_size_bytes=8,
)
STREAM = new_stream("s", "t", CONFIGURATION, 5, 1_000)
HEAD = PlacedCut(StreamCut.of("s", "t", {5: 10, 6: 0, 7: 2**62}), FIRST.segments)
TRUNCATION = Truncation(HEAD, 0, 2**62 + 10)
RUNNING = RunningTruncation(HEAD, 0, Truncation(HEAD, 0, 3), 1, 7, is_recorded=True)
UPDATE = ConfigurationUpdate(CONFIGURATION, StreamConfiguration(ScalingPolicy.fixed(2)), 4)
SEALED = {5: SealedSegment(2**62, 1), 6: SealedSegment(0, None)}
INTENT = Intent("s", "t", PendingRequest(RequestKind.SCALE_STREAM, "scale_stream-0-3"), 99)
GROUP_INTENT = Intent("s", "g", PendingRequest(RequestKind.CREATE_READER_GROUP, "create_reader_group-0"), 7)
DUPLICATE = Epoch(
    2,
    3_000,
    (StreamSegment(2 << 32 | 5, KeyRange(0.0, 1 / 3)), StreamSegment(2 << 32 | 6, KeyRange(1 / 3, 1.0))),
    (StreamSegment(1 << 32 | 7, KeyRange(0.0, 1.0)),),
    duplicate_of=0,
)
GROUP_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
THIRD, TWO_THIRDS = 0.3333333333333333, 0.6666666666666666
SECOND_EPOCH = 1 << 32

GOLDEN_CONFIGURATION = {
    "scaling": ["BY_RATE_IN_KBYTES_PER_SEC", 3, 100, 2],
    "retention": ["LIMITED_SIZE_MB", 10, 20],
    "tags": ["Straße", "a"],
    "timestamp_aggregation_timeout_ms": 7,
    "rollover_size_bytes": 8,
}
GOLDEN_HEAD = {
    "scope": "s",
    "stream": "t",
    "positions": [[5, 10], [6, 0], [7, 2**62]],
    "segments": [[5, 0.0, THIRD], [6, THIRD, TWO_THIRDS], [7, TWO_THIRDS, 1.0]],
}

Shape = tuple[Any, Callable[[Any], dict[str, Any]], Callable[[Any], Any], dict[str, Any]]
SHAPES: dict[str, Shape] = {
    "epoch": (
        SCALED,
        epoch_record.epoch_body,
        epoch_record.epoch_of_body,
        {
            "format": 1,
            "number": 1,
            "created": 2_000,
            "segments": [
                [SECOND_EPOCH | 8, 0.0, 0.1],
                [SECOND_EPOCH | 9, 0.1, THIRD],
                [6, THIRD, TWO_THIRDS],
                [7, TWO_THIRDS, 1.0],
            ],
            "replaced": [[5, 0.0, THIRD]],
            "duplicate_of": None,
        },
    ),
    "stream": (
        STREAM,
        stream_record.stream_body,
        stream_record.stream_of_body,
        {
            "format": 1,
            "scope": "s",
            "name": "t",
            "state": "CREATING",
            "configuration": GOLDEN_CONFIGURATION,
            "configuration_version": 0,
            "created": 1_000,
            "first_number": 5,
            "epoch": {
                "number": 0,
                "created": 1_000,
                "segments": [[5, 0.0, THIRD], [6, THIRD, TWO_THIRDS], [7, TWO_THIRDS, 1.0]],
                "replaced": [],
                "duplicate_of": None,
            },
            "recorded_epoch": 0,
            "pending": ["create_stream", "create-5-1000"],
        },
    ),
    "truncation": (
        TRUNCATION,
        truncation_record.truncation_body,
        truncation_record.truncation_of_body,
        {"format": 1, "head": GOLDEN_HEAD, "first_epoch": 0, "size_bytes": 2**62 + 10},
    ),
    "running truncation": (
        RUNNING,
        truncation_record.running_truncation_body,
        truncation_record.running_truncation_of_body,
        {
            "format": 1,
            "target": GOLDEN_HEAD,
            "first_epoch": 0,
            "before": {"head": GOLDEN_HEAD, "first_epoch": 0, "size_bytes": 3},
            "next_epoch": 1,
            "size_bytes": 7,
            "recorded": True,
        },
    ),
    "configuration update": (
        UPDATE,
        configuration_update_record.configuration_update_body,
        configuration_update_record.configuration_update_of_body,
        {
            "format": 1,
            "before": GOLDEN_CONFIGURATION,
            "after": {
                "scaling": ["FIXED_NUM_SEGMENTS", 2, 0, 0],
                "retention": None,
                "tags": [],
                "timestamp_aggregation_timeout_ms": 0,
                "rollover_size_bytes": 0,
            },
            "version": 4,
        },
    ),
    "leftovers": (
        (7, 8),
        leftovers_record.leftovers_body,
        leftovers_record.leftovers_of_body,
        {"format": 1, "segments": [7, 8]},
    ),
    "cold mark": (
        ColdMark(5, 600_005),
        cold_mark_record.cold_mark_body,
        cold_mark_record.cold_mark_of_body,
        {"format": 1, "reported": 5, "until": 600_005},
    ),
    "sealed segments": (
        SEALED,
        sealed_segments_record.sealed_segments_body,
        sealed_segments_record.sealed_segments_of_body,
        {"format": 1, "segments": {"5": [2**62, 1], "6": [0, None]}},
    ),
    "intent": (
        INTENT,
        intent_record.intent_body,
        intent_record.intent_of_body,
        {
            "format": 1,
            "kind": "scale_stream",
            "scope": "s",
            "stream": "t",
            "request": "scale_stream-0-3",
            "accepted": 99,
        },
    ),
    "history": (3, history_record.history_body, history_record.history_of_body, {"format": 1, "epoch": 3}),
    "tombstone": (
        12,
        stream_record.tombstone_body,
        stream_record.next_number_of_tombstone,
        {"format": 1, "next_number": 12},
    ),
    "scope": (
        ScopeState.DELETING,
        scope_record.guard_body,
        scope_record.guard_of_body,
        {"format": 1, "state": "DELETING"},
    ),
    "listing": (
        ("a", "b"),
        listing_record.listing_body,
        listing_record.tags_of_body,
        {"format": 1, "tags": ["a", "b"]},
    ),
}


def test_a_duplicate_epoch_names_what_it_repeats():
    body = epoch_record.epoch_body(DUPLICATE)
    assert body["duplicate_of"] == 0
    assert epoch_record.epoch_of_body(json.loads(json.dumps(body))) == DUPLICATE


ADDED_LATER = {"stream": {"configuration_version"}}
"""Fields that records of older versions lack."""


def test_keys_are_where_they_always_were():
    assert stream_record.stream_partition("s", "t") == "stream/s/t"
    assert stream_record.CURRENT_SORT == "current"
    assert epoch_record.TRANSITION_SORT == "transition"
    assert epoch_record.epoch_sort(7) == "epoch/0000000007"
    assert history_record.history_sort(1_000) == "history/00000000000000001000"
    assert sealed_segments_record.sealed_segments_sort((2, 1)) == "sealed/0000000002/0000000001"
    assert sealed_segments_record.shard_of_segment(SECOND_EPOCH | 1_199) == (2, 0)
    assert sealed_segments_record.shard_of_segment(33 << 32 | 400) == (1, 2)
    assert truncation_record.TRUNCATION_SORT == "truncation"
    assert leftovers_record.LEFTOVERS_SORT == "leftovers"
    assert cold_mark_record.cold_mark_sort(SECOND_EPOCH | 7) == "cold/00000000004294967303"
    assert cold_mark_record.segment_of_cold_mark("cold/00000000004294967303") == SECOND_EPOCH | 7
    assert truncation_record.RUNNING_TRUNCATION_SORT == "truncating"
    assert configuration_update_record.UPDATE_SORT == "updating"
    assert (scope_record.guard_partition("s"), scope_record.GUARD_SORT) == ("scope-guard/s", "guard")
    assert scope_record.scope_entry_body() == {"format": 1}
    assert scope_record.SCOPES_PARTITION == "scopes"
    assert listing_record.listing_partition("s") == "scope/s"
    assert listing_record.tag_partition("s", "a/b") == "tag/s/a/b"
    assert listing_record.tag_body() == {"format": 1}
    assert intent_record.intents_partition(3) == "requests/0003"
    assert intent_record.intent_sort(Noun.STREAM, "s/t") == "s/t"
    assert intent_record.intent_sort(Noun.READER_GROUP, "s/t") == "reader-group:s/t"


def test_golden_values_of_a_table_and_its_tombstone():
    table = new_table("s", "k", TableConfiguration(3, 4, 2, 99), 6, 1_000)
    body = key_value_table_record.table_body(table)
    assert body == {
        "format": 1,
        "scope": "s",
        "name": "k",
        "state": "CREATING",
        "configuration": {
            "partitions": 3,
            "primary_key_length": 4,
            "secondary_key_length": 2,
            "rollover_size_bytes": 99,
        },
        "created": 1_000,
        "first_number": 6,
        "pending": ["create_key_value_table", "create_key_value_table-6"],
    }
    assert key_value_table_record.table_of_body(json.loads(json.dumps(body))) == table
    opened = table_created(table)
    assert key_value_table_record.table_of_body(key_value_table_record.table_body(opened)) == opened
    tombstone = key_value_table_record.table_tombstone_body(table.next_segment_number)
    assert tombstone == {"format": 1, "next_number": 9}
    assert key_value_table_record.table_of_body(tombstone) is None
    assert key_value_table_record.next_number_of_table_tombstone(tombstone) == 9
    for strange in ({**body, "state": "MELTING"}, {**body, "format": 2}, {**body, "configuration": {}}):
        with pytest.raises(CorruptError):
            key_value_table_record.table_of_body(strange)
    assert key_value_table_record.table_partition("s", "k") == "key-value-table/s/k"
    assert key_value_table_record.tables_listing_partition("s") == "scope-key-value-tables/s"
    assert key_value_table_record.tables_listing_body() == {"format": 1}


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


def test_an_intent_names_what_it_is_on():
    """The golden value of an intent on a stream is what was stored before there were requests on other nouns."""
    body = intent_record.intent_body(GROUP_INTENT)
    assert body == {
        "format": 1,
        "kind": "create_reader_group",
        "scope": "s",
        "reader-group": "g",
        "request": "create_reader_group-0",
        "accepted": 7,
    }
    assert intent_record.intent_of_body(body) == GROUP_INTENT


@pytest.mark.parametrize("name", SHAPES)
def test_golden_value(name: str):
    value, encode, decode, golden = SHAPES[name]
    assert encode(value) == golden
    assert decode(golden) == value
    assert decode(json.loads(json.dumps(golden))) == value


@pytest.mark.parametrize("name", SHAPES)
def test_an_unknown_format_is_refused(name: str):
    _, _, decode, golden = SHAPES[name]
    for strange in ({**golden, "format": 2}, {key: value for key, value in golden.items() if key != "format"}, {}):
        with pytest.raises(CorruptError, match="format"):
            decode(strange)


@pytest.mark.parametrize("name", SHAPES)
def test_a_missing_field_is_refused(name: str):
    _, _, decode, golden = SHAPES[name]
    for field in golden.keys() - {"format"} - ADDED_LATER.get(name, set()):
        with pytest.raises(CorruptError, match=name):
            decode({key: value for key, value in golden.items() if key != field})


def test_a_stream_from_before_configurations_had_versions_has_version_0():
    golden = SHAPES["stream"][3]
    assert stream_record.stream_of_body({**golden, "configuration_version": 6}) == replace(
        STREAM, configuration_version=6
    )
    assert (
        stream_record.stream_of_body({key: golden[key] for key in golden if key != "configuration_version"}) == STREAM
    )


@pytest.mark.parametrize("name", SHAPES)
def test_a_field_of_another_kind_is_refused(name: str):
    _, _, decode, golden = SHAPES[name]
    refused = 0
    for field in golden.keys() - {"format"}:
        for strange in ([[1]], {"a": []}, object()):
            try:
                decode({**golden, field: strange})
            except CorruptError:
                refused += 1
    assert refused > 0


@pytest.mark.parametrize(
    "change",
    [
        {"state": "MELTING"},
        {"pending": ["explode", "x"]},
        {"pending": ["create_stream"]},
        {"epoch": {"number": 0, "created": 0, "segments": [[0, 0.5, 0.5]], "replaced": []}},
        {"configuration": {}},
    ],
)
def test_a_stream_that_cannot_be_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        stream_record.stream_of_body({**SHAPES["stream"][3], **change})


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
POLICIES = st.one_of(
    st.builds(ScalingPolicy.fixed, st.integers(1, 9)),
    st.builds(ScalingPolicy.by_event_rate, st.integers(1, 2**31 - 1), st.integers(2, 9), st.integers(1, 9)),
)
RETENTION = st.none() | st.builds(
    lambda kind, value, more: RetentionPolicy(kind, value, None if more is None else value + more),
    st.sampled_from(RetentionType),
    st.integers(1, 1_000),
    st.none() | st.integers(0, 1_000),
)
CONFIGURATIONS = st.builds(
    StreamConfiguration,
    POLICIES,
    RETENTION,
    st.lists(TEXT, max_size=5).map(tuple),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)


@st.composite
def _streams(draw: st.DrawFn) -> Stream:
    stream = new_stream(draw(TEXT), draw(TEXT), draw(CONFIGURATIONS), draw(st.integers(0, 1_000)), draw(st.integers(0)))
    if draw(st.booleans()):
        stream = created(stream)
        assert stream.state is StreamState.ACTIVE
    return stream


def test_a_tombstone_is_no_stream():
    assert stream_record.stream_of_body(stream_record.tombstone_body(3)) is None


@given(stream=_streams())
def test_streams_come_back(stream: Stream):
    text = json.dumps(stream_record.stream_body(stream))
    assert stream_record.stream_of_body(json.loads(text)) == stream


@given(count=st.integers(1, 300), parts=st.integers(1, 9), time_ms=st.integers(0, 2**45))
def test_epochs_come_back_with_their_exact_bounds(count: int, parts: int, time_ms: int):
    first = Epoch.first(count, 0, time_ms)
    one = first.segments[count // 2]
    width = one.key_range.high - one.key_range.low
    bounds = sorted(
        {one.key_range.low, one.key_range.high, *(one.key_range.low + width * i / parts for i in range(parts))}
    )
    new = [KeyRange(low, high) for low, high in itertools.pairwise(bounds)]
    epoch = scaled_epoch(first, [one.segment_id], new, time_ms)
    text = json.dumps(epoch_record.epoch_body(epoch))
    assert epoch_record.epoch_of_body(json.loads(text)) == epoch


@given(times=st.lists(st.integers(0, 10**19), min_size=2, max_size=10))
def test_history_sorts_as_time_does(times: list[int]):
    assert sorted(times) == sorted(times, key=history_record.history_sort)


def test_the_largest_records_can_be_stored():
    """DynamoDB takes 400 KB: a stream of 1,000 segments that were all just replaced, with all the tags there may be."""
    tags = tuple(f"{index:03d}" + "\u00e4" * 253 for index in range(128))
    configuration = StreamConfiguration(ScalingPolicy.fixed(1000), tags=tags)
    stream = new_stream("s" * 255, "t" * 250, configuration, 2**31 - 5_000, 10**13)
    epoch = scaled_epoch(stream.epoch, [one.segment_id for one in stream.epoch.segments], equal_ranges(999), 10**13)
    full = Stream(**{**{name: getattr(stream, name) for name in Stream.__slots__}, "epoch": epoch})
    assert len(json.dumps(stream_record.stream_body(full))) < 390 * 1024
    newest = 2**31 - sealed_segments_record.EPOCHS_PER_SHARD
    ids = [
        segment_id(newest + epoch, number)
        for epoch in range(sealed_segments_record.EPOCHS_PER_SHARD)
        for number in range(sealed_segments_record.NUMBERS_PER_SHARD)
    ]
    assert len({sealed_segments_record.shard_of_segment(identifier) for identifier in ids}) == 1
    shard = {identifier: SealedSegment(2**50, 2**31 - 1) for identifier in ids}
    assert len(json.dumps(sealed_segments_record.sealed_segments_body(shard), separators=(",", ":"))) < 390 * 1024
    update = configuration_update_record.configuration_update_body(ConfigurationUpdate(configuration, configuration, 9))
    assert len(json.dumps(update)) < 390 * 1024
    cut = StreamCut("s" * 255, "t" * 250, tuple((one.segment_id, 2**62) for one in stream.epoch.segments))
    head = PlacedCut(cut, stream.epoch.segments)
    running = RunningTruncation(head, 2**31, Truncation(head, 2**31, 2**62), 2**31, 2**62)
    assert len(json.dumps(truncation_record.running_truncation_body(running))) < 390 * 1024
    shard = {2**62 + number: SealedSegment(2**62, 2**31 - 1) for number in range(500)}
    assert len(json.dumps(sealed_segments_record.sealed_segments_body(shard))) < 100 * 1024
