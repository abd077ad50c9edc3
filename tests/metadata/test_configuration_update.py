"""The record of a running update: golden value and key."""

from __future__ import annotations

from golden_records import GoldenRecords

from headrace.metadata.configuration_update import (
    configuration_update_body,
    configuration_update_key,
    decode_configuration_update,
)
from headrace.model.stream_configuration import (
    ConfigurationUpdate,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfiguration,
)
from headrace.ports.metadata_store import Key

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


def test_key():
    assert configuration_update_key("s", "t") == Key("stream/s/t", "updating")
