"""The records of restores."""

from __future__ import annotations

from typing import ClassVar

import pytest
from golden_records import GoldenRecords, Shape

from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.metadata.cluster_records import MAP_KEY, claim_key, lease_key
from headrace.metadata.evicted_segment import evicted_segment_key
from headrace.metadata.fixed_settings import (
    RESTORE_NOT_FINISHED,
    FixedSetting,
    FixedSettingsReader,
    check_fixed_setting,
)
from headrace.metadata.restoration import (
    SETTING_KEY,
    UNFINISHED_KEY,
    RestoredContainer,
    UnfinishedRestore,
    begin_writes,
    decode_unfinished,
    end_writes,
    is_special,
    read_unfinished,
    unfinished_body,
)
from headrace.metadata.trust import trust_key
from headrace.model.errors import IllegalStateError
from headrace.model.restore_plan import RestoredEpochs
from headrace.ports.metadata_store import Key

RESTORE = UnfinishedRestore(
    "copy",
    5_000,
    9_000,
    (RestoredContainer(0, RestoredEpochs(7, 8), None), RestoredContainer(3, RestoredEpochs(1, 2), 99)),
)


class TestUnfinished(GoldenRecords):
    shapes: ClassVar[dict[str, Shape]] = {
        "unfinished restore": (
            RESTORE,
            unfinished_body,
            decode_unfinished,
            {"format": 1, "table": "copy", "at": 5_000, "begun": 9_000, "containers": [[0, 7, None], [3, 1, 99]]},
        )
    }


@pytest.fixture
def store() -> MemoryMetadataStore:
    """A deployment of four containers that a restore has just begun with."""
    store = MemoryMetadataStore()
    check_fixed_setting(store, FixedSetting.CONTAINERS, 4)
    setting = store.get(SETTING_KEY)
    assert setting is not None
    store.write(*begin_writes(RESTORE, None, setting))
    return store


def test_no_process_starts_during_a_restore(store: MemoryMetadataStore):
    with pytest.raises(IllegalStateError) as stores:
        check_fixed_setting(store, FixedSetting.CONTAINERS, 4)
    with pytest.raises(IllegalStateError) as functions:
        FixedSettingsReader(store, {FixedSetting.CONTAINERS: 4}).check()
    assert {stores.value.specific_code, functions.value.specific_code} == {RESTORE_NOT_FINISHED}


def test_processes_start_after_a_restore(store: MemoryMetadataStore):
    noted, setting = store.get_many([UNFINISHED_KEY, SETTING_KEY])
    assert noted is not None
    assert setting is not None
    store.write(*end_writes(read_unfinished(noted), noted, setting, 9_500, [("imported", 3)]))
    check_fixed_setting(store, FixedSetting.CONTAINERS, 4)
    assert store.get(UNFINISHED_KEY) is None
    (done,) = store.query(UNFINISHED_KEY.partition, limit=5).records
    assert done.body["counts"] == {"imported": 3}
    assert (done.body["at"], done.body["done"]) == (5_000, 9_500)


@pytest.mark.parametrize("key", [claim_key(3), lease_key("store-0"), MAP_KEY, SETTING_KEY, UNFINISHED_KEY, trust_key()])
def test_special_records_are_not_copied(key: Key):
    assert is_special(key)


@pytest.mark.parametrize(
    "key", [evicted_segment_key("a/b/0"), Key("cluster", "setting/buckets"), Key("stream/a/b", "x")]
)
def test_all_other_records_are_copied(key: Key):
    assert not is_special(key)
