"""Reports logs that fall behind: replicas that lag, slow acknowledgements, and data that does not reach tier 2.

Stores have no CloudWatch client. The alarms of a deployment count these lines (infra/constructs/log_alarms.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from headrace.model.cluster import FLUSH_LAG_S_MAX
from headrace.replication.bounds import LAG_BYTES_MAX
from headrace.segmentstore.log.replicated.replicated_ledgers import ReplicatedLedgers
from headrace.segmentstore.metrics import LATENCY_BOUNDS_S, Histogram
from headrace.segmentstore.periodic_task import PeriodicTask, Rest
from headrace.segmentstore.store import SegmentStore

_log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 20.0
"""Alarms look at whole minutes: each of them has a check."""

ACKNOWLEDGE_S_MAX: Final = 0.05
SLOW_SHARE_MAX: Final = 0.01
"""Of the acknowledgements since the last check. With more the 99th percentile is above ACKNOWLEDGE_S_MAX."""


class LogWatch:
    """`unreplicated_bytes` and `untiered_s` are those of each container, `acknowledge_seconds` of the whole process."""

    def __init__(
        self,
        unreplicated_bytes: Callable[[], Mapping[int, int]],
        acknowledge_seconds: Callable[[], Iterable[Histogram]],
        untiered_s: Callable[[], Mapping[int, float]],
        *,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        self._unreplicated_bytes = unreplicated_bytes
        self._acknowledge_seconds = acknowledge_seconds
        self._untiered_s = untiered_s
        self._check_every_s = check_every_s
        self._checks = PeriodicTask(self._check, retry_first_s=check_every_s)
        self._counted = (0, 0)

    def start(self) -> None:
        self._checks.start(Rest.fixed(self._check_every_s))

    async def stop(self) -> None:
        await self._checks.stop()

    async def _check(self) -> Rest:
        self.check()
        return Rest.fixed(self._check_every_s)

    def check(self) -> None:
        """Write a line for everything that is beyond its limit now, or was since the last check."""
        for container, lacking in self._unreplicated_bytes().items():
            if lacking > LAG_BYTES_MAX:
                _log.warning("event=replica_lags container=%d bytes=%d", container, lacking)
        before, self._counted = self._counted, self._count_acknowledgements()
        slow, counted = (now - then for now, then in zip(self._counted, before, strict=True))
        if slow > SLOW_SHARE_MAX * counted:
            _log.warning("event=acknowledgements_slow slow=%d count=%d", slow, counted)
        for container, age_s in self._untiered_s().items():
            if age_s > FLUSH_LAG_S_MAX:
                _log.warning("event=untiered_data_old container=%d age_s=%.0f", container, age_s)

    def _count_acknowledgements(self) -> tuple[int, int]:
        """Those that took longer than ACKNOWLEDGE_S_MAX, and all."""
        first_slow = LATENCY_BOUNDS_S.index(ACKNOWLEDGE_S_MAX) + 1
        counts = [histogram.counts for histogram in self._acknowledge_seconds()]
        return sum(sum(each[first_slow:]) for each in counts), sum(map(sum, counts))


def log_watch(store: SegmentStore, ledgers: ReplicatedLedgers | None) -> LogWatch:
    """Watches the logs of a process; `ledgers` is None with one copy of each log."""

    def acknowledge_seconds() -> list[Histogram]:
        logs = [] if ledgers is None else ledgers.metrics.logs.values()
        return [histogram for log in logs for histogram in log.acknowledge_seconds.values()]

    return LogWatch(
        lambda: {} if ledgers is None else ledgers.unreplicated_bytes(),
        acknowledge_seconds,
        lambda: {container: owned.container.flush_lag_s for container, owned in store.owned.items()},
    )
