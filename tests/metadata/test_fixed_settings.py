"""Settings that are chosen once: the first value is recorded, and another value is refused."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.metadata.fixed_settings import (
    FixedSetting,
    FixedSettingsReader,
    check_fixed_setting,
    decode_fixed_setting,
)
from headrace.model.errors import CorruptError, IllegalStateError
from headrace.model.formats import RELEASE
from headrace.ports.metadata_store import Key


def test_first_value_is_recorded_and_another_refused():
    world = StreamWorld()
    world.calls.counts.clear()
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8)
    check_fixed_setting(world.store, FixedSetting.BUCKETS, 16)
    assert dict(world.calls.counts) == {"read": 2, "write": 2}
    world.calls.counts.clear()
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8)
    assert dict(world.calls.counts) == {"read": 1}
    with pytest.raises(IllegalStateError, match=r"was started with 8 containers.* for 9.* -c containers=8") as error:
        check_fixed_setting(world.store, FixedSetting.CONTAINERS, 9)
    assert error.value.specific_code == "setting_changed"
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8)


def test_one_of_two_concurrent_first_values_is_refused():
    world = StreamWorld()
    with (
        world.calls.overtaken("write", lambda: check_fixed_setting(world.store, FixedSetting.BUCKETS, 8)),
        pytest.raises(IllegalStateError, match="was started with 8 buckets"),
    ):
        check_fixed_setting(world.store, FixedSetting.BUCKETS, 16)


def test_the_containers_of_s3_change_once_from_zero():
    world = StreamWorld()
    check_fixed_setting(world.store, FixedSetting.S3_CONTAINERS, 0)
    check_fixed_setting(world.store, FixedSetting.S3_CONTAINERS, 4)
    for other in (0, 3):
        with pytest.raises(IllegalStateError, match="was started with 4 s3_containers"):
            check_fixed_setting(world.store, FixedSetting.S3_CONTAINERS, other)


def test_a_reader_asks_once_although_zero_is_not_recorded():
    world = StreamWorld()
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8)
    reader = FixedSettingsReader(world.store, {FixedSetting.CONTAINERS: 8, FixedSetting.S3_CONTAINERS: 0})
    world.calls.counts.clear()
    reader.check()
    asked = dict(world.calls.counts)
    reader.check()
    assert asked
    assert dict(world.calls.counts) == asked


def test_golden_value():
    world = StreamWorld()
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8)
    record = world.store.get(Key("cluster", "setting/containers"))
    assert record is not None
    assert record.body == {"format": 2, "value": 8, "finalized": RELEASE}
    check_fixed_setting(world.store, FixedSetting.BUCKETS, 16)
    record = world.store.get(Key("cluster", "setting/buckets"))
    assert record is not None
    assert record.body == {"format": 1, "value": 16}


@pytest.mark.parametrize("body", [{}, {"format": 3, "value": 8}, {"format": 1}, {"format": 1, "value": "many"}])
def test_an_invalid_record_is_refused(body: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_fixed_setting(body)
