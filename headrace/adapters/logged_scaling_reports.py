"""Writes reports of hot and cold segments into the log."""

from __future__ import annotations

import logging

from headrace.model.rates import ScalingReport

_log = logging.getLogger(__name__)


class LoggedScalingReports:
    """`ports.scaling_reports.ScalingReports` as lines `event=segment_hot ...` and `event=segment_cold ...`."""

    def report(self, report: ScalingReport) -> None:
        if report.kind == "hot":
            _log.info("event=segment_hot segment=%r splits=%d at_ms=%d", report.segment, report.splits, report.at_ms)
        else:
            _log.info("event=segment_cold segment=%r silent=%s at_ms=%d", report.segment, report.silent, report.at_ms)
