"""Which configurations a stream may have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import InvalidRequestError
from headrace.model.limits import TAGS_BYTES_MAX
from headrace.model.log_classes import LogClass
from headrace.model.stream_configuration import (
    DAY_MS,
    MB_BYTES,
    ConfigurationUpdate,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
    check_log_class,
    check_tag,
)

FIXED = ScalingPolicy.fixed(1)
LARGEST_TAGS = tuple(chr(0x100 + index) + "\u00e9" * 255 for index in range(128))
"""As many as may be, of as many characters as may be, of two bytes each."""


@pytest.mark.parametrize(
    "build",
    [
        lambda: ScalingPolicy.fixed(0),
        lambda: ScalingPolicy.fixed(-1),
        lambda: ScalingPolicy.fixed(1001),
        lambda: ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, 1, target_rate=1),
        lambda: ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, 1, scale_factor=2),
        lambda: ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, 1, target_rate=-1),
        lambda: ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, 1, scale_factor=-1),
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
        lambda: StreamConfiguration(FIXED, tags=("a tag \udfff",)),
        lambda: StreamConfiguration(FIXED, tags=("\u20ac" + LARGEST_TAGS[0][1:], *LARGEST_TAGS[1:])),
        lambda: ScalingPolicy(ScalingType.FIXED_NUM_SEGMENTS, 1, scale_factor=1),
        lambda: ScalingPolicy("a type", 1, 1, 2),  # type: ignore[arg-type]
        lambda: RetentionPolicy("a type", 1),  # type: ignore[arg-type]
        lambda: RetentionPolicy.by_time("1"),  # type: ignore[arg-type]
        lambda: RetentionPolicy.by_size(MB_BYTES, "2"),  # type: ignore[arg-type]
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
    assert ScalingPolicy.by_event_rate(1, 2, 1).target_rate == 1
    assert check_tag("x" * 256) == "x" * 256
    assert sum(len(tag.encode()) for tag in StreamConfiguration(FIXED, tags=LARGEST_TAGS).tags) == TAGS_BYTES_MAX
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


@pytest.mark.parametrize(
    ("least", "most", "is_coarse"),
    [(1, None, True), (2, 3, True), (2**31 - 1, 2**31 - 1, True), (1, 2**31, False), (2**31, None, False)],
)
@pytest.mark.parametrize("build", [RetentionPolicy.by_time, RetentionPolicy.by_size])
def test_whole_days_and_megabytes_are_told_as_such(
    build: Callable[[int, int | None], RetentionPolicy], least: int, most: int | None, *, is_coarse: bool
):
    by_time = build == RetentionPolicy.by_time
    unit = DAY_MS if by_time else MB_BYTES
    coarse = RetentionType.LIMITED_DAYS if by_time else RetentionType.LIMITED_SIZE_MB
    fine = RetentionType.LIMITED_TIME_MS if by_time else RetentionType.LIMITED_SIZE_BYTES
    least_size, most_size = least * unit, None if most is None else most * unit
    expected = RetentionPolicy(coarse, least, most) if is_coarse else RetentionPolicy(fine, least_size, most_size)
    assert build(least_size, most_size) == expected
    if most_size is None:
        assert build(least_size + 1, None) == RetentionPolicy(fine, least_size + 1)
    else:
        assert build(least_size, most_size + 1) == RetentionPolicy(fine, least_size, most_size + 1)


def test_the_refusal_of_a_long_tag_is_short():
    with pytest.raises(InvalidRequestError, match="text of 1 to 256 characters") as refused:
        check_tag("x" * 1_000_000)
    assert len(refused.value.message) < 200


def test_an_update_tells_what_it_changes():
    before = StreamConfiguration(ScalingPolicy.fixed(2), tags=("kept", *"abc"))
    after = StreamConfiguration(ScalingPolicy.fixed(3), tags=("kept", *"xyz"))
    update = ConfigurationUpdate(before, after, 1)
    assert (update.added_tags, update.removed_tags) == (("x", "y", "z"), ("a", "b", "c"))
    assert [ConfigurationUpdate(*pair, 1).raises_minimum for pair in ((before, after), (after, before))] == [
        True,
        False,
    ]
    assert not ConfigurationUpdate(before, before, 1).raises_minimum


def test_the_class_of_a_stream_never_changes():
    for given_class in (None, LogClass.S3):
        check_log_class("s/t", LogClass.S3, given_class)
    with pytest.raises(InvalidRequestError, match="create another stream") as refused:
        check_log_class("s/t", LogClass.S3, LogClass.STORES)
    assert refused.value.specific_code == "log_class_fixed"


def test_tags_are_a_set():
    assert StreamConfiguration(FIXED, tags=("b", "a", "b")).tags == ("a", "b")
    assert StreamConfiguration(FIXED, tags=("b", "a")) == StreamConfiguration(FIXED, tags=("a", "b", "a"))
