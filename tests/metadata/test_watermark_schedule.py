"""The schedule of watermarks: golden values and key."""

from __future__ import annotations

from dataclasses import replace

from golden_records import GoldenRecords

from headrace.metadata.watermark_schedule import (
    ScheduledStream,
    decode_watermark_schedule,
    watermark_schedule_body,
    watermark_schedule_key,
    watermark_schedule_partition,
)
from headrace.ports.metadata_store import Key

SCHEDULED = ScheduledStream("s", "t", 7, 3)
GOLDEN = {"format": 1, "scope": "s", "stream": "t", "first_number": 7, "writers": 3}


class TestWatermarkSchedule(GoldenRecords):
    shapes = {
        "watermark schedule": (SCHEDULED, watermark_schedule_body, decode_watermark_schedule, GOLDEN),
    }


def test_failures_are_stored_if_there_were_any():
    failed = replace(SCHEDULED, failures=2, not_before_ms=5)
    assert watermark_schedule_body(failed) == GOLDEN | {"failures": 2, "not_before": 5}
    assert decode_watermark_schedule(watermark_schedule_body(failed)) == failed


def test_key():
    assert watermark_schedule_key("s", "t") == Key("watermarks/0000", "s/t")
    assert watermark_schedule_partition(3) == "watermarks/0003"
