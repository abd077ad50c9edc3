"""Which configurations a stream may have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidRequestError
from headrace.model.stream_configuration import (
    DAY_MS,
    MB_BYTES,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
    check_tag,
)

FIXED = ScalingPolicy.fixed(1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ScalingPolicy.fixed(0),
        lambda: ScalingPolicy.fixed(-1),
        lambda: ScalingPolicy.fixed(1001),
        lambda: ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, 1, target_rate=1),
        lambda: ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, 1, scale_factor=2),
        lambda: ScalingPolicy.by_event_rate(0, 2, 1),
        lambda: ScalingPolicy.by_event_rate(1, 1, 1),
        lambda: ScalingPolicy.by_data_rate(2**31, 2, 1),
        lambda: ScalingPolicy.by_data_rate(1, 2, 0),
        lambda: RetentionPolicy(RetentionType.LIMITED_DAYS, 0),
        lambda: RetentionPolicy(RetentionType.LIMITED_SIZE_MB, 10, 9),
        lambda: StreamConfiguration(FIXED, timestamp_aggregation_timeout_ms=-1),
        lambda: StreamConfiguration(FIXED, rollover_size_bytes=-1),
        lambda: StreamConfiguration(FIXED, tags=("",)),
        lambda: StreamConfiguration(FIXED, tags=("x" * 257,)),
        lambda: StreamConfiguration(FIXED, tags=("\ud800",)),
        lambda: StreamConfiguration(FIXED, tags=tuple(map(str, range(129)))),
        lambda: StreamConfiguration(FIXED, tags=tuple(f"{index:03d}" + "\U0001f600" * 250 for index in range(128))),
    ],
)
def test_what_is_out_of_bounds_is_refused(build: Callable[[], object]):
    with pytest.raises(InvalidRequestError):
        build()


def test_what_is_at_the_bounds_is_accepted():
    assert ScalingPolicy.fixed(1000).min_segments == 1000
    assert ScalingPolicy.by_data_rate(2**31 - 1, 1000, 1000).target_rate == 2**31 - 1
    assert RetentionPolicy(RetentionType.LIMITED_SIZE_MB, 10, 10).max_value == 10
    assert check_tag("x" * 256) == "x" * 256
    assert len(StreamConfiguration(FIXED, tags=tuple(map(str, range(128)))).tags) == 128
    assert len(StreamConfiguration(FIXED, tags=tuple(f"{index:03d}" + "x" * 253 for index in range(128))).tags) == 128


@pytest.mark.parametrize(
    ("policy", "minimum", "maximum"),
    [
        (RetentionPolicy(RetentionType.LIMITED_DAYS, 2, 3), 2 * DAY_MS, 3 * DAY_MS),
        (RetentionPolicy(RetentionType.LIMITED_TIME_MS, 2, 3), 2, 3),
        (RetentionPolicy(RetentionType.LIMITED_SIZE_MB, 2), 2 * MB_BYTES, None),
        (RetentionPolicy(RetentionType.LIMITED_SIZE_BYTES, 2, 2**63 - 1), 2, 2**63 - 1),
    ],
)
def test_limits_are_in_ms_or_bytes(policy: RetentionPolicy, minimum: int, maximum: int | None):
    assert (policy.minimum, policy.maximum) == (minimum, maximum)


@given(st.integers(1, 2**63 - 1), st.none() | st.integers(0, 2**40), st.sampled_from([1, DAY_MS, MB_BYTES]))
def test_nothing_is_rounded(least: int, more: int | None, unit: int):
    least = max(unit, least // unit * unit)
    most = None if more is None else min(2**63 - 1, least + more * unit)
    for build, is_by_time in ((RetentionPolicy.by_time, True), (RetentionPolicy.by_size, False)):
        policy = build(least, most)
        assert (policy.minimum, policy.maximum, policy.is_by_time) == (least, most, is_by_time)


def test_tags_are_a_set():
    assert StreamConfiguration(FIXED, tags=("b", "a", "b")).tags == ("a", "b")
    assert StreamConfiguration(FIXED, tags=("b", "a")) == StreamConfiguration(FIXED, tags=("a", "b", "a"))
