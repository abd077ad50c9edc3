"""Keeps reports in memory, where tests read them."""

from __future__ import annotations

from headrace.model.rates import ScalingReport


class MemoryScalingReports:
    """`ports.scaling_reports.ScalingReports` in a list."""

    def __init__(self) -> None:
        self.reports: list[ScalingReport] = []

    def report(self, report: ScalingReport) -> None:
        self.reports.append(report)
