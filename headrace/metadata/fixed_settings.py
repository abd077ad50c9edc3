"""Settings that are chosen once for a deployment: one record each. The first process that uses a setting records it.

A process with another number of containers would look for segments in the wrong container. With another number of
buckets it would look for due work in the wrong partition. So a process with another value refuses to work.

The record of the number of containers, which each process reads when it starts, also names the release for which the
deployment is finalized (`headrace.model.formats`). It then has format 2, so that release 0.2 refuses to start. Format 1
means that release 0.2 may run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from headrace.metadata.record_layout import FORMAT, decoded, versioned
from headrace.model.containers import CLUSTER_PARTITION
from headrace.model.errors import CorruptError, IllegalStateError
from headrace.model.formats import FIRST_RELEASE, RELEASE, check_release, is_release
from headrace.ports.metadata_store import Body, Create, Key, MetadataStore, Record, WriteConflictError

SETTING_CHANGED = "setting_changed"
RESTORE_NOT_FINISHED = "restore_not_finished"

FINALIZED_FORMAT: Final = 2
"""Of a record that names a release."""

_RESTORING = "restoring"
_FINALIZED = "finalized"


class FixedSetting(StrEnum):
    """Named as the setting of `cdk deploy`."""

    CONTAINERS = "containers"
    BUCKETS = "buckets"
    S3_CONTAINERS = "s3_containers"
    """May change once, from 0 to another number: 0 is not recorded."""


_SETTINGS_FIRST = "setting/"


def fixed_setting_sort(name: str) -> str:
    return f"{_SETTINGS_FIRST}{name}"


def is_fixed_setting(key: Key) -> bool:
    """Whether a key is that of a setting."""
    return key.partition == CLUSTER_PARTITION and key.sort.startswith(_SETTINGS_FIRST)


def fixed_setting_body(value: int) -> dict[str, Any]:
    return versioned(value=value)


def finalized_body(value: int, release: str) -> dict[str, Any]:
    """The number of containers of a deployment that is finalized for a release."""
    return {"format": FINALIZED_FORMAT, "value": value, _FINALIZED: release}


def decode_fixed_setting(body: Body) -> int:
    known = {**body, "format": FORMAT} if body.get("format") == FINALIZED_FORMAT else body
    return decoded("setting", known, lambda fields: int(fields["value"]))


def finalized_release(record: Record | None) -> str:
    """The release for which a deployment is finalized, by the record of the number of containers.

    Without a record no process has started yet, and no former release either.

    Raises:
        CorruptError: the record does not name a release.
    """
    if record is None:
        return RELEASE
    if record.body.get("format") != FINALIZED_FORMAT:
        return FIRST_RELEASE
    release = record.body.get(_FINALIZED)
    if not is_release(release):
        raise CorruptError(f"a setting record names {str(release)[:100]!r} instead of a release")
    return str(release)


def read_fixed_setting(record: Record) -> int:
    """The value in the record of a setting; raises CorruptError if it is not one."""
    return decode_fixed_setting(record.body)


def restoring_body(setting: Record, at_ms: int) -> dict[str, Any]:
    """The record of a setting while the deployment is restored to the time `at_ms`: no process starts with it."""
    return {**setting.body, _RESTORING: at_ms}


def restored_body(setting: Record) -> dict[str, Any]:
    """The record of a setting after a restore."""
    return {name: value for name, value in setting.body.items() if name != _RESTORING}


def is_restoring(record: Record) -> bool:
    """Whether the record keeps processes from starting, because a restore is not finished."""
    return _RESTORING in record.body


def fixed_setting_key(setting: FixedSetting) -> Key:
    return Key(CLUSTER_PARTITION, fixed_setting_sort(setting))


def check_fixed_setting(store: MetadataStore, setting: FixedSetting, value: int) -> None:
    """One read; the first process of a deployment also writes the record.

    Raises:
        IllegalStateError: code "setting_changed": the deployment was started with another value. Code
            "restore_not_finished": its metadata are being restored. Code "release_too_old": it is finalized for a later
            release.
        UnavailableError, ThrottledError: the metadata store does not answer.
    """
    key = fixed_setting_key(setting)
    record = store.get(key)
    if record is None and value:
        try:
            store.write(Create(key, _first_body(setting, value)))
        except WriteConflictError:
            record = store.get(key)  # another process wrote the record first
    if record is not None:
        _check_value(setting, value, record)


class FixedSettingsReader:
    """Checks the settings of a process against the recorded ones. It never writes: some functions may only read.

    A check costs one batch read, and nothing once a check has found every setting recorded. Safe for any number of
    threads.
    """

    def __init__(self, store: MetadataStore, settings: Mapping[FixedSetting, int]) -> None:
        self._store = store
        self._settings = settings
        self._is_settled = False

    def check(self) -> None:
        """Raises as `check_fixed_setting` does."""
        if self._is_settled:
            return
        records = self._store.get_many([fixed_setting_key(setting) for setting in self._settings])
        for (setting, value), record in zip(self._settings.items(), records, strict=True):
            if record is not None:
                _check_value(setting, value, record)
        pairs = zip(records, self._settings.values(), strict=True)
        self._is_settled = all(record is not None or not value for record, value in pairs)


def _first_body(setting: FixedSetting, value: int) -> dict[str, Any]:
    """A deployment that begins with this release is finalized for it: there is none to go back to."""
    return finalized_body(value, RELEASE) if setting is FixedSetting.CONTAINERS else fixed_setting_body(value)


def _check_value(setting: FixedSetting, value: int, record: Record) -> None:
    recorded = read_fixed_setting(record)
    check_release(finalized_release(record) if setting is FixedSetting.CONTAINERS else FIRST_RELEASE)
    if is_restoring(record):
        raise IllegalStateError(
            "a restore of this deployment is not finished: repeat `headrace restore apply`",
            code=RESTORE_NOT_FINISHED,
        )
    if recorded != value:
        raise IllegalStateError(
            f"this deployment was started with {recorded} {setting} and is now configured for {value}: the number "
            f"must not change, because stored data is located by it; deploy again with -c {setting}={recorded}",
            details={"setting": str(setting), "recorded": recorded, "configured": value},
            code=SETTING_CHANGED,
        )
