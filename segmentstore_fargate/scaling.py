"""Where the scaling reports of a store process go: into its log, and to the controller's queue if it is told of one."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.adapters.scaling_report_senders import LoggedScalingReports, SqsScalingReports
from headrace.adapters.sqs import sqs_client
from headrace.model.rates import ScalingReport

STOP_DEADLINE_S: Final = 2.0
"""For what still waits when the store stops: a queue that answers takes it in a moment."""


class StoreScalingReports:
    """`ports.scaling_reports.ScalingReports` of one process; without a queue nothing is sent."""

    def __init__(self, queue_url: str | None) -> None:
        self._log = LoggedScalingReports()
        self._queue = SqsScalingReports(queue_url, sqs_client()) if queue_url else None

    @property
    def dropped(self) -> int:
        return self._queue.dropped if self._queue else 0

    def start(self) -> None:
        if self._queue is not None:
            self._queue.start()

    def report(self, report: ScalingReport) -> None:
        self._log.report(report)
        if self._queue is not None:
            self._queue.report(report)

    async def stop(self) -> None:
        if self._queue is not None:
            await asyncio.to_thread(self._queue.stop, STOP_DEADLINE_S)
