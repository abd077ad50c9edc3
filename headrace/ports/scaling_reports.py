"""Where a segment store says that a segment is too hot or too cold for its stream's scaling policy."""

from __future__ import annotations

from typing import Protocol

from headrace.model.rates import ScalingReport


class ScalingReports(Protocol):
    """Takes reports, at most one in two minutes for each segment; one that is lost comes again if it stays true."""

    def report(self, report: ScalingReport) -> None:
        """Returns at once, on the event loop, and never raises."""
        ...
