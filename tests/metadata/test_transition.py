"""The record of the epoch that a running scale creates: golden value and key."""

from __future__ import annotations

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.stream import create_transition, delete_transition, find_transition
from headrace.model.epochs import scaled_epoch
from headrace.model.segments import KeyRange
from headrace.model.stream_configuration import ScalingPolicy, StreamConfiguration
from headrace.model.streams import new_stream
from headrace.ports.metadata_store import Create, Key

STREAM = new_stream("s", "t", StreamConfiguration(ScalingPolicy.fixed(2)), 5, 1_000)
PLANNED = scaled_epoch(STREAM.epoch, [5, 6], [KeyRange(0.0, 1.0)], 2_000)


def test_golden_value():
    assert create_transition(STREAM, PLANNED) == Create(
        Key("stream/s/t", "transition"),
        {
            "format": 1,
            "number": 1,
            "created": 2_000,
            "segments": [[1 << 32 | 7, 0.0, 1.0]],
            "replaced": [[5, 0.0, 0.5], [6, 0.5, 1.0]],
            "duplicate_of": None,
        },
    )


def test_the_planned_epoch_is_found_until_it_is_deleted():
    store = MemoryMetadataStore()
    assert find_transition(store, STREAM) is None
    store.write(create_transition(STREAM, PLANNED))
    assert find_transition(store, STREAM) == PLANNED
    store.write(delete_transition(STREAM))
    assert find_transition(store, STREAM) is None
