"""The current record of a stream: golden values, key, and the refusal of invalid records."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from golden_records import FIRST, THIRD, TWO_THIRDS, GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.stream import (
    SEGMENTS_IN_CURRENT_MAX,
    TagsReference,
    configuration_update_body,
    configuration_update_key,
    current_key,
    decode_configuration_update,
    decode_epoch,
    decode_stream,
    decode_stream_tags,
    decode_tombstone,
    epoch_body,
    epoch_key,
    epoch_reference,
    stream_body,
    stream_tags_body,
    stream_tags_key,
    tags_reference,
    tombstone_body,
)
from headrace.model.epochs import Epoch, scaled_epoch
from headrace.model.errors import CorruptError
from headrace.model.requests import PendingRequest, RequestKind
from headrace.model.segments import KeyRange, StreamSegment
from headrace.model.stream_configuration import (
    ConfigurationUpdate,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfiguration,
)
from headrace.model.stream_state import StreamState
from headrace.model.streams import Stream, completed, new_stream
from headrace.ports.metadata_store import Key

CONFIGURATION = StreamConfiguration(
    ScalingPolicy.by_data_rate(100, 2, 3),
    RetentionPolicy(RetentionType.LIMITED_SIZE_MB, 10, 20),
    ("a", "Straße"),
    timestamp_aggregation_timeout_ms=7,
    rollover_size_bytes=8,
)
STREAM = new_stream("s", "t", CONFIGURATION, 5, 1_000)
GOLDEN_CONFIGURATION = {
    "scaling": ["BY_RATE_IN_KBYTES_PER_SEC", 3, 100, 2],
    "retention": ["LIMITED_SIZE_MB", 10, 20],
    "tags": ["Straße", "a"],
    "timestamp_aggregation_timeout_ms": 7,
    "rollover_size_bytes": 8,
}
GOLDEN = {
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
}


class TestStream(GoldenRecords):
    shapes = {
        "stream": (STREAM, stream_body, decode_stream, GOLDEN),
        "tombstone": (12, tombstone_body, decode_tombstone, {"format": 1, "next_number": 12}),
    }


def test_key():
    assert current_key("s", "t") == Key("stream/s/t", "current")


def test_a_record_that_names_its_tags_does_not_hold_them():
    body = stream_body(STREAM, tags_version=2)
    assert body["configuration"] == GOLDEN_CONFIGURATION | {"tags": None, "tags_version": 2}
    assert tags_reference(body) == TagsReference("s", "t", 5, 2)
    assert decode_stream(body, tags=STREAM.configuration.tags) == STREAM
    with pytest.raises(CorruptError, match="tags 2 of s/t are missing"):
        decode_stream(body)


def test_a_stream_record_has_the_version_of_its_configuration():
    assert decode_stream({**GOLDEN, "configuration_version": 6}) == replace(STREAM, configuration_version=6)


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
        decode_stream({**GOLDEN, **change})


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
        stream = completed(stream)
        assert stream.state is StreamState.ACTIVE
    return stream


def test_a_tombstone_is_not_a_stream():
    assert decode_stream(tombstone_body(3)) is None


@given(stream=_streams())
def test_streams_come_back(stream: Stream):
    body = json.loads(json.dumps(stream_body(stream)))
    reference = epoch_reference(body)
    assert (reference is not None) == (len(stream.epoch.segments) > SEGMENTS_IN_CURRENT_MAX)
    assert decode_stream(body, stream.epoch if reference else None) == stream


def test_a_large_epoch_is_stored_by_number_and_must_match():
    large = new_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(9)), 5, 1_000)
    body = stream_body(large)
    assert body["epoch"] == {"number": 0, "created": 1_000, "next_number": 14}
    for wrong in (None, STREAM.epoch, replace(large.epoch, creation_time_ms=999)):
        with pytest.raises(CorruptError):
            decode_stream(body, wrong)


def test_a_waiting_request_is_stored_only_if_there_is_one():
    waiting = replace(
        completed(STREAM),
        state=StreamState.COMMITTING_TXN,
        pending=PendingRequest(RequestKind.COMMIT_TRANSACTIONS, "c"),
        following=PendingRequest(RequestKind.SCALE_STREAM, "x"),
    )
    body = stream_body(waiting)
    assert body["following"] == ["scale_stream", "x"]
    assert decode_stream(body) == waiting
    assert "following" not in stream_body(STREAM)


class TestStreamTags(GoldenRecords):
    shapes = {
        "stream tags": (
            ("blue", "\u0142"),
            stream_tags_body,
            decode_stream_tags,
            {"format": 1, "tags": ["blue", "\u0142"]},
        )
    }


def test_key_of_stream_tags():
    assert stream_tags_key("s", "t", 7, 3) == Key("stream/s/t", "tags/0000000007/0000000003")


BEFORE = StreamConfiguration(
    ScalingPolicy.by_data_rate(100, 2, 3),
    RetentionPolicy(RetentionType.LIMITED_SIZE_MB, 10, 20),
    ("a", "Straße"),
    timestamp_aggregation_timeout_ms=7,
    rollover_size_bytes=8,
)


class TestConfigurationUpdate(GoldenRecords):
    shapes = {
        "configuration update": (
            ConfigurationUpdate(BEFORE, StreamConfiguration(ScalingPolicy.fixed(2)), 4),
            configuration_update_body,
            decode_configuration_update,
            {
                "format": 1,
                "before": {
                    "scaling": ["BY_RATE_IN_KBYTES_PER_SEC", 3, 100, 2],
                    "retention": ["LIMITED_SIZE_MB", 10, 20],
                    "tags": ["Straße", "a"],
                    "timestamp_aggregation_timeout_ms": 7,
                    "rollover_size_bytes": 8,
                },
                "after": {
                    "scaling": ["FIXED_NUM_SEGMENTS", 2, 0, 0],
                    "retention": None,
                    "tags": [],
                    "timestamp_aggregation_timeout_ms": 0,
                    "rollover_size_bytes": 0,
                },
                "version": 4,
            },
        )
    }


def test_key_of_configuration_update():
    assert configuration_update_key("s", "t") == Key("stream/s/t", "updating")


SCALED = scaled_epoch(FIRST, [5], [KeyRange(0.0, 0.1), KeyRange(0.1, 1 / 3)], 2_000)
DUPLICATE = Epoch(
    2,
    3_000,
    (StreamSegment(2 << 32 | 5, KeyRange(0.0, 1 / 3)), StreamSegment(2 << 32 | 6, KeyRange(1 / 3, 1.0))),
    (StreamSegment(1 << 32 | 7, KeyRange(0.0, 1.0)),),
    duplicate_of=0,
)
SECOND_EPOCH = 1 << 32


class TestEpoch(GoldenRecords):
    shapes = {
        "epoch": (
            SCALED,
            epoch_body,
            decode_epoch,
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
        )
    }


def test_key_of_epoch():
    assert epoch_key("s", "t", 7) == Key("stream/s/t", "epoch/0000000007")


def test_a_duplicate_epoch_names_what_it_repeats():
    body = epoch_body(DUPLICATE)
    assert body["duplicate_of"] == 0
    assert decode_epoch(json.loads(json.dumps(body))) == DUPLICATE


@given(count=st.integers(1, 300), parts=st.integers(1, 9), time_ms=st.integers(0, 2**45))
def test_epochs_come_back_with_their_exact_bounds(count: int, parts: int, time_ms: int):
    first = Epoch.first(count, 0, time_ms)
    segment = first.segments[count // 2]
    width = segment.key_range.high - segment.key_range.low
    bounds = sorted(
        {
            segment.key_range.low,
            segment.key_range.high,
            *(segment.key_range.low + width * i / parts for i in range(parts)),
        }
    )
    new = [KeyRange(low, high) for low, high in itertools.pairwise(bounds)]
    epoch = scaled_epoch(first, [segment.segment_id], new, time_ms)
    text = json.dumps(epoch_body(epoch))
    assert decode_epoch(json.loads(text)) == epoch
