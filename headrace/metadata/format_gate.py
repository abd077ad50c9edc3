"""The gate of new formats: which the deployment allows, as the record of the number of containers says."""

from __future__ import annotations

from typing import Final

from headrace.metadata.fixed_settings import (
    FixedSetting,
    finalized_body,
    finalized_release,
    fixed_setting_key,
    is_restoring,
    read_fixed_setting,
)
from headrace.model.errors import ConflictError
from headrace.model.formats import NAMES_WITH_UNDERSCORES, RELEASE, check_may_write, check_release, formats_waiting
from headrace.ports.clock import Clock
from headrace.ports.metadata_store import MetadataStore, Replace, Write

EXPIRY_S: Final = 60.0
"""A process learns of a finalization within this time. Before it is known, each check after this time costs a read."""

_KEY: Final = fixed_setting_key(FixedSetting.CONTAINERS)


class FormatGate:
    """What a process may write. Safe for any number of threads: a read too many does no harm.

    A check costs one read each `EXPIRY_S`, and none once the deployment allows all that this release writes, because a
    finalization is for ever.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._finalized: str | None = None
        self._read_at_s = 0.0

    def check(self, name: str) -> None:
        """Raises IllegalStateError, code "upgrade_not_finalized": the format may not be written yet."""
        check_may_write(name, self._known_release())

    def _known_release(self) -> str:
        now_s, known = self._clock.monotonic_s(), self._finalized
        if known is None or (formats_waiting(known) and now_s - self._read_at_s >= EXPIRY_S):
            known = finalized_release(self._store.get(_KEY))
            self._finalized, self._read_at_s = known, now_s
        return known


def find_finalized_release(store: MetadataStore) -> str:
    """The release for which the deployment is finalized; one read."""
    return finalized_release(store.get(_KEY))


def check_new_name(store: MetadataStore, name: str) -> None:
    """Check the name of a new scope, stream, table or group, without a `_` in front. One read if it has a `_` inside.

    Raises:
        IllegalStateError: code "upgrade_not_finalized": release 0.2 may run, which refuses such names.
    """
    if "_" in name:
        check_may_write(NAMES_WITH_UNDERSCORES, find_finalized_release(store))


def finalize_writes(store: MetadataStore) -> list[Write]:
    """The write that finalizes the deployment for this release; one read. Empty if there is nothing to finalize.

    Raises:
        IllegalStateError: code "release_too_old".
        ConflictError: a restore is not finished.
    """
    record = store.get(_KEY)
    finalized = finalized_release(record)
    check_release(finalized)
    if record is None or finalized == RELEASE:
        return []
    if is_restoring(record):
        raise ConflictError("a restore of this deployment is not finished: finalize the upgrade after it")
    return [Replace(_KEY, finalized_body(read_fixed_setting(record), RELEASE), record.version)]
