"""The gate of new formats: what the record of the number of containers allows, and who is refused by it."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.metadata.fixed_settings import (
    FixedSetting,
    FixedSettingsReader,
    check_fixed_setting,
    finalized_body,
    finalized_release,
    fixed_setting_body,
    fixed_setting_key,
    restored_body,
    restoring_body,
)
from headrace.metadata.format_gate import EXPIRY_S, FormatGate, check_new_name, finalize_writes, find_finalized_release
from headrace.model.errors import ConflictError, CorruptError, IllegalStateError
from headrace.model.formats import FROZEN_STREAMS, RELEASE
from headrace.ports.metadata_store import Create, Record, Replace

KEY = fixed_setting_key(FixedSetting.CONTAINERS)
LATER = "99.0"


def world_of_a_former_release() -> StreamWorld:
    """What release 0.2 has recorded."""
    world = StreamWorld()
    world.store.write(Create(KEY, fixed_setting_body(8)))
    return world


def test_a_new_deployment_allows_all_formats():
    world = StreamWorld()
    gate = FormatGate(world.store, world.clock)
    gate.check(FROZEN_STREAMS)
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8)
    assert find_finalized_release(world.store) == RELEASE
    FormatGate(world.store, world.clock).check(FROZEN_STREAMS)


def test_a_former_release_can_be_brought_back_before_the_end():
    """Processes of this release leave the record as the former one reads it."""
    world = world_of_a_former_release()
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8)
    record = world.store.get(KEY)
    assert record is not None
    assert record.body == {"format": 1, "value": 8}
    with pytest.raises(IllegalStateError) as error:
        FormatGate(world.store, world.clock).check(FROZEN_STREAMS)
    assert error.value.specific_code == "upgrade_not_finalized"


def test_a_process_learns_of_the_finalization_after_a_minute():
    world = world_of_a_former_release()
    gate = FormatGate(world.store, world.clock)
    world.calls.counts.clear()
    for _ in range(3):
        with pytest.raises(IllegalStateError):
            gate.check(FROZEN_STREAMS)
    assert dict(world.calls.counts) == {"read": 1}
    world.store.write(*finalize_writes(world.store))
    with pytest.raises(IllegalStateError):
        gate.check(FROZEN_STREAMS)
    world.clock.advance(int(EXPIRY_S * 1000))
    world.calls.counts.clear()
    for _ in range(3):
        gate.check(FROZEN_STREAMS)
        world.clock.advance(int(EXPIRY_S * 1000))
    assert dict(world.calls.counts) == {"read": 1}


def test_finalizing_again_writes_nothing():
    world = world_of_a_former_release()
    (write,) = finalize_writes(world.store)
    assert write == Replace(KEY, {"format": 2, "value": 8, "finalized": RELEASE}, 0)
    world.store.write(write)
    assert finalize_writes(world.store) == []
    assert finalize_writes(StreamWorld().store) == []


def test_a_later_release_than_this_refuses_each_process():
    world = StreamWorld()
    world.store.write(Create(KEY, finalized_body(8, LATER)))
    for check in (
        lambda: check_fixed_setting(world.store, FixedSetting.CONTAINERS, 8),
        FixedSettingsReader(world.store, {FixedSetting.CONTAINERS: 8}).check,
        lambda: finalize_writes(world.store),
    ):
        with pytest.raises(IllegalStateError) as error:
            check()
        assert error.value.specific_code == "release_too_old"


def test_a_setting_that_was_not_recorded_is_read_again():
    world = world_of_a_former_release()
    reader = FixedSettingsReader(world.store, {FixedSetting.CONTAINERS: 8, FixedSetting.BUCKETS: 4})
    reader.check()
    check_fixed_setting(world.store, FixedSetting.BUCKETS, 5)
    with pytest.raises(IllegalStateError) as error:
        reader.check()
    assert error.value.specific_code == "setting_changed"


def test_a_restore_keeps_the_finalized_release():
    setting = Record(KEY, 3, finalized_body(8, RELEASE))
    during = Record(KEY, 4, restoring_body(setting, 1_000))
    assert finalized_release(during) == RELEASE
    assert restored_body(during) == setting.body


def test_an_upgrade_is_not_finalized_during_a_restore():
    world = world_of_a_former_release()
    record = world.store.get(KEY)
    assert record is not None
    world.store.write(Replace(KEY, restoring_body(record, 1_000), record.version))
    with pytest.raises(ConflictError, match="a restore of this deployment is not finished"):
        finalize_writes(world.store)


@pytest.mark.parametrize("release", [None, 3, "0", "newest"])
def test_a_record_without_a_release_is_corrupt(release: Any):
    with pytest.raises(CorruptError, match="instead of a release"):
        finalized_release(Record(KEY, 0, {"format": 2, "value": 8, "finalized": release}))


def test_names_that_release_0_2_refuses_wait():
    world = world_of_a_former_release()
    world.calls.counts.clear()
    check_new_name(world.store, "flight-delays")
    assert not world.calls.counts
    with pytest.raises(IllegalStateError, match="names with '_' inside need release"):
        check_new_name(world.store, "flight_delays")
    world.store.write(*finalize_writes(world.store))
    check_new_name(world.store, "flight_delays")
