"""Reports of hot and cold segments: into an SQS queue, or into the log."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from botocore.exceptions import BotoCoreError, ClientError

from headrace.codec.scaling_report_message import report_message
from headrace.model.backoff import doubled_pause
from headrace.model.rates import ScalingReport

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient


# Reports of hot and cold segments in an SQS queue, sent by a thread of their own.
#
# A report is worth little after some minutes and comes again while it stays true. So nothing here may hold up the event
# loop or grow: while the queue does not answer, reports wait, the oldest are dropped for newer ones, and what could not
# be sent at the stop is dropped too.

_log = logging.getLogger(__name__)


REPORTS_WAITING_MAX: Final = 10_000
"""About 5 MB; all segments of a store that fall silent at once are a few thousand."""


REPORTS_PER_CALL: Final = 10
"""SQS's limit for a batch."""


RETRY_FIRST_S: Final = 1.0


RETRY_MAX_S: Final = 30.0


class SqsScalingReports:
    """`ports.scaling_reports.ScalingReports` over one standard queue; `start` it, and `stop` it at the end."""

    def __init__(
        self,
        queue_url: str,
        client: SQSClient,
        *,
        waiting_max: int = REPORTS_WAITING_MAX,
        retry_first_s: float = RETRY_FIRST_S,
    ) -> None:
        self.sent = 0
        self.dropped = 0
        self._queue_url = queue_url
        self._client = client
        self._waiting_max = waiting_max
        self._retry_first_s = retry_first_s
        self._changed = threading.Condition()
        self._waiting: deque[ScalingReport] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="scaling-reports", daemon=True)

    def start(self) -> None:
        """From now on send."""
        self._thread.start()

    def report(self, report: ScalingReport) -> None:
        with self._changed:
            self._waiting.append(report)
            self._drop_surplus()
            self._changed.notify()

    def stop(self, deadline_s: float) -> None:
        """Send what waits, but try no longer than the deadline and nothing twice; the thread is a daemon."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(deadline_s)
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
            self.dropped += left
        if left:
            _log.warning("event=scaling_reports_dropped reports=%d", left)

    def _run(self) -> None:
        failures = 0
        while (batch := self._next_batch()) is not None:
            failed = self._send(batch)
            failures = failures + 1 if failed else 0
            if failed and not self._give_back(failed, failures):
                return

    def _next_batch(self) -> list[ScalingReport] | None:
        """The oldest reports, once there are any; None when there are none and none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            batch = [self._waiting.popleft() for _ in range(min(REPORTS_PER_CALL, len(self._waiting)))]
            return batch or None

    def _send(self, batch: Sequence[ScalingReport]) -> list[ScalingReport]:
        """Those that the queue did not take."""
        entries = [
            {"Id": str(index), "MessageBody": json.dumps(report_message(report), separators=(",", ":"))}
            for index, report in enumerate(batch)
        ]
        try:
            answer = self._client.send_message_batch(QueueUrl=self._queue_url, Entries=entries)  # type: ignore[arg-type]
        except (BotoCoreError, ClientError) as error:
            _log.warning("event=scaling_reports_not_sent reports=%d error=%r", len(batch), error)
            return list(batch)
        refused = [batch[int(entry["Id"])] for entry in answer.get("Failed", ())]
        self.sent += len(batch) - len(refused)
        if refused:
            _log.warning("event=scaling_reports_not_sent reports=%d error=%r", len(refused), answer["Failed"][0])
        return refused

    def _give_back(self, failed: Sequence[ScalingReport], failures: int) -> bool:
        """Keep them for later and wait a while; False when the end has come."""
        pause_s = doubled_pause(failures, self._retry_first_s, RETRY_MAX_S)
        with self._changed:
            self._waiting.extendleft(reversed(failed))
            self._drop_surplus()
            return not self._changed.wait_for(lambda: self._stopping, pause_s)

    def _drop_surplus(self) -> None:
        while len(self._waiting) > self._waiting_max:
            self._waiting.popleft()
            if self.dropped % self._waiting_max == 0:
                _log.warning("event=scaling_reports_overflow waiting_max=%d", self._waiting_max)
            self.dropped += 1


# Writes reports of hot and cold segments into the log.


class LoggedScalingReports:
    """`ports.scaling_reports.ScalingReports` as lines `event=segment_hot ...` and `event=segment_cold ...`."""

    def report(self, report: ScalingReport) -> None:
        if report.kind == "hot":
            _log.info("event=segment_hot segment=%r splits=%d at_ms=%d", report.segment, report.splits, report.at_ms)
        else:
            _log.info("event=segment_cold segment=%r silent=%s at_ms=%d", report.segment, report.silent, report.at_ms)
